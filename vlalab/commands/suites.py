"""Evaluate several suites with one command: one run per suite, and a table of all at the end.

The runs are called SUITE-NAME, so one NAME (--run-id) resumes all of them.
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
from vlalab.host.console import LabError, log_info
from vlalab.runtimes import interface

NAMED = ("--resume", "--run-id")  # the flags that name a run


def select(names: Sequence[str]) -> list[str]:
    """Return the distinct suites of those names; "all" is the published table of the default benchmark.

    Raise LabError for suites of several benchmarks, which share no table.
    """
    table = manifests.benchmarks()[manifests.default_job()].table
    selected = list(dict.fromkeys(suite for word in names for suite in (table if word == "all" else (word,))))
    if len({manifests.job_of(suite) for suite in selected}) > 1:
        raise LabError(f"{', '.join(selected)} belong to several benchmarks; evaluate one benchmark at a time")
    return selected


def run(request: EvaluationRequest, suites: Sequence[str], typed: Sequence[str]) -> int:
    """Evaluate every suite and print the table of several; return the exit code of the first that failed, else 0.

    typed: the command line ("eval", …), for the message how to resume.
    """
    if len(suites) == 1:
        return evaluation.run(request)
    name = _name(request, suites)
    flags = tuple(_without_names(request.flags))
    typed_flags = _without_names([word for word in typed[1:] if word not in ("all", *manifests.suites())])
    code, ids = 0, []
    for number, suite in enumerate(suites, 1):
        log_info(f"suite {number} of {len(suites)}: {suite}")
        ids.append(f"{suite}-{name}")
        suite_request = replace(request, suite=suite, flags=(*flags, "--run-id", ids[-1]))
        code = evaluation.run(suite_request, shlex.join(["./lab", "eval", suite, *typed_flags]))
        if code:
            break
    if len(ids) > 1:  # its exit code is ignored: the runs are complete
        runtime, _ = interface.choose(request.runtime, [compose.read()[request.job].environment_name])
        runtime.run(request.job, ["python", "-m", evaluation.RUNS, "table", *ids], dry_run=request.dry_run)
    if code and not request.dry_run:
        log_info(f"{'stopped' if code == INTERRUPTED else 'not complete'}; to resume all {len(suites)} suites:")
        log_info("  " + shlex.join(["./lab", "eval", *suites, *typed_flags, "--run-id", name]))
    return code


def _name(request: EvaluationRequest, suites: Sequence[str]) -> str:
    """Return the common part of the runs' names: --run-id, the last one for --resume, or a new one."""
    flags = dict(zip(request.flags, [*request.flags[1:], ""], strict=True))
    if "--run-id" in flags:
        return flags["--run-id"]
    if not flags.get("--resume", "--").startswith("--") and flags["--resume"]:
        raise LabError("--resume NAME is for one suite; with several use --run-id NAME, or --resume without a name")
    policy, runs = evaluation.name_of_policy(request), paths.volume() / "runs"
    numbers: dict[str, list[int]] = {}
    for suite in suites:
        matches = (re.fullmatch(rf"{suite}-{re.escape(policy)}-(\d+)", path.name) for path in runs.glob(f"{suite}-*"))
        numbers[suite] = [int(match[1]) for match in matches if match]
    if "--resume" in flags:
        if not numbers[suites[0]]:
            raise LabError(f"no run {suites[0]}-{policy}-N found to resume; remove --resume to start a new one")
        return f"{policy}-{max(numbers[suites[0]])}"
    return f"{policy}-{1 + max((number for taken in numbers.values() for number in taken), default=0)}"


def _without_names(flags: Sequence[str]) -> list[str]:
    """Return flags without --resume and --run-id and their values."""
    remaining: list[str] = []
    previous = ""
    for argument in flags:
        is_name = previous in NAMED and not argument.startswith("--")
        previous = argument
        if not is_name and argument.split("=")[0] not in NAMED:
            remaining.append(argument)
    return remaining
