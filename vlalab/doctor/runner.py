"""Run the checks in parallel, each within its time limit. A check that fails or hangs affects no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from vlalab.doctor.check import GROUPS, REGISTERED, Check, CheckResult, Context, warn
from vlalab.doctor.checks import docker, graphics, host, network, nvidia, project, volume  # noqa: F401  they register
from vlalab.host.console import LabError

LATE = "try again when the machine is less busy"


def checks() -> list[Check]:
    """Return every check in the order of the table."""
    return sorted(REGISTERED, key=lambda check: GROUPS.index(check.group))


def checks_by_id(ids: Sequence[str]) -> list[Check]:
    """Return the checks with those ids."""
    return [check for check in checks() if check.id in ids]


def run(selected: Sequence[Check], context: Context, limit_s: float = float("inf")) -> list[CheckResult]:
    """Return the result of each check, in their order. limit_s: upper bound on each check's own limit."""
    results: dict[str, CheckResult] = {}

    def run_check(check: Check) -> None:
        results.setdefault(check.id, _run(check, context))

    # Daemon threads, since a check that hangs must not keep the process alive.
    threads = [threading.Thread(target=run_check, args=(check,), daemon=True) for check in selected]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for check, thread in zip(selected, threads, strict=True):
        limit = min(max(check.limit_s, check.named_limit_s if context.environments else 0.0), limit_s)
        thread.join(max(0.0, started + limit - time.monotonic()))
        error = f"no answer within {limit:g} s"
        results.setdefault(check.id, CheckResult(check, warn(error, fix="", hint=LATE), limit, error))
    return [results[check.id] for check in selected]


def _run(check: Check, context: Context) -> CheckResult:
    started, error = time.monotonic(), ""
    try:
        finding = check.run(context)
    except LabError as lab_error:
        finding, error = warn(lab_error.text, fix=""), lab_error.text
    except TimeoutError as late:
        finding, error = warn(str(late), fix="", hint=LATE), str(late)
    except Exception as bug:  # a bug in a check must not take the others along
        error = f"{type(bug).__name__}: {bug}"
        finding = warn(f"the check itself failed ({error})", fix="", hint="report it with ./lab doctor --json")
    return CheckResult(check, finding, time.monotonic() - started, error)
