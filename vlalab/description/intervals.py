"""Which numbers make sense, written as mathematics does: "[0, 1)" holds 0 and not 1."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from vlalab.host.console import LabError


@dataclass(frozen=True)
class Interval:
    """An interval of numbers; "" and "(-inf, inf)" are all of them."""

    text: str = "(-inf, inf)"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\[(][^,]+, [^,]+[\])]", self.text):
            raise ValueError(f"interval {self.text!r}; expected something like '[0, 1)'")

    @property
    def ends(self) -> tuple[float, float]:
        """Its lower and its upper end."""
        low, high = self.text[1:-1].split(", ")
        return float(low), float(high)

    def __contains__(self, value: float) -> bool:
        low, high = self.ends
        above = value > low or (self.text[0] == "[" and value == low)
        below = value < high or (self.text[-1] == "]" and value == high)
        return math.isfinite(value) and above and below

    @property
    def words(self) -> str:
        """What is expected, in words."""
        low, high = self.text[1:-1].split(", ")
        if self.text[0] + self.text[-1] == "[]":
            return f"{low} to {high}"
        least = "" if low == "-inf" else f"{low} or more" if self.text[0] == "[" else f"more than {low}"
        most = "" if high == "inf" else f"at most {high}" if self.text[-1] == "]" else f"less than {high}"
        return ", ".join(text for text in (least, most) if text) or "a number such as 7"

    def read(self, label: str, text: str, kind: type[float]) -> float:
        """Returns the number in a text. Raises LabError for none, and for one outside."""
        try:
            value = kind(text)
        except ValueError as error:
            whole = "whole " if kind is int else ""
            raise LabError(f"{label} '{text}' is no {whole}number; expected {self.words}") from error
        if value not in self:
            raise LabError(f"{label} {text} makes no sense; expected {self.words}")
        return value
