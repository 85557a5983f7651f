"""Several suites with one command: a run for each, one after the other, and at the end a table of all of them.

Their runs are called SUITE-NAME, so that one NAME (--run-id) goes on with all of them, wherever it was stopped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

from vlalab.commands import evaluation
from vlalab.commands.evaluation import INTERRUPTED, EvaluationRequest
from vlalab.description import compose, manifests
from vlalab.host import paths
from vlalab.host.console import LabError, say
from vlalab.runtimes import both

NAMED = ("--resume", "--run-id")  # the flags that name a run


def select(names: Sequence[str]) -> list[str]:
    """Returns the suites of those words, each once: "all" is the table of the benchmark that is there by default.

    Raises LabError for suites of two benchmarks, which no table has side by side.
    """
    table = manifests.benchmarks()[manifests.default_job()].table
    selected = list(dict.fromkeys(suite for word in names for suite in (table if word == "all" else (word,))))
    if len({manifests.job_of(suite) for suite in selected}) > 1:
        raise LabError(f"{', '.join(selected)} are of several benchmarks; evaluate those of one at a time")
    return selected


def run(request: EvaluationRequest, suites: Sequence[str], typed: Sequence[str]) -> int:
    """Evaluates every suite and prints the table; returns the exit code of the first that did not end well, else 0.

    typed: the command line, to say what goes on with it.
    """
    name = _name(request, suites)
    flags = tuple(_without_names(request.flags))
    typed_flags = _without_names([word for word in typed[2:] if word not in ("all", *manifests.suites())])
    code, ids = 0, []
    for number, suite in enumerate(suites, 1):
        say(f"suite {number} of {len(suites)}: {suite}")
        ids.append(f"{suite}-{name}")
        suite_request = replace(request, suite=suite, flags=(*flags, "--run-id", ids[-1]))
        code = evaluation.run(suite_request, shlex.join(["./lab", "eval", suite, *typed_flags]))
        if code:
            break
    if len(ids) > 1:  # a table that cannot be made takes nothing away from the runs
        runtime, _ = both.choose(request.runtime, [compose.read()[request.job].environment_name])
        runtime.run(request.job, ["python", "-m", evaluation.RUNS, "table", *ids], dry_run=request.dry_run)
    if code and not request.dry_run:
        resume_command = shlex.join(["./lab", "eval", *suites, *typed_flags, "--run-id", name])
        say(f"{'stopped' if code == INTERRUPTED else 'not complete'}; this goes on with all {len(suites)} suites:")
        say(f"  {resume_command}")
    return code


def _name(request: EvaluationRequest, suites: Sequence[str]) -> str:
    """Returns what the runs of all suites have in common: as told, the last one to go on with, or a new one."""
    flags = dict(zip(request.flags, [*request.flags[1:], ""], strict=True))
    if "--run-id" in flags:
        return flags["--run-id"]
    if not flags.get("--resume", "--").startswith("--") and flags["--resume"]:
        raise LabError("--resume NAME names one run; with several suites give --run-id, or --resume without a name")
    policy = evaluation.name_of_policy(request)
    numbers = {suite: _numbers(suite, policy) for suite in suites}
    if "--resume" in flags:
        if not numbers[suites[0]]:
            raise LabError(f"there is no run {suites[0]}-{policy}-N to go on with; leave --resume out to start")
        return f"{policy}-{max(numbers[suites[0]])}"
    return f"{policy}-{1 + max((n for taken in numbers.values() for n in taken), default=0)}"


def _numbers(suite: str, policy: str) -> list[int]:
    pattern = re.compile(rf"{suite}-{re.escape(policy)}-(\d+)")
    names = (path.name for path in (paths.volume() / "runs").glob(f"{suite}-*"))
    return [int(match[1]) for name in names if (match := pattern.fullmatch(name))]


def _without_names(flags: Sequence[str]) -> list[str]:
    """Returns flags without those that name a run, and what they name."""
    remaining: list[str] = []
    previous = ""
    for argument in flags:
        is_name = previous in NAMED and not argument.startswith("--")
        previous = argument
        if not is_name and argument.split("=")[0] not in NAMED:
            remaining.append(argument)
    return remaining
