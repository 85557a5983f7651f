"""What every benchmark shares: interleaved timing of several variants, and the FIGURE lines that programs read."""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping

COMPARE = {">=": operator.ge, "<=": operator.le}


def flags(description: str, quick: str) -> argparse.ArgumentParser:
    """Returns a benchmark's flags: --quick, with what it does then."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Returns seconds per call of every variant, measured in turns so that a busy machine slows all of them alike.

    The order of a turn is drawn anew each time: after one that leaves the processor cool the next runs faster. clock:
    `time.process_time` for what computes in this process alone. before: called before every variant, untimed.
    """
    for _ in range(warmup):
        for variant in variants.values():
            before()
            variant()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(variants), len(variants)):
            before()
            start = clock()
            variants[name]()
            seconds[name].append(clock() - start)
    return seconds


def replace_attributes(owner: object, **values: object) -> None:
    """Sets attributes that `owner` has. Raises AttributeError for another: both sides would run the same code."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)


def median_ms(seconds: list[float]) -> float:
    """Returns the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def meets(value: float, target: str) -> bool:
    """Returns whether a value meets a target such as ">=1.35". Raises ValueError for another form."""
    compare = COMPARE.get(target[:2])
    if compare is None:
        raise ValueError(f"target {target!r} is no direction and number; expected one like '>=1.35' or '<=20'")
    return compare(value, float(target[2:]))


def figure(name: str, value: float, unit: str, target: str, quick: bool = False) -> bool:
    """Prints a result as its FIGURE line and returns whether it meets the target.

    quick: the target holds with --quick too, which measures the same in fewer rounds; else that has no target to miss.
    """
    if "--quick" in sys.argv[1:] and not quick:
        target = "none"
    print(f"FIGURE name={name} value={value:.4g} unit={unit} target={target}", flush=True)
    return target == "none" or meets(value, target)
