"""`./lab doctor`, and the few checks that a task asks for before it begins."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from vlalab.commands import course, lifecycle
from vlalab.description import compose, gpus, manifests
from vlalab.doctor import fixes, output, runner, selftests
from vlalab.doctor.check import FAIL, Case, Result
from vlalab.engine import images
from vlalab.host.borrowed import endings
from vlalab.host.console import LabError, require_known, say, status

BEFORE_S = 1.8  # what a task waits for its checks


def doctor(names: Sequence[str], in_json: bool, fix: bool, yes: bool, offline: bool) -> int:
    """Examines machine and clone, and each named environment by its own self-test; returns the exit code."""
    require_known("environment", names, manifests.environments())
    case, began = Case(environments=tuple(names), offline=offline), time.monotonic()
    results = examine(case)
    if fix and (done := fixes.apply(results, yes)):
        fresh = {
            one.check.id: one
            for one in runner.run(runner.named(done), Case(environments=case.environments, offline=offline))
        }
        results = output.judge([fresh.get(result.check.id, result) for result in results])
    seconds = time.monotonic() - began
    if in_json:
        print(json.dumps(output.as_json(results, names, seconds), indent=1, default=str))
    else:
        _show(output.lines(results, seconds))
    return output.exit_status(results)


def examine(case: Case) -> list[Result]:
    """Returns what every check found, and the self-test of each environment that was named."""
    results = runner.run(runner.checks(), case)
    for name in case.environments:
        with status(f"self-test of {name}"):
            results += selftests.run(name, case)
    return output.judge(results)


def _show(lines: Sequence[str]) -> None:
    from rich.text import Text  # here, for it takes a fifth of the tool's start

    console = endings.console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)
    for line in lines:
        text = Text(line)
        for verdict, mark in output.MARKS.items():
            if line.startswith(f"  {mark} "):
                text.stylize(output.COLOURS[verdict], 2, 2 + len(mark))
        text.stylize("bold", 0, len(line) if line and not line.startswith((" ", "What")) and line.isalpha() else 0)
        console.print(text)


# --- before a task ------------------------------------------------------------------------------------------

Given = Mapping[str, object]  # a task's flags, read


# Task → the services that it is going to use; what concerns none of their environments is not asked.
USES: dict[str, Callable[[Given], Sequence[str]]] = {
    "up": lambda given: lifecycle.in_order([name for name in given["names"] if name in compose.read()]),
    "train": lambda given: [course.service()],
    "finetune": lambda given: [str(given["model"])],
    "learn": lambda given: [course.service()],
}


def require(task: str, given: Given) -> None:
    """Raises LabError with the first thing that a task cannot go on with; a check that is late stops nothing."""
    services = list(USES.get(task, lambda given: [])(given))
    known = compose.read()
    environments = (
        images.choose(given["names"]) if task == "build" else [known[name].environment_name for name in services]
    )
    known_checks = [check for check in runner.checks() if task in check.before]
    chosen = [check for check in known_checks if check.group != "nvidia" or not _on_cpu(services, given)]
    case = Case(environments=tuple(dict.fromkeys(environments)), no_cache=bool(given.get("no_cache")))
    limit_s = float("inf") if task == "build" else BEFORE_S  # a build takes minutes, and space
    for one in runner.run(chosen, case, limit_s):
        if one.finding.verdict != FAIL:
            continue
        if task == "build" and one.check.group == "nvidia":  # the image may be for another machine
            say(f"a service of it will find no GPU here: {one.finding.text}")
            continue
        cpu = ", or run on the CPU with --gpu none" if one.check.group == "nvidia" else ""
        raise LabError(f"{one.finding.text}{cpu}\n  ./lab doctor says more; --no-check begins all the same")


def _on_cpu(services: Sequence[str], given: Given) -> bool:
    """Returns whether a task leaves GPUs alone: by a flag, or because every service of its is told so."""
    if given.get("gpu") or given.get("device") == "cpu":
        return given.get("gpu") == "none" or given.get("device") == "cpu"
    known = compose.environment_variables()
    return known.get("CUDA_VISIBLE_DEVICES") == "" or (
        bool(services)
        and all(gpus.chosen(name, known) == "none" for name in services if name in compose.gpu_services())
    )
