"""Runs the images' own tests beside the other tests: an image's begin when it is built, and who wants to know waits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field

from tests.docker.lab import Done, Lab

MOST_S = 2760  # a little more than `./lab test` itself gives them


@dataclass
class Beside:
    """`./lab test NAME --runtime docker` of images, at most `pool`'s number at a time. Those of `names`, no others."""

    lab: Lab
    say: Callable[[str], None]
    pool: ThreadPoolExecutor
    names: set[str]
    found: dict[str, Future[Done]] = field(default_factory=dict)
    running: list[subprocess.Popen] = field(default_factory=list)

    def begin(self, name: str) -> None:
        """Begins an image's tests, or lets them wait for their turn. They are begun once."""
        if name in self.names and name not in self.found:
            self.found[name] = self.pool.submit(self._run, name)

    def _run(self, name: str) -> Done:
        with self.lab.started("test", name, "--runtime", "docker") as process:
            self.running.append(process)
            output, _ = process.communicate(timeout=MOST_S)
        self.say(f"{name}: {(output.splitlines() or ['it said nothing'])[-1]}")
        return Done(process.returncode, output)

    def wait(self, name: str) -> None:
        """Returns when an image's tests have ended, however they did; at once where they are not to run."""
        wait_for([self.found[name]] if name in self.found else [])

    def result(self, name: str) -> Done:
        """Returns what an image's tests came to, once they have ended."""
        return self.found[name].result()

    def stop(self) -> None:
        """Ends those that run, which nobody waits for any more, and lets no other one begin."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        self.pool.shutdown()
