//! Known container escapes, tried by hostile images, volumes and pods.

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use knarr_runtime::containers::{
    Bind, ContainerSpec, ExecRequest, Mount, MountKind, PidMode, SeccompProfile, User,
};

use crate::world::{World, sandbox};

fn bind(source: &Path, destination: &str) -> Mount {
    let kind = MountKind::Bind(Bind { source: source.to_owned(), ..Bind::default() });
    Mount { destination: destination.into(), kind }
}

fn mkfifo(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
}

/// Creates a folder on the host that stands for a volume that the tenant has filled.
fn volume(world: &World, name: &str) -> std::path::PathBuf {
    let folder = world.folder.join("volumes").join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

async fn shared_pid_world() -> World {
    let world = World::new().await;
    let mut config = sandbox("s");
    config.shared_pid = true;
    world.runtime.run_sandbox(config).await.unwrap();
    world
}

/// Returns why the container does not start.
async fn refusal(world: &World, spec: ContainerSpec) -> String {
    let id = spec.id.clone();
    if world.runtime.sandbox_status("s").is_err() {
        world.sandbox("s").await;
    }
    world.runtime.create_container("s", spec).await.unwrap();
    match world.runtime.start_container(&id).await {
        Err(error) => error.to_string(),
        Ok(_) => {
            world.runtime.wait_container(&id).await.unwrap();
            panic!("container {id} ran: {}", world.log(&id))
        }
    }
}

#[tokio::test]
async fn working_folder_through_the_root_of_process_one() {
    let world = shared_pid_world().await;
    for (id, user) in [("root", 0), ("user", 101)] {
        let mut spec = world.spec(id, &["ls"]);
        spec.pid_mode = PidMode::Pod;
        spec.cwd = "/proc/1/root".into();
        spec.user.uid = user;
        let error = refusal(&world, spec).await;
        assert!(error.contains("chdir to cwd (\"/proc/1/root\")"), "{error}");
    }
    // No folder is created there either.
    let mut spec = world.spec("new", &["ls"]);
    spec.pid_mode = PidMode::Pod;
    spec.cwd = format!("/proc/1/root/{}", world.folder.join("made").display());
    refusal(&world, spec).await;
    assert!(!world.folder.join("made").exists());
}

#[tokio::test]
async fn working_folder_through_a_descriptor() {
    let world = World::new().await;
    for number in 3..16 {
        let mut spec = world.spec(&format!("fd{number}"), &["ls", "../../../../../etc"]);
        spec.cwd = format!("/proc/self/fd/{number}");
        refusal(&world, spec).await;
        let mut spec = world.spec(&format!("link{number}"), &["ls"]);
        symlink(format!("/proc/self/fd/{number}"), spec.rootfs.join("job")).unwrap();
        spec.cwd = "/job".into();
        refusal(&world, spec).await;
    }
}

#[tokio::test]
async fn working_folder_of_a_command_after_the_start() {
    let world = World::new().await;
    let mut spec = world.spec("c", &["sleep", "1000"]);
    fs::create_dir(spec.rootfs.join("job")).unwrap();
    spec.cwd = "/job".into();
    let rootfs = spec.rootfs.clone();
    world.run(spec).await;
    assert_eq!(world.sh("c", "pwd").await, (0, "/job".to_owned()));
    fs::remove_dir(rootfs.join("job")).unwrap();
    for target in ["/proc/1/root", "/proc/self/fd/3", "/proc/self/fd/7", "/proc/self/cwd"] {
        symlink(target, rootfs.join("job")).unwrap();
        let args = vec!["ls".to_owned()];
        let error = world.runtime.exec_sync("c", args, None).await.unwrap_err().to_string();
        assert!(error.contains("chdir to cwd"), "{target}: {error}");
        fs::remove_file(rootfs.join("job")).unwrap();
    }
}

#[tokio::test]
async fn a_volume_at_dev_does_not_choose_what_is_opened() {
    let world = World::new().await;
    let show = "stat -L -c %t:%T /proc/self/fd/0; stat -c %t:%T /proc/keys";
    for (id, make) in [("link", true), ("fifo", false)] {
        let dev = volume(&world, id);
        if make {
            symlink("/proc/sys/kernel/core_pattern", dev.join("null")).unwrap();
        } else {
            mkfifo(&dev.join("null"));
        }
        let mut spec = world.spec(id, &["sh", "-c", &format!("{show}; sleep 1000")]);
        spec.mounts = vec![bind(&dev, "/dev")];
        world.run(spec).await;
        crate::world::eventually("the container's output", || world.log(id).lines().count() >= 2).await;
        assert_eq!(world.log(id), "1:3\n1:3");
        // Also in a command that is run later.
        assert_eq!(world.sh(id, show).await.1, "1:3\n1:3");
    }
}

#[tokio::test]
async fn a_volume_at_dev_does_not_choose_the_terminal() {
    let world = World::new().await;
    let dev = volume(&world, "dev");
    symlink("/proc/self/fd", dev.join("pts")).unwrap();
    let mut spec = world.spec("link", &["tty"]);
    spec.mounts = vec![bind(&dev, "/dev")];
    spec.tty = true;
    refusal(&world, spec).await;
    // A devpts exists, and the console is a link to another file.
    let dev = volume(&world, "console");
    symlink("/proc/sysrq-trigger", dev.join("console")).unwrap();
    let mut spec = world.spec("console", &["tty"]);
    spec.mounts = vec![bind(&dev, "/dev")];
    spec.tty = true;
    let error = refusal(&world, spec).await;
    assert!(error.contains("/dev/console"), "{error}");
    // A terminal for a command in a container that has replaced its /dev/pts.
    let pts = volume(&world, "pts");
    symlink("/proc/sysrq-trigger", pts.join("ptmx")).unwrap();
    let mut spec = world.spec("pts", &["sleep", "1000"]);
    spec.mounts = vec![bind(&pts, "/dev/pts")];
    world.run(spec).await;
    let args = vec!["true".to_owned()];
    let request =
        ExecRequest { container_id: "pts".into(), args, tty: true, stdout: true, ..Default::default() };
    let error = world.runtime.exec(request).await.err().map(|error| error.to_string());
    assert!(error.as_deref().unwrap_or_default().contains("open a terminal"), "{error:?}");
}

#[tokio::test]
async fn kernel_file_systems_lie_where_they_are_closed() {
    let world = World::new().await;
    for name in ["proc", "sys", "dev"] {
        let spec = world.spec(name, &["true"]);
        let _ = fs::remove_dir_all(spec.rootfs.join(name));
        fs::create_dir_all(spec.rootfs.join("elsewhere")).unwrap();
        symlink("/elsewhere", spec.rootfs.join(name)).unwrap();
        let error = refusal(&world, spec).await;
        assert!(error.contains(&format!("\"/{name}\"")), "{error}");
    }
    let data = volume(&world, "data");
    fs::write(data.join("file"), "").unwrap();
    for (id, source, destination) in [
        ("a", data.clone(), "/proc"),
        ("b", data.clone(), "/proc/sys"),
        ("c", data.join("file"), "/proc/sys/kernel/core_pattern"),
        ("d", data.clone(), "/"),
    ] {
        let mut spec = world.spec(id, &["true"]);
        spec.mounts = vec![bind(&source, destination)];
        let error = refusal(&world, spec).await;
        assert!(error.contains(&format!("error mounting to rootfs at {destination:?}")), "{error}");
    }
    let mut spec = world.spec("meminfo", &["sh", "-c", "wc -c < /proc/meminfo"]);
    spec.mounts = vec![bind(&data.join("file"), "/proc/meminfo")];
    assert_eq!(world.script(spec).await, (0, "0".to_owned()));
}

#[tokio::test]
async fn mount_points_are_not_found_through_processes() {
    let world = shared_pid_world().await;
    let data = volume(&world, "data");
    for (id, target) in [("root", "/proc/1/root"), ("descriptor", "/proc/self/fd/7")] {
        let mut spec = world.spec(id, &["true"]);
        spec.pid_mode = PidMode::Pod;
        symlink(target, spec.rootfs.join("way")).unwrap();
        let destination = format!("/way{}", world.folder.join("made").display());
        spec.mounts = vec![bind(&data, &destination)];
        let error = refusal(&world, spec).await;
        assert!(error.contains("too many levels of symbolic links"), "{error}");
        assert!(!world.folder.join("made").exists());
    }
}

#[tokio::test]
async fn process_one_of_a_shared_pid_namespace_is_of_no_use() {
    let world = shared_pid_world().await;
    let script = "grep -E '^(Uid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr -s '\\t ' ' '; \
        ls -A /proc/1/root/ | wc -l; ls /proc/1/fd | wc -l; touch /proc/1/root/x 2>/dev/null || echo sealed; \
        kill -9 1; kill -0 1 && echo alive";
    let mut spec = world.spec("c", &["sh", "-c", script]);
    spec.pid_mode = PidMode::Pod;
    spec.capabilities.add = vec!["SYS_PTRACE".into()];
    let got = world.script(spec).await.1;
    let want = [
        "Uid: 65535 65535 65535 65535",
        "Groups: ",
        "CapEff: 0000000000000000",
        "CapBnd: 0000000000000000",
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "0",
        "0",
        "sealed",
        "alive",
    ];
    assert_eq!(got.lines().map(str::trim_end).collect::<Vec<_>>(), want.map(str::trim_end));
    // Without that capability the container cannot read the process's files at all.
    let mut spec =
        world.spec("plain", &["sh", "-c", "ls /proc/1/root /proc/1/fd >/dev/null 2>&1 || echo refused"]);
    spec.pid_mode = PidMode::Pod;
    assert_eq!(world.script(spec).await.1, "refused");
}

#[tokio::test]
async fn the_runtime_s_program_cannot_be_run_or_written() {
    let world = World::new().await;
    world.sandbox("s").await;
    let error = refusal(&world, world.spec("exe", &["/proc/self/exe"])).await;
    assert!(error.contains("too many levels of symbolic links"), "{error}");
    let path = format!("/proc/{}/exe", world.shim_pid("s"));
    let mut options = fs::OpenOptions::new();
    let error = options.write(true).custom_flags(libc::O_TRUNC).open(path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{error}");
}

/// A process that is entering the container must not be traceable by processes that run in it already.
#[tokio::test]
async fn newcomers_cannot_be_looked_into() {
    let world = World::new().await;
    let look = "while [ ! -e /stop ]; do for p in /proc/[0-9]*; do readlink $p/exe; readlink $p/cwd; \
        for f in $p/fd/*; do readlink $f; done; done; done 2>/dev/null | grep -v -E '^(/|/bin/busybox|/dev/null|/proc/[0-9]+/fd|pipe:.*)$'; \
        echo end";
    let spec = world.spec("c", &["sh", "-c", look]);
    let rootfs = spec.rootfs.clone();
    world.run(spec).await;
    for _ in 0..150 {
        assert_eq!(world.sh("c", "true").await.0, 0);
    }
    fs::write(rootfs.join("stop"), "").unwrap();
    world.runtime.wait_container("c").await.unwrap();
    assert_eq!(world.log("c"), "end");
}

#[tokio::test]
async fn working_folders_are_entered_with_the_user_s_rights() {
    let world = World::new().await;
    let user = || User { uid: 101, gid: 102, additional_gids: vec![] };
    // A folder of the image that only root may enter, as with runc.
    let mut spec = world.spec("image", &["pwd"]);
    fs::set_permissions(spec.rootfs.join("root"), fs::Permissions::from_mode(0o700)).unwrap();
    spec.cwd = "/root".into();
    spec.user = user();
    assert_eq!(world.script(spec).await, (0, "/root".to_owned()));
    // Such a folder in a volume is not entered.
    let data = volume(&world, "data");
    fs::create_dir_all(data.join("closed/open")).unwrap();
    fs::set_permissions(data.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut spec = world.spec("volume", &["pwd"]);
    spec.mounts = vec![bind(&data, "/data")];
    spec.cwd = "/data/closed/open".into();
    spec.user = user();
    let error = refusal(&world, spec).await;
    assert!(error.contains("permission denied"), "{error}");
    // A missing folder is created, also through a dangling link.
    let mut spec = world.spec("missing", &["pwd"]);
    symlink("/srv/app", spec.rootfs.join("job")).unwrap();
    spec.cwd = "/job/inner".into();
    spec.user = user();
    let made = spec.rootfs.join("srv/app/inner");
    assert_eq!(world.script(spec).await, (0, "/srv/app/inner".to_owned()));
    assert_eq!(fs::metadata(made).unwrap().mode() & 0o7777, 0o755);
}

#[tokio::test]
async fn programs_and_accounts_are_read_with_the_user_s_rights() {
    let world = World::new().await;
    let mut spec = world.spec("secret", &["/bin/secret"]);
    fs::copy("/bin/busybox", spec.rootfs.join("bin/secret")).unwrap();
    fs::set_permissions(spec.rootfs.join("bin/secret"), fs::Permissions::from_mode(0o700)).unwrap();
    spec.user.uid = 101;
    let error = refusal(&world, spec).await;
    assert!(error.contains("permission denied"), "{error}");
    // One account file would block the runtime, the other is a link to the host.
    let spec = world.spec("fifo", &["sh", "-c", "echo $HOME"]);
    fs::remove_file(spec.rootfs.join("etc/passwd")).unwrap();
    mkfifo(&spec.rootfs.join("etc/passwd"));
    assert_eq!(world.script(spec).await, (0, "/".to_owned()));
}

/// The host's own device covers masked files, and is a stream of containers without a /dev/null.
#[tokio::test]
async fn the_host_s_null_device_cannot_be_changed() {
    let world = World::new().await;
    let before = fs::metadata("/dev/null").unwrap();
    let change = "for f in /proc/keys /proc/self/fd/0; do touch -c $f && echo touched; chmod 666 $f && echo changed; \
        echo x > $f && echo written; done 2>/dev/null";
    let dev = volume(&world, "dev");
    let mut spec = world.spec("c", &["sh", "-c", &format!("{change}; sleep 1000")]);
    spec.mounts = vec![bind(&dev, "/dev")];
    // Without a /dev/null the shell has no file for its error messages.
    spec.args[2] = spec.args[2].replace("2>/dev/null", "2>/tmp/complaints");
    world.run(spec).await;
    crate::world::eventually("the container's output", || world.log("c").lines().count() >= 2).await;
    let after = fs::metadata("/dev/null").unwrap();
    assert_eq!(world.log("c"), "written\nwritten");
    assert_eq!((after.mode(), after.uid(), after.mtime()), (before.mode(), before.uid(), before.mtime()));
    assert_eq!(
        world.sh("c", &change.replace("2>/dev/null", "2>/tmp/complaints")).await.1,
        "written\nwritten"
    );
}

/// One container's keys must not be visible to others.
#[tokio::test]
async fn every_container_has_a_session_keyring_of_its_own() {
    let world = World::new().await;
    if !Path::new("/proc/keys").exists() {
        return;
    }
    let mut rings = Vec::new();
    for id in ["a", "b"] {
        let mut spec = world.spec(id, &["sh", "-c", "grep ' keyring  *_ses' /proc/keys; sleep 1000"]);
        spec.masked_paths = Some(Vec::new());
        // A user other than root sees only its own keys.
        spec.user.uid = 101;
        world.run(spec).await;
        crate::world::eventually("the container's keyring", || !world.log(id).is_empty()).await;
        rings.extend(world.log(id).lines().map(|line| line.split(' ').next().unwrap().to_owned()));
        let (_, line) = world.sh(id, "grep ' keyring  *_ses' /proc/keys").await;
        rings.push(line.split(' ').next().unwrap().to_owned());
    }
    let host = fs::read_to_string("/proc/keys").unwrap();
    assert_eq!(rings.len(), 4, "{rings:?}");
    assert!(rings[0] != rings[2] && rings[1] != rings[3], "{rings:?}\n{host}");
}

/// A tenant that fills the disk must not end containers by that.
#[tokio::test]
async fn a_full_disk_does_not_end_the_shim() {
    let world = World::new().await;
    let folder = world.options.state_dir.join("sandboxes");
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), &folder, Some("tmpfs"), flags, Some("size=1m")).unwrap();
    world.run(world.spec("ends", &["sleep", "1000"])).await;
    world.run(world.spec("stays", &["sleep", "1000"])).await;
    let (mut filler, block) = (fs::File::create(folder.join("filler")).unwrap(), [0; 4096]);
    while std::io::Write::write_all(&mut filler, &block).is_ok() {}
    world.runtime.stop_container("ends", std::time::Duration::ZERO).await.unwrap();
    assert_eq!(world.sh("stays", "echo alive").await, (0, "alive".to_owned()));
    fs::remove_file(folder.join("filler")).unwrap();
}

/// The kernel takes -1 for "no change": such a user would be root.
#[tokio::test]
async fn users_beyond_the_range_are_refused() {
    let world = World::new().await;
    world.sandbox("s").await;
    let users = [
        User { uid: u32::MAX, ..User::default() },
        User { uid: 1, gid: u32::MAX, ..User::default() },
        User { uid: 1, gid: 1, additional_gids: vec![1 << 31] },
    ];
    for (number, user) in users.into_iter().enumerate() {
        let mut spec = world.spec(&format!("c{number}"), &["id", "-u"]);
        spec.user = user;
        let made = world.runtime.create_container("s", spec).await;
        assert!(made.is_err_and(|error| error.to_string().contains("out of range")), "{number}");
    }
}

#[tokio::test]
async fn the_root_is_not_covered_by_way_of_a_link() {
    let world = World::new().await;
    let data = volume(&world, "data");
    for (id, destination) in [("a", "/way"), ("b", "/tmp/way")] {
        let mut spec = world.spec(id, &["ls", "/.."]);
        symlink("/", spec.rootfs.join("way")).unwrap();
        symlink("../..", spec.rootfs.join("tmp/way")).unwrap();
        spec.mounts = vec![bind(&data, destination)];
        let error = refusal(&world, spec).await;
        assert!(error.contains("the root itself cannot be mounted over"), "{error}");
    }
}

/// However long the program's name is, the failure is reported and never taken for a start.
#[tokio::test]
async fn long_failures_are_failures() {
    let world = World::new().await;
    for (id, length) in [("long", 3000), ("longer", 120_000)] {
        let error = refusal(&world, world.spec(id, &[&format!("/{}", "x".repeat(length))])).await;
        assert!(error.contains("exec: \"/xxx"), "{error}");
    }
}

/// An environment built from many ConfigMaps may be larger than the shim accepts.
#[tokio::test]
async fn a_huge_container_does_not_end_its_neighbours() {
    let world = World::new().await;
    world.run(world.spec("stays", &["sleep", "1000"])).await;
    let mut spec = world.spec("huge", &["true"]);
    spec.env = (0..90).map(|number| format!("V{number}={}", "x".repeat(100_000))).collect();
    let error = world.runtime.create_container("s", spec).await.unwrap_err().to_string();
    assert!(error.contains("is larger than"), "{error}");
    assert_eq!(world.sh("stays", "echo alive").await, (0, "alive".to_owned()));
}

/// Stops every process that appears in its pid namespace and inspects it, until /stop exists.
const LOOK: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **args) {
    int next = 2, found = 0;
    char path[600];
    while (access("/stop", F_OK) != 0) {
        for (int pid = next; pid < next + 40; pid++) {
            if (kill(pid, 0) != 0) continue;
            kill(pid, SIGSTOP);
            next = pid + 1;
            usleep(300);
            snprintf(path, sizeof path, "/proc/%d/root/%s", pid, args[1]);
            int file = open(path, O_RDONLY);
            if (file >= 0) { found++; close(file); }
            kill(pid, SIGCONT);
        }
    }
    printf("found %d\n", found);
    return 0;
}
"#;

/// A command that is entering a container is visible there only after it has the container's root.
#[tokio::test]
async fn commands_do_not_bring_the_host_along() {
    let world = World::new().await;
    fs::write(world.folder.join("of-the-host"), "").unwrap();
    let marker = world.folder.join("of-the-host");
    let mut spec = world.spec("c", &["/look", marker.to_str().unwrap()]);
    let source = world.folder.join("look.c");
    fs::write(&source, LOOK).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-w", "-O2", "-static", "-o"]).arg(spec.rootfs.join("look")).arg(&source);
    assert!(compiler.status().unwrap().success(), "these tests need a C compiler");
    // Without this capability it may not trace other processes.
    spec.capabilities.add = vec!["SYS_PTRACE".into()];
    let rootfs = spec.rootfs.clone();
    world.run(spec).await;
    for _ in 0..100 {
        assert_eq!(world.sh("c", "true").await.0, 0);
    }
    fs::write(rootfs.join("stop"), "").unwrap();
    world.runtime.wait_container("c").await.unwrap();
    assert_eq!(world.log("c"), "found 0");
}

/// Stops every process that appears in its pid namespace, until /stop exists, and counts those with more
/// capabilities than this program or with another root.
const LOOK_AT_RIGHTS: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static unsigned long long permitted(int pid) {
    char path[64], line[256];
    unsigned long long found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "CapPrm: %llx", &found);
    if (status) fclose(status);
    return found;
}
int main(int count, char **args) {
    int next = 2, seen = 0, mighty = 0, foreign = 0;
    char path[600];
    unsigned long long own = permitted(getpid());
    setbuf(stdout, 0);
    printf("looking\n");
    while (access("/stop", F_OK) != 0) {
        for (int pid = next; pid < next + 40; pid++) {
            if (pid == getpid() || kill(pid, 0) != 0) continue;
            kill(pid, SIGSTOP);
            next = pid + 1;
            usleep(300);
            seen++;
            if (permitted(pid) & ~own) mighty++;
            snprintf(path, sizeof path, "/proc/%d/root/%s", pid, args[1]);
            if (access(path, F_OK) == 0) foreign++;
            kill(pid, SIGCONT);
        }
    }
    printf("seen %s, mighty %d, foreign %d\n", seen ? "some" : "none", mighty, foreign);
    return 0;
}
"#;

/// Runs the program above in a container that may trace others, in a sandbox with shared processes.
async fn looking(world: &World, pid_mode: PidMode) -> std::path::PathBuf {
    let marker = world.folder.join("of-the-host");
    fs::write(&marker, "").unwrap();
    let mut spec = world.spec("looks", &["/look", marker.to_str().unwrap()]);
    let source = world.folder.join("rights.c");
    fs::write(&source, LOOK_AT_RIGHTS).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-w", "-O2", "-static", "-o"]).arg(spec.rootfs.join("look")).arg(&source);
    assert!(compiler.status().unwrap().success(), "these tests need a C compiler");
    spec.capabilities.add = vec!["SYS_PTRACE".into()];
    spec.pid_mode = pid_mode;
    let rootfs = spec.rootfs.clone();
    world.run(spec).await;
    crate::world::eventually("the look", || !world.log("looks").is_empty()).await;
    rootfs
}

async fn nothing_was_found(world: &World, rootfs: &Path) {
    fs::write(rootfs.join("stop"), "").unwrap();
    world.runtime.wait_container("looks").await.unwrap();
    assert_eq!(world.log("looks"), "looking\nseen some, mighty 0, foreign 0");
}

/// Processes with SYS_PTRACE can take over a process that is entering the container: it has no more rights than
/// they have.
#[tokio::test]
async fn commands_bring_no_rights_along() {
    let world = World::new().await;
    let rootfs = looking(&world, PidMode::Container).await;
    for _ in 0..100 {
        assert_eq!(world.sh("looks", "true").await.0, 0);
    }
    nothing_was_found(&world, &rootfs).await;
}

#[tokio::test]
async fn starting_neighbours_bring_no_rights_along() {
    let world = shared_pid_world().await;
    let rootfs = looking(&world, PidMode::Pod).await;
    for number in 0..60 {
        let mut spec = world.spec(&format!("n{number}"), &["true"]);
        spec.pid_mode = PidMode::Pod;
        spec.no_new_privileges = number % 2 == 0;
        assert_eq!(world.script(spec).await.0, 0);
    }
    nothing_was_found(&world, &rootfs).await;
}

/// Stops every process that appears in its pid namespace with more rights than its own, and keeps it stopped.
const CATCH: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static unsigned long long permitted(int pid) {
    char path[64], line[256];
    unsigned long long found = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "CapPrm: %llx", &found);
    if (status) fclose(status);
    return found;
}
int main() {
    int next = 2;
    unsigned long long own = permitted(getpid());
    setbuf(stdout, 0);
    for (;;) {
        for (int pid = next; pid < next + 40; pid++) {
            if (pid == getpid() || kill(pid, 0) != 0) continue;
            kill(pid, SIGSTOP);
            next = pid + 1;
            usleep(300);
            if (permitted(pid) & ~own) { printf("caught\n"); for (;;) pause(); }
            kill(pid, SIGCONT);
        }
    }
}
"#;

/// A starting command that a container has stopped is killed before a container starts that could take it over.
#[tokio::test]
async fn a_debugger_finds_no_command_with_the_host_s_rights() {
    let world = World::new().await;
    let mut spec = world.spec("catches", &["/catch"]);
    let source = world.folder.join("catch.c");
    fs::write(&source, CATCH).unwrap();
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-w", "-O2", "-static", "-o"]).arg(spec.rootfs.join("catch")).arg(&source);
    assert!(compiler.status().unwrap().success(), "these tests need a C compiler");
    spec.seccomp = SeccompProfile::RuntimeDefault;
    world.run(spec).await;
    let mut commands = tokio::task::JoinSet::new();
    for _ in 0..2000 {
        if !world.log("catches").is_empty() {
            break;
        }
        let runtime = world.runtime.clone();
        let limit = Some(std::time::Duration::from_secs(60));
        commands.spawn(async move { runtime.exec_sync("catches", vec!["true".into()], limit).await });
        // Each command ends before the next one starts, except for the one that is caught.
        let ended = tokio::time::timeout(std::time::Duration::from_millis(500), commands.join_next()).await;
        if ended.is_err() {
            break;
        }
    }
    crate::world::eventually("a command on its way", || world.log("catches") == "caught").await;

    let mut debugger = world.spec("debugs", &["sh", "-c", "grep -h CapPrm /proc/[0-9]*/status"]);
    debugger.capabilities.add = vec!["SYS_PTRACE".into()];
    debugger.pid_mode = PidMode::Target("catches".into());
    let (code, found) = world.script(debugger).await;
    assert_eq!(code, 0, "{found}");
    let permitted =
        found.lines().filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok());
    let permitted: Vec<u64> = permitted.collect();
    // The debugger's own capabilities and its neighbour's.
    let most = permitted.iter().fold(0, |most: u32, mask| most.max(mask.count_ones()));
    assert!(permitted.len() >= 2 && most < 20, "{found}");
    let ended = commands.join_next().await.unwrap().unwrap();
    assert_eq!(ended.map(|output| output.exit_code).unwrap(), 137);
}
