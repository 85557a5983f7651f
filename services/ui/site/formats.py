"""Numbers, sizes, durations and dates as every page shows them: Jinja filters of the same names."""

from __future__ import annotations

import time
from collections.abc import Sequence

from jinja2 import pass_context
from markupsafe import Markup

DASH = "–"
UNITS_S = (86400, 3600, 60, 1)
UNITS = {"en": (" d", " h", " min", " s"), "ko": ("일", "시간", "분", "초")}
MIN_EPISODES = 3  # fewer say nothing about a rate: no interval is drawn


def percent(rate: float | None) -> str:
    """Return a rate in [0, 1] like "80.0 %"; a dash for None."""
    return DASH if rate is None else f"{100 * rate:.1f} %"


def interval(ends: Sequence[float]) -> str:
    """Return an interval of rates in [0, 1] like "49.0–94.3 %"."""
    return f"{100 * ends[0]:.1f}–{100 * ends[1]:.1f} %"


def points(difference: float) -> str:
    """Return a difference of two rates in percentage points, with its sign."""
    return f"{100 * difference:+.1f}"


def number(value: float) -> str:
    """Return a count with separators, like "12,345"."""
    return f"{value:,}"


def size(count: float) -> str:
    """Return bytes in a decimal unit, like "1.2 GB"."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if count >= 0.95 * factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1e3:,.0f} kB"


def duration(seconds: float | None, language: str) -> str:
    """Return a duration in its two largest units, like "1 h 5 min"; a dash for None."""
    if seconds is None:
        return DASH
    rest = round(seconds)
    parts: list[tuple[int, str]] = []
    for unit_s, unit in zip(UNITS_S, UNITS[language], strict=True):
        count, rest = divmod(rest, unit_s)
        if count or (parts and len(parts) < 2) or (unit_s == 1 and not parts):
            parts.append((count, unit))
    return " ".join(f"{count}{unit}" for index, (count, unit) in enumerate(parts[:2]) if count or not index)


def date(at: float) -> Markup:
    """Return a time in s since 1970 in this machine's zone, like "2026-11-27 05:41 UTC"."""
    local = time.localtime(at)
    text, exact = time.strftime("%Y-%m-%d %H:%M %Z", local), time.strftime("%Y-%m-%dT%H:%M:%S%z", local)
    return Markup('<time datetime="{}">{}</time>').format(exact, text)


def code(text: str) -> Markup:
    """Return a text as HTML, with `backticks` as <code>."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts))


FILTERS = {
    "percent": percent, "interval": interval, "points": points, "number": number, "size": size, "date": date,
    "duration": pass_context(lambda context, seconds: duration(seconds, context["language"])),
}  # fmt: skip
