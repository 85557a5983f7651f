"""How far the installer is, by its own words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from vlalab.host.memory import spell

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
BEGUN = re.compile(r"Downloading (\S+) \(([\d.]+)([KMG]?i?B)\)")
ENDED = re.compile(r"Downloaded (\S+)")


class Downloads:
    """Reads uv's lines. It names large packages only, each when its download begins and ends."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sizes: dict[str, float] = {}  # bytes, by package
        self.done: set[str] = set()
        self._clock, self._started = clock, clock()

    def take(self, line: str) -> str:
        """Returns what to show after one of uv's lines: how much is there and how long the rest takes, else the line.

        What has not begun yet is not known, so the sum may grow; uv begins dozens at once.
        """
        if begun := BEGUN.search(line):
            self.sizes.setdefault(begun[1], float(begun[2]) * UNITS[begun[3]])
        elif (ended := ENDED.search(line)) and ended[1] in self.sizes:
            self.done.add(ended[1])
        elif line.startswith("Installed "):  # the longest part of a large environment's follows, silently
            return "compiling bytecode"
        else:
            return line.strip()
        return self._far()

    def _far(self) -> str:
        whole, there = sum(self.sizes.values()), sum(self.sizes[name] for name in self.done)
        if not there or there == whole:
            return f"{spell(round(there))} of {spell(round(whole))}"
        left_s = (whole - there) / there * (self._clock() - self._started)
        return f"{spell(round(there))} of {spell(round(whole))}, about {left_s:.0f} s left"
