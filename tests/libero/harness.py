"""What the evaluator's tests share: a real policy service and a real evaluator, as processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(ROOT), *(str(package.parents[1]) for package in sorted((ROOT / "shared").glob("*/*_*/__init__.py")))]
    ),
    "PYTHONUNBUFFERED": "1",
}
TIMEOUT_S = 300.0  # of a machine that is very busy; who waits for a process that has ended fails at once


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S, ended: Callable[[], str] = str):
    """Return the first true value of `condition`.

    `ended` returns what a process said that has ended and without which nothing will come true any more, or "".
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        words = ended()  # first: what a process did last counts
        if value := condition():
            return value
        assert not words, f"{what} did not happen before the end of:\n{words}"
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {timeout_s:g} s")


class PolicyService:
    """tests/libero/scripted_policy.py on a port of its own; it can be killed and started again on that port."""

    def __init__(self, log: Path, *options: str):
        self.gate = log.with_suffix(".gate")
        self.log, self.options = log, (*options, "--gate", str(self.gate))
        self.port = 0
        self.start()

    def start(self) -> None:
        self.log.write_text("")
        command = [sys.executable, str(Path(__file__).with_name("scripted_policy.py")), "--port", str(self.port)]
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                [*command, *self.options], stdout=output, stderr=output, env=ENVIRONMENT, start_new_session=True
            )
        self.port = int(wait_for(lambda: self.said(r"listening on http://\S+:(\d+)"), "the policy's start")[1])
        wait_for(lambda: self.said("is ready"), "the policy's readiness")

    def said(self, pattern: str) -> re.Match | None:
        text = self.log.read_text()
        assert self.process.poll() is None, text
        return re.search(pattern, text)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self, *episodes: int) -> None:
        """Answers nothing from mid-episode on in those episodes, and so keeps them there, until `release` or `hold`."""
        new = self.gate.with_suffix(".new")
        new.write_text(" ".join(map(str, episodes)))
        new.replace(self.gate)

    def release(self) -> None:
        self.gate.unlink(missing_ok=True)

    @contextlib.contextmanager
    def holding(self, episode: int) -> Iterator[None]:
        """Hold that episode from here on, and releases at the end what is held then."""
        self.hold(episode)
        try:
            yield
        finally:
            self.release()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> PolicyService:
        return self

    def __exit__(self, *_) -> None:
        self.kill()


class Evaluation:
    """One evaluator process working on `folder`."""

    module = "services.libero"
    program: tuple[str, ...] = ()
    name_flag = "--run-id"

    def __init__(self, root: Path, run_id: str, *arguments: str, suite: str = "libero_goal", **variables: str):
        self.directory = root / run_id
        self.log = root.parent / f"{run_id}.{time.monotonic_ns()}.txt"
        command = [sys.executable, "-m", self.module, *self.program, suite, "--run-dir", str(root)]
        if "--resume" not in arguments:
            arguments = (self.name_flag, run_id, *arguments)
        root.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env={**ENVIRONMENT, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self) -> Evaluation:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        return self.log.read_text()

    def end(self, code: int = 0) -> str:
        """Wait for the evaluator's end and returns what it printed."""
        self.process.wait(TIMEOUT_S)
        logs = "".join(path.read_text() for path in self.directory.glob("logs/*.log"))
        assert self.process.returncode == code, f"{self.output}\n{logs}"
        return self.output

    def peek(self, sql: str) -> list:
        """Return rows of the run's store while others write to it; none before it exists."""
        with contextlib.suppress(StoreError), RunStore(self.directory / "run.sqlite", readonly=True) as store:
            return [tuple(row) for row in store.db.execute(sql)]
        return []

    def wait_for(self, condition: Callable[[], object], what: str):
        """As `wait_for`, no longer than the evaluator lives."""
        return wait_for(condition, what, ended=lambda: "" if self.process.poll() is None else self.output or "nothing")

    def wait_mid_episode(self, done: int = 1, steps: int = 3) -> str:
        """Wait until `done` episodes are finished and another is under way; returns the name of its worker.

        The policy has to hold that episode: one that goes on may be over before anybody has looked.
        """
        sql = (
            f"SELECT worker FROM episodes WHERE status = 'leased' AND steps >= {steps} "
            f"AND (SELECT COUNT(*) FROM episodes WHERE status = 'done') >= {done}"
        )
        return self.wait_for(lambda: self.peek(sql), "an episode under way")[0][0]

    def workers(self) -> dict[str, int]:
        """Return the process ids of this run's workers by name."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().decode(errors="replace").split("\0")
                if str(self.directory) in words and any(word.endswith(".worker") for word in words):
                    found[words[words.index(str(self.directory)) + 1]] = int(path.parent.name)
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class LightEvaluation(Evaluation):
    """One whose episodes have LIBERO's plan and a simulator that costs next to nothing: tests/libero/light."""

    module = "tests.libero.light"


class Recording(Evaluation):
    """One recorder process working on `folder`."""

    program = ("record",)
    name_flag = "--name"


class LightRecording(Recording):
    """As `LightEvaluation`."""

    module = LightEvaluation.module


def results(directory: Path) -> dict[tuple[int, int], tuple]:
    """Return what each finished episode did, by (task, episode): outcome, steps and hashes."""
    with RunStore(directory / "run.sqlite", readonly=True) as store:
        rows = [(f.task, f.episode, f) for f in store.finished()]
    assert len({(task, episode) for task, episode, _ in rows}) == len(rows)
    keys = ("start_hash", "end_hash", "actions_hash")
    return {(task, episode): (f.success, f.steps, *(f.result[k] for k in keys)) for task, episode, f in rows}
