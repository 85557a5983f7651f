"""Runs checks side by side, each within its time; one that breaks or hangs is told and spoils nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Queue

from vlalab.doctor.types import Case, Check, Result, skip, warn
from vlalab.host.console import LabError

NOT_ASKED = "not for what was asked"
AGAIN = "look again when the machine is less busy"


def run(checks: Sequence[Check], case: Case, limit_s: float | None = None) -> list[Result]:
    """Returns what each check found, in their order. limit_s: the most that any may take, beside its own limit."""
    done: Queue[tuple[Check, Result]] = Queue()
    limits = {one.id: min(_limit(one, case), limit_s or 1e9) for one in checks}
    began = time.monotonic()
    for one in checks:
        threading.Thread(target=lambda check=one: done.put((check, _one(check, case))), daemon=True).start()
    results: dict[str, Result] = {}
    while len(results) < len(checks):
        left = min(began + limits[one.id] for one in checks if one.id not in results) - time.monotonic()
        try:
            check, result = done.get(timeout=max(0.0, left))
            results.setdefault(check.id, result)
        except Exception:  # queue.Empty: whose time is up is told so, and left to itself
            now = time.monotonic() - began
            results |= {
                one.id: _late(one, limits[one.id]) for one in checks if one.id not in results and limits[one.id] <= now
            }
    return [results[one.id] for one in checks]


def _limit(check: Check, case: Case) -> float:
    return max(check.limit_s, check.named_limit_s) if case.environments else check.limit_s


def _one(check: Check, case: Case) -> Result:
    began = time.monotonic()
    try:
        finding, error = check.probe(case) if check.concerns(case) else skip(NOT_ASKED), ""
    except LabError as known:
        finding, error = warn(known.text), known.text
    except TimeoutError as late:
        finding, error = warn(f"not told in time: {late}", hint=AGAIN), str(late)
    except Exception as mistake:  # any: a check must never take the others along
        error = f"{type(mistake).__name__}: {mistake}"
        finding = warn(f"the check itself broke ({error})", hint="report it with ./lab doctor --json")
    return Result(check, finding, time.monotonic() - began, error)


def _late(check: Check, limit: float) -> Result:
    text = f"no answer within {limit:g} s"
    return Result(check, warn(f"not told in time: {text}", hint=AGAIN), limit, text)
