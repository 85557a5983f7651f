"""All checks, and how they run: in parallel, each within its time limit; one that fails or hangs affects no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from vlalab.doctor import check
from vlalab.doctor.check import GROUPS, Case, Check, Result, warn
from vlalab.doctor.checks import docker, graphics, host, network, nvidia, project, volume  # noqa: F401  they register
from vlalab.host.console import LabError

LATE = "try again when the machine is less busy"


def checks() -> list[Check]:
    """Return every check in the order of the table."""
    return sorted(check.REGISTERED, key=lambda one: GROUPS.index(one.group))


def named(ids: Sequence[str]) -> list[Check]:
    """Return the checks with those ids."""
    return [one for one in checks() if one.id in ids]


def run(selected: Sequence[Check], case: Case, limit_s: float = float("inf")) -> list[Result]:
    """Return the result of each check, in their order. limit_s: upper bound on each check's own limit."""
    results: dict[str, Result] = {}

    def run_one(one: Check) -> None:
        results.setdefault(one.id, _run(one, case))

    # Daemon threads, since one that hangs must not keep the process alive.
    threads = [threading.Thread(target=run_one, args=(one,), daemon=True) for one in selected]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for one, thread in zip(selected, threads, strict=True):
        limit = min(max(one.limit_s, one.named_limit_s if case.environments else 0.0), limit_s)
        thread.join(max(0.0, started + limit - time.monotonic()))
        error = f"no answer within {limit:g} s"
        results.setdefault(one.id, Result(one, warn(error, fix="", hint=LATE), limit, error))
    return [results[one.id] for one in selected]


def _run(one: Check, case: Case) -> Result:
    started, error = time.monotonic(), ""
    try:
        finding = one.run(case)
    except LabError as known:
        finding, error = warn(known.text), known.text
    except TimeoutError as late:
        finding, error = warn(str(late), fix="", hint=LATE), str(late)
    except Exception as bug:  # a bug in one check must not take the others along
        error = f"{type(bug).__name__}: {bug}"
        finding = warn(f"the check itself failed ({error})", fix="", hint="report it with ./lab doctor --json")
    return Result(one, finding, time.monotonic() - started, error)
