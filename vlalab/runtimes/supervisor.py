"""Keep one service running. A line of JSON on stdin specifies it: see `vlalab.runtimes.local.launch`.

Run as `python -m vlalab.runtimes.supervisor STATE-FILE`.
It starts the command, writes its output to a rotated log, restarts it when it ends (Compose's rule, growing pauses),
and stops it on SIGTERM with its grace period. Its state file, named on its command line, identifies the
processes. With "attached", it stops when stdin is closed: then its starter has ended, even by kill -9.
It survives a full disk: log output is dropped, and the state file is written later.
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
from collections.abc import Callable
from pathlib import Path

from vlalab.host.paths import ROOT
from vlalab.host.processes import die_with_parent, identify
from vlalab.runtimes import state_files
from vlalab.runtimes.logs import Log

PAUSE_S = (0.5, 30.0)  # before a restart: first and longest
STEADY_S = 60.0  # after this run time the pause is reset
POLL_S = 0.1


class SupervisedProcess:
    """One command and its state file."""

    def __init__(self, state_path: Path, spec: dict) -> None:
        self.spec, self.record, self.state_path = spec, spec["record"], state_path
        self.log = Log(Path(spec["log_path"]))
        self.stopping, self.starts = False, 0
        self.is_noted = True  # whether the state file is up to date
        self.last_exit: int | None = None
        self.child: subprocess.Popen[bytes] | None = None
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Run until a stop is requested, or until the command ends and its rule forbids a restart."""

        def request_stop(*_: object) -> None:
            self.stopping = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, request_stop)
        if self.record["attached"]:
            self.selector.register(sys.stdin, selectors.EVENT_READ, "owner")
        pause_s = PAUSE_S[0]
        while not self.stopping:
            started = time.monotonic()
            if (child := self._start_child()) is not None:
                self._wait(lambda child=child: self.stopping or child.poll() is not None)
                if self.stopping:
                    break
                self._drain(child)
                self.last_exit = child.returncode
                self._write_state()
            rule = self.spec["restart"].split(":")[0]
            if not (rule in ("always", "unless-stopped") or (rule == "on-failure" and self.last_exit != 0)):
                break
            pause_s = PAUSE_S[0] if time.monotonic() - started > STEADY_S else pause_s
            self.log.note(f"ended with code {self.last_exit}; restarting in {pause_s:.1f} s")
            self._wait(lambda: self.stopping, pause_s)
            pause_s = min(pause_s * 2, PAUSE_S[1])
        child, grace_s = self.child, self.record["stop_grace_s"]
        if child and child.poll() is None:
            self.log.note("stopping")
            # The child leads its own session, and its pid is not reused before we wait for it.
            os.killpg(child.pid, signal.SIGTERM)
            self._wait(lambda: child.poll() is not None, grace_s)
            if child.poll() is None:
                self.log.note(f"not gone after {grace_s:.0f} s; killing it")
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            self._drain(child)
        with contextlib.suppress(OSError):  # a state file without its process is ignored
            self.state_path.unlink()

    def _start_child(self) -> subprocess.Popen[bytes] | None:
        """Start the command and return its process; None if it cannot be started now, for example without memory."""
        self.starts += 1
        command = self.spec["command"]
        try:
            self.child = subprocess.Popen(
                command, env=self.spec["environment"], cwd=ROOT, start_new_session=True, preexec_fn=die_with_parent(),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            self.child, self.last_exit = None, 127  # as in a shell
            self.log.note(f"cannot start {command[0]}: {error}")
        else:
            assert self.child.stdout is not None
            self.selector.register(self.child.stdout, selectors.EVENT_READ, "output")
            self.log.note(f"started {' '.join(command)} as process {self.child.pid}")
        self._write_state()
        return self.child

    def _wait(self, is_over: Callable[[], bool], seconds: float = float("inf")) -> None:
        """Copy the child's output to the log until `is_over()`, at most for `seconds`."""
        end = time.monotonic() + seconds
        while not is_over() and time.monotonic() < end:
            if not self.is_noted:
                self._write_state()
            for key, _ in self.selector.select(POLL_S):
                data = os.read(key.fd, 65536)
                if key.data == "output" and data:
                    self.log.write(data)
                elif not data:
                    self.selector.unregister(key.fileobj)
                    self.stopping |= key.data == "owner"

    def _drain(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        while data := child.stdout.read(65536):
            self.log.write(data)
        with contextlib.suppress(KeyError):  # it may have closed its output long before it ended
            self.selector.unregister(child.stdout)

    def _write_state(self) -> None:
        """Write the state file; on a full disk `_wait` tries again."""
        supervisor, child = identify(os.getpid()), identify(self.child.pid) if self.child else None
        instance = state_files.Instance(
            **self.record, supervisor=supervisor, child=child, starts=self.starts, last_exit=self.last_exit
        )
        self.is_noted = False
        with contextlib.suppress(OSError):
            state_files.write(self.state_path, instance)
            self.is_noted = True


if __name__ == "__main__":
    SupervisedProcess(Path(sys.argv[1]), json.loads(sys.stdin.readline())).run()
