"""One evaluation that is disturbed: a policy service, an evaluator or `./lab eval`, and what can be done to them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import MARK, end_all, running
from tests.libero.harness import ENVIRONMENT, ROOT, wait_for
from tests.ports import free_ports
from vla_common import healthcheck
from vla_evaluation.store.records import StoreError
from vla_evaluation.store.runstore import RunStore

EVALUATOR, WORKER = "services.libero", "vla_evaluation.workers.worker"
POLICY, SUPERVISOR = "services.libero.policies", "vlalab.runtimes.supervisor"
SCENE_S = 120  # a worker that is stopped while it starts or builds a scene is replaced after so long
END_S = 480.0  # far longer than any run here takes on a busy machine, such a worker or two included: past it, it hangs
SUITE = "libero_goal"


@dataclass(frozen=True)
class Plan:
    """What is evaluated: short episodes of one policy, equal however often they are begun."""

    policy: str
    tasks: tuple[int, ...]
    trials: int
    max_steps: int

    @property
    def units(self) -> list[tuple[int, int]]:
        return [(task, episode) for task in self.tasks for episode in range(self.trials)]

    def flags(self) -> list[str]:
        """Return them as the evaluator's flags."""
        tasks = ",".join(map(str, self.tasks))
        return ["--tasks", tasks, "--trials", str(self.trials), "--max-steps", str(self.max_steps)]


PLANS = (
    Plan("oracle", (7,), 10, 100),  # solved every time, in 65 steps
    Plan("random", (0, 7), 6, 40),  # two tasks, never solved
)


class Stage:
    """The processes of one disturbed run, all with one mark. A context manager: it leaves none behind."""

    def __init__(
        self, directory: Path, plan: Plan, workers: int, assets: Path, video: str = "none", lab: Path | None = None
    ):
        self.base, self.plan, self.lab = directory, plan, lab
        self.mark, self.port = secrets.token_hex(8), free_ports(1)[0]
        self.root = directory / "volume" / "runs"
        self.root.mkdir(parents=True)
        self.directory, self.log = self.root / "run", directory / "output.txt"
        self.clock = directory / "clock"
        self.set_clock(0.0)
        self.flags = [
            *plan.flags(), "--workers", str(workers), "--video", video, "--assets", str(assets),
            "--act-timeout-s", "5", "--policy-timeout-s", "60",
            *([] if lab else ["--lease-s", "4", "--start-timeout-s", str(SCENE_S), "--scene-timeout-s", str(SCENE_S)]),
        ]  # fmt: skip
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_) -> None:
        end_all(self.mark)
        if self.process is not None:
            self.process.wait()

    def variables(self) -> dict[str, str]:
        """Return the environment of its processes: a volume and a state folder of their own, the mark, the clock."""
        variables = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("VLALAB_")}
        clock = Path(__file__).with_name("clock")
        return {
            **variables,
            "PYTHONPATH": f"{clock}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}",
            "CHAOS_CLOCK": str(self.clock),
            "VLALAB_VOLUME": str(self.base / "volume"),
            "XDG_STATE_HOME": str(self.base / "state"),
            MARK: self.mark,
        }

    def set_clock(self, shift_s: float) -> None:
        """Lets the wall clock of every process jump to `shift_s` from the real one."""
        with open(self.clock, "r+b" if self.clock.exists() else "wb") as file:
            file.write(struct.pack("d", shift_s))

    # --- policy ---

    def start_policy(self) -> None:
        """Serves the plan's policy and waits until it is ready. With `./lab eval` the lab starts its own."""
        if self.lab is not None:
            return
        arguments = ["-m", POLICY, self.plan.policy, "--port", str(self.port)]
        with open(self.base / "policy.txt", "ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=self.variables(), stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        url = f"http://127.0.0.1:{self.port}/readyz"
        wait_for(lambda: process.poll() is not None or healthcheck.check(url, 2.0)[0], "the policy's readiness", 90)

    def policies(self) -> list[int]:
        return running(self.mark, POLICY)

    # --- evaluator ---

    def start(self) -> None:
        """Start the evaluation, or goes on with it: the command is the same."""
        target = ["--policy", self.plan.policy, "--runtime", "local"]
        command = [str(self.lab), "eval", SUITE, "--no-check", *target]  # a disk of some MB is what is wanted here
        if self.lab is None:
            command = [sys.executable, "-m", EVALUATOR, SUITE, "--policy-url", f"http://127.0.0.1:{self.port}"]
            command += ["--run-dir", str(self.root)]
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [*command, "--run-id", "run", *self.flags], cwd=ROOT, env=self.variables(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def evaluators(self) -> list[int]:
        return running(self.mark, EVALUATOR)

    def workers(self) -> list[int]:
        return running(self.mark, WORKER)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def peek(self, sql: str) -> list[tuple]:
        """Return rows of the run's store while others write to it; none where it cannot be read."""
        with (
            contextlib.suppress(StoreError),
            RunStore(self.directory / "run.sqlite", readonly=True, check=False) as store,
        ):
            return [tuple(row) for row in store.db.execute(sql)]
        return []

    def done(self) -> int:
        return (self.peek("SELECT COUNT(*) FROM episodes WHERE status = 'done'") or [(0,)])[0][0]

    def wait_done(self, count: int) -> bool:
        """Wait until that many episodes are done; False if the evaluation ends before, or all of them are."""
        wait_for(lambda: self.ended() or self.done() >= count, f"episode {count}", END_S)
        return not self.ended() and self.done() < len(self.plan.units)

    def wait_end(self) -> int:
        """Return the exit code; AssertionError where there is none."""
        assert self.process is not None
        wait_for(self.ended, f"the end of the evaluation ({self.output()[-600:]})", END_S)
        return self.process.returncode

    def send_caller(self, number: signal.Signals) -> None:
        """Send a signal to what the user started: `./lab eval`, or the evaluator."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
