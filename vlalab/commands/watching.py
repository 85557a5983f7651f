"""What happens to an evaluation from outside: its policy is killed for good, or the evaluator itself is."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Sequence
from types import TracebackType

from vlalab.runtimes.running import Instance

INTERVAL_S = {"local": 0.5, "docker": 5.0}  # asking the engine takes 40 ms of a CPU


class Watch:
    """Looks after a policy, or several of it, while its evaluation runs, as a context.

    A policy that nobody will start again would be waited for, for ten minutes. So its end, where no other is left,
    interrupts the evaluation as Ctrl-C does, what is finished is saved, and `is_gone` is true.
    """

    def __init__(self, policies: Sequence[Instance]) -> None:
        self.policies, self.is_gone = policies, False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        if self.policies:
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        """Takes up the interrupt that it sent itself, should it come when nobody passes it on."""
        self._over.set()
        if self.policies:
            self._thread.join()
        return self.is_gone and kind is KeyboardInterrupt

    def _look(self) -> None:
        while not self._over.wait(INTERVAL_S[self.policies[0].runtime]):
            if all(one.has_ended() for one in self.policies):
                self.is_gone = True
                os.kill(os.getpid(), signal.SIGINT)
                return


def why_killed(code: int) -> str:
    """Returns what an exit code says about a death by signal, "" for a program that ended by itself."""
    known = {int(number): number.name for number in signal.Signals}
    if (number := code - 128) not in known or code == 128 + signal.SIGINT:
        return ""
    killed = number == signal.SIGKILL
    return known[number] + (", by hand or by the kernel for want of memory (`dmesg` tells)" if killed else "")


def resume_line(typed: str) -> str:
    """Returns the command line that goes on with what a command line began."""
    words = shlex.split(typed)
    named = any(word.split("=")[0] in ("--resume", "--run-id") for word in words)
    return typed if named else f"{typed} --resume"
