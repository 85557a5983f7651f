"""The doctor: how long it takes here, all of it and what a task asks for before it begins.

all      every check, as `./lab doctor --offline` runs them, in a process of its own
up …     the checks before a task, as its process runs them, without the start of Python
worst    the largest share of its time limit that any check took

    python bench/doctor.py [--quick]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from bench.common import figure, flags
from vlalab.commands import examining
from vlalab.doctor import registry, running
from vlalab.doctor.types import Case
from vlalab.host import paths

ENVIRONMENT = "host"
TASKS = {
    "up": {"names": ["openvla"], "gpu": None},
    "eval": {},
    "record": {},
    "train": {"gpu": None, "device": None},
    "finetune": {"model": "gr00t", "gpu": None, "device": None},
    "learn": {"gpu": None},
    "build": {"names": ["openvla"]},
}


def seconds(call) -> float:
    """Returns how long a call took."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def whole() -> None:
    """Runs `./lab doctor` as a person does."""
    command = [sys.executable, "-X", "utf8", "-I", "-m", "vlalab", "doctor", "--json", "--offline"]
    subprocess.run(command, cwd=paths.ROOT, stdout=subprocess.DEVNULL, check=False)


def main() -> None:
    """Prints the figures."""
    rounds = 1 if flags(__doc__.splitlines()[0], "once instead of five times").parse_args().quick else 5
    met = [figure("doctor_all", max(seconds(whole) for _ in range(rounds)), "s", "<=10", quick=True)]
    for task, given in TASKS.items():
        taken = statistics.median(
            seconds(lambda task=task, given=given: examining.require(task, given)) for _ in range(rounds)
        )
        met.append(figure(f"before_{task}", taken, "s", "<=2", quick=True))
    shares = [one.seconds / one.check.limit_s for one in running.run(registry.checks(), Case(offline=True))]
    met.append(figure("worst_share_of_a_limit", max(shares), "1", "<=1", quick=True))
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
