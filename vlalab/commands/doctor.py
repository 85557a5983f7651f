"""`./lab doctor`, and the quick checks before a task."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from vlalab.commands import course, lifecycle
from vlalab.description import compose, gpus, manifests, variants
from vlalab.doctor import output, runner
from vlalab.doctor.check import FAIL, Context
from vlalab.engine import images
from vlalab.host.console import LabError, check_choices, log_info, status
from vlalab.host.shared_code import entrypoint

BEFORE_S = 1.8  # time limit of the checks before a task


def run(names: Sequence[str], in_json: bool, fix: bool, yes: bool, offline: bool) -> int:
    """Check machine and clone, self-test the named environments, print the results; return the exit code."""
    check_choices("environment", names, manifests.environments())
    context, began = Context(environments=tuple(map(variants.select, names)), offline=offline), time.monotonic()
    results = runner.run(runner.checks(), context)
    for name in context.environments:
        with status(f"self-test of {name}"):
            results += runner.run_selftest(name, context)
    results = output.judge(results)
    if fix and (done := runner.apply_fixes(results, yes)):
        context = Context(environments=context.environments, offline=offline)
        rerun = {result.check.id: result for result in runner.run(runner.checks_by_id(done), context)}
        results = output.judge([rerun.get(result.check.id, result) for result in results])
    seconds = time.monotonic() - began
    if in_json:
        print(json.dumps(output.as_json(results, names, seconds), indent=1, default=str))
    else:
        _show(output.lines(results, seconds))
    return output.exit_status(results)


def _show(lines: Sequence[str]) -> None:
    from rich.text import Text  # slow import

    console = entrypoint.console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)
    for line in lines:
        text = Text(line)
        for verdict, mark in output.MARKS.items():
            if line.startswith(f"  {mark} "):
                text.stylize(output.COLOURS[verdict], 2, 2 + len(mark))
        text.stylize("bold", 0, len(line) if line and not line.startswith((" ", "What")) and line.isalpha() else 0)
        console.print(text)


FlagValues = Mapping[str, object]  # parameter name → value
# Task → the services that it uses; checks run for their environments only.
USES: dict[str, Callable[[FlagValues], Sequence[str]]] = {
    "up": lambda values: lifecycle.in_order([name for name in values["names"] if name in compose.read()]),
    "train": lambda values: [course.service()],
    "finetune": lambda values: [str(values["model"])],
    "learn": lambda values: [course.service()],
}


def require(task: str, values: FlagValues) -> None:
    """Raise LabError for the first failed check of a task; checks that time out are ignored."""
    services = list(USES[task](values)) if task in USES else []
    is_build = task == "build"
    variant = str(values.get("variant") or "")
    variables = compose.environment_variables()
    chosen = {variants.variable(name): variant for name in variants.environments()} if variant else {}
    described = compose.read(variables={**variables, **chosen})
    environments = [described[name].environment_name for name in services]
    if is_build:
        environments = images.choose(values["names"], variant)
    if values.get("gpu") or values.get("device") == "cpu":
        no_gpu = values.get("gpu") == "none" or values.get("device") == "cpu"
    else:  # by the settings of all its services
        on_gpu = [name for name in services if name in compose.gpu_services()]
        no_gpu = bool(services) and all(gpus.selection(name, variables) == "none" for name in on_gpu)
        no_gpu = no_gpu or variables.get("CUDA_VISIBLE_DEVICES") == ""
    checks = [c for c in runner.checks() if task in c.before and not (no_gpu and c.group == "nvidia")]
    context = Context(environments=tuple(dict.fromkeys(environments)), no_cache=bool(values.get("no_cache")))
    limit_s = float("inf") if is_build else BEFORE_S  # a build takes minutes; wait for all checks
    for result in runner.run(checks, context, limit_s):
        if result.finding.verdict != FAIL:
            continue
        is_gpu = result.check.group == "nvidia"
        if is_build and is_gpu:  # the image may be built for another machine
            log_info(f"services of this image will have no GPU on this machine: {result.finding.text}")
            continue
        problem = result.finding.text + (", or run on the CPU with --gpu none" if is_gpu else "")
        raise LabError(f"{problem}\n  run ./lab doctor for details, or add --no-check to continue anyway")
