"""Which values a lab's settings may have: numbers as intervals, "[0, 1)" holding 0 and not 1.

Each config.py names them in its constant ALLOWED, literals only: `./lab train --set` reads that without running it.
"""

from __future__ import annotations

from collections.abc import Mapping


def holds(interval: str, value: float) -> bool:
    """Returns whether a number lies in an interval."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value > low or (interval[0] == "[" and value == low)
    return above and (value < high or (interval[-1] == "]" and value == high))


def in_words(interval: str) -> str:
    """Returns an interval as a message says it: "[1, inf)" is "at least 1"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    least = f"at least {low:g}" if interval[0] == "[" else f"above {low:g}"
    most = "" if high == float("inf") else f"at most {high:g}" if interval[-1] == "]" else f"below {high:g}"
    return " and ".join(text for text in (least, most) if text)


def check(values: Mapping[str, float], allowed: Mapping[str, str]) -> None:
    """Raises ValueError for the first of these values that lies outside its interval; None is no value."""
    for name, interval in allowed.items():
        if values[name] is not None and not holds(interval, values[name]):
            raise ValueError(f"{name} is {values[name]}; expected {in_words(interval)}")
