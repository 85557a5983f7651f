"""A command in a terminal of a given size, and what a person who sits in front of it sees.

    with Screen(["./lab", "status"]) as screen:   # 80 × 24
        screen.wait_for("oracle")                 # until the text, or a pattern, stands on the screen
        screen.send(CTRL_C)
        assert screen.wait() == 130
        print(screen.text)                        # what stands there now; .frames: what stood there before

The terminal is a real one (pty), so programs find what they look for: isatty, its size, Ctrl-C for the whole group.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pyte

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
QUIET_S = 0.03  # output that pauses that long is drawn: nobody sees a half-written frame for longer
NOT_THE_CALLERS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")


class _Terminal(pyte.HistoryScreen):
    """A terminal that keeps what scrolled away, and answers a program that asks it something."""

    answer_to: int | None = None

    def write_process_input(self, data: str) -> None:
        if self.answer_to is not None:
            os.write(self.answer_to, data.encode())


class Screen:
    """A command that runs in a terminal of `columns` × `rows`. On leaving, its process group is ended.

    variables: added to the caller's environment; one that is None is taken out of it.
    """

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        columns: int = 80,
        rows: int = 24,
        cwd: str | Path | None = None,
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        self.sent = bytearray()  # everything that the command wrote, codes too
        self.frames: list[str] = []  # every screen at which the output paused, as `text`; no two neighbours are equal
        self._seen = 0  # frames before this one have been waited for
        self._terminal = _Terminal(columns, rows, history=100_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._terminal)
        self._changed = threading.Condition()
        self._closed = False
        self._master, slave = pty.openpty()
        self._terminal.answer_to = self._master
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            [os.fspath(word) for word in command], stdin=slave, stdout=slave, stderr=slave, cwd=cwd,
            env=_environment(variables or {}), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(5)
        if not self._reader.is_alive():
            os.close(self._master)

    # --- what is seen ---------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[str]:
        """What stands on the screen now: a text per row, without blanks at its end."""
        with self._changed:
            return [line.rstrip() for line in self._terminal.display]

    @property
    def text(self) -> str:
        """What stands on the screen now, without empty rows at its end."""
        return "\n".join(self.lines).rstrip("\n")

    @property
    def transcript(self) -> str:
        """Everything that was printed and not overwritten: what scrolled away, then the screen."""
        with self._changed:
            width = self._terminal.columns
            gone = ["".join(line[at].data for at in range(width)).rstrip() for line in self._terminal.history.top]
        return "\n".join([*gone, *self.lines]).rstrip("\n")

    @property
    def flat(self) -> str:
        """All that was printed as one line, without the breaks between words and at the terminal's edge."""
        width = self._terminal.columns
        return "".join(line if len(line) == width else f"{line} " for line in self.transcript.splitlines())

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = 120.0) -> str:
        """Returns the first screen with a text or a pattern, from the one on that the last call returned.

        AssertionError, with all that was printed, if the command ends without or the time is over.
        """
        until = time.monotonic() + timeout_s
        with self._changed:
            while True:
                while self._seen < len(self.frames):
                    if _shows(frame := self.frames[self._seen], pattern):
                        return frame
                    self._seen += 1
                if self._closed or not self._changed.wait(max(0.0, until - time.monotonic())):
                    break
        why = "the command ended" if self._closed else f"{timeout_s:.0f} s passed"
        raise AssertionError(f"{why} without {pattern!r} on the screen:\n{self.transcript}")

    # --- what is done ---------------------------------------------------------------------------------------

    def send(self, keys: str) -> None:
        """Types those keys: "yes" + ENTER, CTRL_C, …"""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Gives the terminal another size, and tells the programs in it."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with self._changed:
            self._terminal.resize(rows, columns)

    def wait(self, timeout_s: float = 300.0) -> int:
        """Returns the exit code once the command ended and all that it printed is on the screen."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {timeout_s:.0f} s; on the screen:\n{self.transcript}") from None
        self._reader.join(2)  # longer only where a child keeps the terminal open
        return code

    def _read(self) -> None:
        while True:
            quiet = not select.select([self._master], [], [], QUIET_S)[0]
            if quiet:
                self._keep_frame()
                select.select([self._master], [], [])
            try:
                data = os.read(self._master, 1 << 16)
            except OSError:  # EIO: nobody has the terminal open any more
                data = b""
            if not data:
                break
            with self._changed:
                self.sent += data
                self._stream.feed(data)
        self._closed = True
        self._keep_frame(at_end=True)

    def _keep_frame(self, at_end: bool = False) -> None:
        with self._changed:
            text = self.text
            if not self.frames or self.frames[-1] != text:
                self.frames.append(text)
                self._changed.notify_all()
            elif at_end:
                self._changed.notify_all()


def show(command: Sequence[str | os.PathLike[str]], timeout_s: float = 300.0, **options) -> Screen:
    """Returns the screen of a command that has ended; `options` as for Screen. Its exit code: `.process.returncode`."""
    with Screen(command, **options) as screen:
        screen.wait(timeout_s)
    return screen


def _shows(text: str, pattern: str | re.Pattern[str]) -> bool:
    return pattern in text if isinstance(pattern, str) else pattern.search(text) is not None


def _environment(variables: Mapping[str, str | None]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in NOT_THE_CALLERS}
    merged = {**kept, "TERM": "xterm-256color", **variables}
    return {name: value for name, value in merged.items() if value is not None}
