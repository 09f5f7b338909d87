"""Runs a program on its own terminal: keeps what it draws as a screen, and sends keys to it."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

ROWS, COLUMNS = 50, 180
# A control sequence with its parameters, any other escape sequence, a control character, or text.
PIECE = re.compile(
    r"\x1b\[([0-9;?<>=]*)[ -/]*([@-~])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()#][0-9A-Za-z]|\x1b.|[\x00-\x1f\x7f]|[^\x00-\x1f\x7f]+",
    re.S,
)
# A possible beginning of a sequence whose end has not been read yet.
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?<>=]*[ -/]*|\][^\x07\x1b]*\x1b?|[()#])?$")


class Terminal:
    """The screen of a program that positions the cursor, clears, and writes; nothing else is supported."""

    def __init__(self, *words, env=None):
        main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        self.program = subprocess.Popen(
            words, stdin=other, stdout=other, stderr=other, env=environment, preexec_fn=lambda: lead(other)
        )
        os.close(other)
        # The input may end within a character, or within a sequence.
        self.main, self.decoder, self.rest = main, codecs.getincrementaldecoder("utf-8")("replace"), ""
        self.row = self.column = 0
        self.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.kill()
        self.program.wait()
        os.close(self.main)

    def clear(self):
        self.cells = [[" "] * COLUMNS for _ in range(ROWS)]

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def read(self, limit):
        """Draws the program's output within a time; returns whether there was any."""
        if not select.select([self.main], [], [], limit)[0]:
            return False
        try:
            data = os.read(self.main, 65536)
        except OSError:
            # The program has ended.
            return False
        text = self.rest + self.decoder.decode(data)
        cut = UNFINISHED.search(text)
        end = cut.start() if cut else len(text)
        self.rest = text[end:]
        for piece in PIECE.finditer(text[:end]):
            self.draw(piece)
        return True

    def draw(self, piece):
        parameters, final = piece.group(1), piece.group(2)
        if final:
            self.control([int(word) if word.isdigit() else 0 for word in parameters.split(";")], parameters, final)
            return
        text = piece.group(0)
        if text == "\r":
            self.column = 0
        elif text == "\n":
            self.row = min(self.row + 1, ROWS - 1)
        elif text == "\b":
            self.column = max(self.column - 1, 0)
        elif text[0] >= " " and text[0] != "\x7f":
            for character in text:
                if self.column < COLUMNS:
                    self.cells[self.row][self.column] = character
                self.column += 1

    def control(self, numbers, parameters, final):
        if final == "H":
            row, column = (numbers + [1, 1])[:2] if parameters else (1, 1)
            self.row, self.column = min(max(row, 1), ROWS) - 1, min(max(column, 1), COLUMNS) - 1
        elif final == "J" and numbers[0] == 2 or parameters in ("?1049", "?1047") and final in "hl":
            self.clear()
        elif final == "J":
            self.cells[self.row][self.column :] = [" "] * len(self.cells[self.row][self.column :])
            self.cells[self.row + 1 :] = [[" "] * COLUMNS for _ in range(ROWS - self.row - 1)]
        elif final == "K":
            self.cells[self.row][self.column :] = [" "] * len(self.cells[self.row][self.column :])
        elif final in "ABCD":
            down, right = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}[final]
            by = max(numbers[0], 1)
            self.row = min(max(self.row + down * by, 0), ROWS - 1)
            self.column = min(max(self.column + right * by, 0), COLUMNS - 1)

    def keys(self, text):
        os.write(self.main, text.encode())

    def until(self, what, is_shown, limit=60):
        """Waits until the screen shows something; `is_shown` is a pattern, or a predicate on the screen's text."""
        ask = is_shown if callable(is_shown) else re.compile(is_shown, re.I).search
        deadline = time.monotonic() + limit
        while not ask(self.text()):
            if time.monotonic() > deadline or (not self.read(0.2) and self.program.poll() is not None):
                print(self.text())
                raise SystemExit(f"{what}: not on the screen")

    def end(self, limit=30):
        """Waits for the end of the program; returns its exit code."""
        deadline = time.monotonic() + limit
        while self.program.poll() is None:
            self.read(0.2)
            if time.monotonic() > deadline:
                print(self.text())
                raise SystemExit(f"the program did not end within {limit} s")
        return self.program.returncode


def lead(terminal):
    """Makes the program's process the leader of a session with this terminal."""
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
