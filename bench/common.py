"""The harness of every benchmark: time several sides alternately, print a table and machine-readable FIGURE lines."""

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
    """Return a parser with --quick, whose help is `quick`."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


class Timings(dict[str, list[float]]):
    """Seconds per call of each side, round by round."""

    def ms(self, side: str) -> float:
        """Return the median of a side in milliseconds."""
        return median_ms(self[side])

    def ratio(self, slow: str, fast: str) -> float:
        """Return the ratio of two sides' times: the median over the rounds."""
        return statistics.median(a / b for a, b in zip(self[slow], self[fast], strict=True))

    def show(self, title: str) -> None:
        """Print a table; ratios are of the first side over each."""
        print(f"\n{title}: medians of {len(next(iter(self.values())))} alternating rounds")
        width = max(map(len, self))
        for side, seconds in self.items():
            p10, p90 = (1e3 * sorted(seconds)[int(share * (len(seconds) - 1))] for share in (0.1, 0.9))
            ratio = self.ratio(next(iter(self)), side)
            print(f"  {side:{width}} {self.ms(side):10.3f} ms   p10 {p10:10.3f}   p90 {p90:10.3f}   {ratio:7.2f} x")


def interleaved(
    sides: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
    calls: int = 1,
) -> Timings:
    """Time every side once per round, in random order: a busy machine slows all of them equally.

    The order is random because a side runs faster after one that leaves the processor cool.

    Args:
        clock: `time.process_time` for sides that compute only in this process.
        before: called before every side, untimed.
        calls: the number of steps per call of a side; the seconds are per step.
    """
    for _ in range(warmup):
        for side in sides.values():
            before()
            side()
    seconds = Timings({name: [] for name in sides})
    rng = random.Random(0)
    for _ in range(rounds):
        for name in rng.sample(list(sides), len(sides)):
            before()
            start = clock()
            sides[name]()
            seconds[name].append((clock() - start) / calls)
    return seconds


def replace_attributes(owner: object, **values: object) -> None:
    """Set existing attributes of `owner`. Raises AttributeError for a missing one: both sides would be the same."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)


def median_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(seconds) * 1e3


def figure(name: str, value: float, unit: str, target: str, quick: bool = False) -> bool:
    """Print a result as its FIGURE line and return whether it meets the target, such as ">=1.35" ("none": always).

    quick: the target also holds with --quick, which measures the same in fewer rounds; otherwise --quick has no target.
    """
    if "--quick" in sys.argv[1:] and not quick:
        target = "none"
    print(f"FIGURE name={name} value={value:.4g} unit={unit} target={target}", flush=True)
    return target == "none" or COMPARE[target[:2]](value, float(target[2:]))
