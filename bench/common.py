"""What every benchmark shares: interleaved timing of several variants, and the FIGURE lines that programs read."""

from __future__ import annotations

import argparse
import operator
import random
import statistics
import time
from collections.abc import Callable, Mapping

COMPARE = {">=": operator.ge, "<=": operator.le}


def flags(description: str, quick: str) -> argparse.ArgumentParser:
    """Returns a benchmark's flags: --quick, with what it does then."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def interleaved(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Returns seconds per call of every variant, measured in turns so that a busy machine slows all of them alike.

    The order of a turn is drawn anew each time: after one that leaves the processor cool the next runs faster. clock:
    `time.process_time` for what computes in this process alone.
    """
    for _ in range(warmup):
        for variant in variants.values():
            variant()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(variants), len(variants)):
            start = clock()
            variants[name]()
            seconds[name].append(clock() - start)
    return seconds


def median_ms(seconds: list[float]) -> float:
    """Returns the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def meets(value: float, target: str) -> bool:
    """Returns whether a value meets a target such as ">=1.35". Raises ValueError for another form."""
    compare = COMPARE.get(target[:2])
    if compare is None:
        raise ValueError(f"target {target!r} is no direction and number; expected one like '>=1.35' or '<=20'")
    return compare(value, float(target[2:]))


def figure(name: str, value: float, unit: str, target: str) -> bool:
    """Prints a result as its FIGURE line and returns whether it meets the target."""
    print(f"FIGURE name={name} value={value:.4g} unit={unit} target={target}", flush=True)
    return meets(value, target)
