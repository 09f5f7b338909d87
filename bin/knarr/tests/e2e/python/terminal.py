"""Runs a command on a terminal of its own, types into the shell that it starts, and prints what the shell answers."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time

DEADLINE = time.monotonic() + 60


def main():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(sys.argv[1], sys.argv[1:])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 103, 0, 0))
    seen = b""

    def read_until(text):
        nonlocal seen
        while text not in seen:
            ready, _, _ = select.select([terminal], [], [], max(0, DEADLINE - time.monotonic()))
            if not ready:
                sys.exit(f"no {text!r} within a minute; seen: {seen!r}")
            try:
                data = os.read(terminal, 65536)
            except OSError:
                data = b""
            if not data:
                return False
            seen += data
        before, _, seen = seen.partition(text)
        sys.stdout.write(before.decode(errors="replace"))
        return True

    def type_line(line):
        os.write(terminal, line.encode() + b"\n")

    # The terminal echoes its input: the marks are typed in a form in which the echo differs from the answer.
    read_until(b"# ")
    type_line('echo terminal: $(tty); echo mark""-1')
    read_until(b"mark-1")
    # The size is sent separately from the data, and may arrive a little later.
    wait = 'n=0; until [ "$(stty size)" = "41 103" ] || [ $n = 50 ]; do n=$((n+1)); sleep 0.1; done'
    type_line(wait + '; echo size: $(stty size); echo mark""-2')
    read_until(b"mark-2")
    # The job itself prints the mark: before that, it might not be in the foreground yet.
    type_line("sh -c 'echo mark\"\"-3; exec sleep 100'")
    read_until(b"mark-3")
    os.write(terminal, b"\x03")
    type_line('echo inter""rupted: $?; exit 7')
    read_until(b"\x00never")
    sys.stdout.write(seen.decode(errors="replace"))
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


main()
