"""Keeps one service running; told what to run by a line of JSON on stdin.

Run as `python -m vlalab.runtimes.supervisor STATE-FILE`.
It starts the command, writes its output to a log that is rotated, starts it again when it ends (by compose's restart
rule, with growing pauses), and on SIGTERM stops it with its grace period. Its state file, which its own command line
names, says who runs. With "attached", it stops when stdin is closed: then whoever started it is gone, even by kill -9.
A disk that is full ends nothing: what cannot be written is dropped, or written later.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from vlalab.host.processes import die_with_parent, identify
from vlalab.runtimes import supervised
from vlalab.runtimes.logs import Log
from vlalab.runtimes.supervised import Record

PAUSE_S = (0.5, 30.0)  # before a restart: first, and at most
STEADY_S = 60.0  # a child that ran this long starts the pauses anew
CANNOT_START = 127  # the exit code that a shell gives to it


class Supervisor:
    """One command and its state file. `spec` is what vlalab.runtimes.local writes: see `local.start`."""

    def __init__(self, state_path: Path, spec: dict) -> None:
        self.spec, self.state_path = spec, state_path
        self.log = Log(Path(spec["log_path"]))
        self.stopping = False
        self.is_noted = True  # whether the state file says how things are
        self.starts = 0
        self.last_exit: int | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Runs until told to stop, or until the command ended and is not to be restarted."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        if self.spec["record"]["attached"]:
            self.selector.register(sys.stdin, selectors.EVENT_READ, "owner")
        pause_s = PAUSE_S[0]
        while not self.stopping:
            started = time.monotonic()
            if self._start_child():
                self._watch_child()
            if self.stopping or not self._restarts():
                break
            pause_s = PAUSE_S[0] if time.monotonic() - started > STEADY_S else pause_s
            self.log.note(f"ended with code {self.last_exit}; starting again in {pause_s:.1f} s")
            self._sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S[1])
        self._stop_child()
        with contextlib.suppress(OSError):  # it says who ran, and is known to be wrong by that
            self.state_path.unlink()

    def _ask_to_stop(self, *_: object) -> None:
        self.stopping = True

    def _restarts(self) -> bool:
        rule = self.spec["restart"].split(":")[0]
        return rule in ("always", "unless-stopped") or (rule == "on-failure" and self.last_exit != 0)

    def _start_child(self) -> bool:
        """Returns whether the command could be started; for want of memory or processes it may be, later."""
        self.starts += 1
        try:
            self.child = subprocess.Popen(
                self.spec["command"], env=self.spec["environment"], cwd=self.spec["folder"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=die_with_parent(),
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            self.child, self.last_exit = None, CANNOT_START
            self.log.note(f"cannot start {self.spec['command'][0]}: {error}")
            self._write_state()
            return False
        assert self.child.stdout is not None
        self.selector.register(self.child.stdout, selectors.EVENT_READ, "output")
        self.log.note(f"started {' '.join(self.spec['command'])} as process {self.child.pid}")
        self._write_state()
        return True

    def _watch_child(self) -> None:
        """Copies the child's output until it has ended or everything is to stop."""
        assert self.child is not None and self.child.stdout is not None
        while not self.stopping and self.child.poll() is None:
            self._handle_events(0.2)
        if not self.stopping:
            self._drain()
            self._forget(self.child.stdout)
            self.last_exit = self.child.returncode
            self._write_state()

    def _handle_events(self, timeout_s: float) -> None:
        if not self.is_noted:
            self._write_state()
        for key, _ in self.selector.select(timeout_s):
            data = os.read(key.fd, 65536)
            if key.data == "output" and data:
                self.log.write(data)
            elif not data:
                self._forget(key.fileobj)
                self.stopping |= key.data == "owner"

    def _forget(self, source: object) -> None:
        with contextlib.suppress(KeyError):  # it may have closed its output long before it ended
            self.selector.unregister(source)

    def _drain(self) -> None:
        assert self.child is not None and self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)
        while data := self.child.stdout.read(65536):
            self.log.write(data)

    def _sleep(self, pause_s: float) -> None:
        end = time.monotonic() + pause_s
        while not self.stopping and time.monotonic() < end:
            self._handle_events(0.05)

    def _stop_child(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        self.log.note("stopping")
        _signal_group(self.child.pid, signal.SIGTERM)
        grace_s = self.spec["stop_grace_s"]
        end = time.monotonic() + grace_s
        while self.child.poll() is None and time.monotonic() < end:
            self._handle_events(0.05)
        if self.child.poll() is None:
            self.log.note(f"not gone after {grace_s:.0f} s; killing it")
            _signal_group(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self._drain()

    def _write_state(self) -> None:
        """Says who runs. Where the disk is full that is tried again with the next event, and until then wrong."""
        me = identify(os.getpid())
        assert me is not None
        child = identify(self.child.pid) if self.child else None
        processes = {"supervisor": me, "child": child, "starts": self.starts, "last_exit": self.last_exit}
        try:
            supervised.write(self.state_path, Record(**self.spec["record"], **processes))
            self.is_noted = True
        except OSError as error:
            if self.is_noted:
                self.log.note(f"cannot write {self.state_path} ({error.strerror}); trying again")
            self.is_noted = False


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Signals the child and what it started: it leads a session of its own, and is ours until we have waited for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


if __name__ == "__main__":
    Supervisor(Path(sys.argv[1]), json.loads(sys.stdin.readline())).run()
