"""Processes identified by pid, start time and boot id, so a reused pid is never mistaken for ours.

psutil is not used: it derives the start time from the clock, which changes when the clock is set.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vlalab.host.paths import ROOT

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Identity:
    """A process: its pid, its start in clock ticks since boot, and the boot."""

    pid: int
    start_ticks: int
    boot_id: str

    def is_alive(self) -> bool:
        """Return whether exactly this process still runs (a zombie does not)."""
        return identify(self.pid) == self

    def belongs_to_caller(self) -> bool:
        """Return whether exactly this process still runs and belongs to this user."""
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError:
            return False
        effective = next(line.split()[2] for line in lines if line.startswith("Uid:"))
        return int(effective) == os.geteuid() and self.is_alive()

    def send(self, number: signal.Signals) -> bool:
        """Send a signal if exactly this process still runs and belongs to this user. Return whether it was sent."""
        with suppress(ProcessLookupError):
            if self.belongs_to_caller():
                os.kill(self.pid, number)
                return True
        return False

    def wait_gone(self, timeout_s: float) -> bool:
        """Return whether the process ended within the time."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def identify(pid: int) -> Identity | None:
    """Return the process with that pid; None if there is none, or only a zombie."""
    fields = stat_fields(pid)
    if not fields or fields[0] in "ZX":
        return None
    return Identity(pid, int(fields[19]), Path("/proc/sys/kernel/random/boot_id").read_text().strip())


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks: proc_pid_stat(5), from the state on.

    Empty for a process that has ended.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command(pid: int) -> list[str]:
    """Return the command line of a process; empty if there is none."""
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return []


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """Return a preexec_fn: the child gets that signal when its parent ends, also by kill -9."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def request_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return request_signal


def supervise(
    command: list[str], variables: Mapping[str, str], directory: Path = ROOT,
    deliver: Callable[[int], bool] = lambda number: False,
) -> int:  # fmt: skip
    """Run a command to its end and return its exit code; signals to this process are forwarded to it.

    The command gets its own session, so Ctrl-C reaches it once, through this process. deliver: may send a signal
    elsewhere (into a container) and return True; otherwise the command gets it.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if process is None:
            early.append(number)
        elif not deliver(number):
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        process = subprocess.Popen(
            command, env=variables, cwd=directory, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=die_with_parent(),
        )  # fmt: skip
        for number in early:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
