"""`./lab test`: which parts run, what waits for what, and one sum at the end.

What is independent runs side by side, as many parts at a time as cores and memory allow (`sidebyside.py`). An engine's
tests cover environments, which wait for them; what no image can run waits for nothing, and makes environments that part
`terminal` then uses. Of the attack, requests to policies are timed: they have the machine to themselves when all else
has ended. Those to pages are not, and wait for the environments alone that are made here. What else is not timed mostly
waits for its faults to be noticed: it runs beside all others from the start.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from vlalab.host import lasting
from vlalab.host.console import LabError, say, unknown
from vlalab.testing import inside, plan, programs, sidebyside
from vlalab.testing.plan import How
from vlalab.testing.results import Result, print_sum, skipped
from vlalab.testing.sidebyside import Job

QUICK = ("lint", "host", "contract")
FIRST = "all tests take 20 to 33 min on two quiet cores, and the downloads besides; ./lab test --quick takes a few"
WAITING = ("contract",)  # its services wait for clients that are slow on purpose: a quarter of its time is a core's
LONGEST = ("docker", *(name for name, one in plan.ENVIRONMENTS.items() if one.tested_first))
# Families of the attack: beside all other parts, among them, after them and alone.
NOTICED, UNTIMED, TIMED = ("faults", "planted"), ("pages",), ("policies",)


def run(names: list[str], how: How) -> int:
    """Runs the parts of those names (none or "all": every one) and prints the sum. Returns the exit code."""
    chosen = choose(names, how.quick)
    if how.nightly:
        os.environ[inside.NIGHTLY] = "1"  # for every process below: tests/conftest.py reads it
    minutes = [f"--minutes {how.minutes:g}"] if how.minutes else []
    is_all = chosen == [*plan.PARTS]
    if not how.quick:
        programs.install(chosen)
    with lasting.announced("test", *([] if is_all else chosen), *minutes, first=FIRST if is_all else ""):
        results = sidebyside.run(jobs(chosen, how), sidebyside.at_once())
    if how.quick and not names:
        results.append(skipped("others", f"--quick runs {', '.join(QUICK)} only"))
    return print_sum(results, programs.advice(chosen))


def choose(names: list[str], quick: bool = False) -> list[str]:
    """Returns the parts of those words in the order in which they run; none and "all" mean every one."""
    for name in names:
        if name not in [*plan.PARTS, "all"]:
            raise LabError(unknown("part", name, ["all", *plan.PARTS]))
    wanted = names if names and "all" not in names else QUICK if quick else tuple(plan.PARTS)
    return [name for name in plan.PARTS if name in wanted]


def jobs(chosen: Sequence[str], how: How) -> list[Job]:
    """Returns what runs for those parts, in the order in which it is shown."""
    outside = [_outside(name) for name in chosen if name in plan.HOMES and plan.has_outside(name, how)]
    made = {job.name for job in outside}  # the environments that those make, part `terminal` uses
    found = [_part(name, chosen, how, made) for name in chosen if name != "chaos"] + outside
    if "chaos" not in chosen:
        return found
    if not found or how.minutes:
        return [*found, _attack("chaos", how, after={job.name for job in found})]
    found.append(replace(_attack("chaos beside", how, *NOTICED), is_waiting=True))
    found.append(_attack("chaos pages", how, *UNTIMED, after=made))
    return [*found, _attack("chaos", how, *TIMED, after={job.name for job in found})]


def _part(name: str, chosen: Sequence[str], how: How, outside: set[str]) -> Job:
    def run(done: Sequence[Result]) -> list[Result]:
        covered = name in [result.name for result in done]  # by part `docker`, inside its image
        return [] if covered else _run(name, lambda: plan.PARTS[name](how))

    after = {"docker"} & set(chosen) if name in plan.ENVIRONMENTS else outside if name == "terminal" else set()
    return Job(name, run, after, name in LONGEST, name in WAITING)


def _outside(name: str) -> Job:
    own = f"{name} outside"
    return Job(own, lambda done: _run(own, lambda: [plan.outside(name)]))


def _attack(name: str, how: How, *families: str, after: set[str] = frozenset()) -> Job:
    return Job(name, lambda done: _run(name, lambda: [plan.chaos(how, *families)]), set(after))


def _run(name: str, part: Callable[[], list[Result]]) -> list[Result]:
    """Returns what came of a part, with the time that it took; one that cannot run at all counts as one failure."""
    say(f"part '{name}'")
    started, used = time.monotonic(), _cpu_seconds()
    try:
        results = part()
    except LabError as error:
        say(f"part '{name}' failed: {error}")
        results = [Result(name, failed=1)]
    if results and not results[0].seconds:
        results[0].seconds = time.monotonic() - started
    if results and not results[0].cpu_seconds:
        results[0].cpu_seconds = _cpu_seconds() - used
    return results


def _cpu_seconds() -> float:
    """Returns the processor time of this process and of all below it that was waited for, in s."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)
