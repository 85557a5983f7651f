"""The statistics of success rates: intervals for one run, a paired test and interval for two."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist
from typing import Any


def z_value(confidence: float) -> float:
    """Return the two-sided normal quantile, 1.96 for a confidence of 0.95."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1; use e.g. 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a success rate, both ends in [0, 1]; (0, 1) without trials.

    Unlike the textbook p ± z·s it stays inside [0, 1] and is honest for 0 of n and n of n.
    Source: E. B. Wilson, JASA 22 (1927).
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; expected 0 <= successes <= trials")
    if trials == 0:
        return 0.0, 1.0
    z = z_value(confidence)
    rate = successes / trials
    centre = rate + z * z / (2 * trials)
    spread = z * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if successes == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if successes == trials else min(1.0, (centre + spread) / scale)
    return low, high


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Return the two-sided exact p-value of McNemar's test from the two discordant counts: under "no difference" each
    discordant pair is a fair coin.
    """
    if only_a < 0 or only_b < 0:
        raise ValueError(f"discordant counts ({only_a}, {only_b}) must not be negative")
    pairs = only_a + only_b
    tail = sum(comb(pairs, k) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / 2**pairs)


def fisher_exact(successes_a: int, trials_a: int, successes_b: int, trials_b: int) -> float:
    """Return the two-sided p-value of Fisher's exact test that two independent success rates are equal.

    It sums the probabilities of all outcomes that are at most as likely as the observed one, in exact integers.
    """
    for successes, trials in ((successes_a, trials_a), (successes_b, trials_b)):
        if not 0 <= successes <= trials:
            raise ValueError(f"{successes} successes of {trials} trials; expected 0 <= successes <= trials")
    total = successes_a + successes_b
    possible = range(max(0, total - trials_b), min(trials_a, total) + 1)
    ways = {k: comb(trials_a, k) * comb(trials_b, total - k) for k in possible}
    as_likely: int = sum(count for count in ways.values() if count <= ways[successes_a])
    return as_likely / comb(trials_a + trials_b, total)


def paired_score(only_a: int, only_b: int, pairs: int, difference: float) -> float:
    """Return Tango's score statistic for the hypothesis rate_a − rate_b = `difference`.

    Source: T. Tango, Statistics in Medicine 17 (1998); the nuisance parameter is its constrained
    maximum-likelihood estimate, the larger root of a quadratic.
    """
    n, d = pairs, difference
    b = -only_a - only_b + (2 * n - only_a + only_b) * d
    c = -only_b * d * (1 - d)
    q = (sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
    variance = n * (2 * q + d * (1 - d))
    numerator = only_a - only_b - n * d
    if variance <= 1e-15:
        return 0.0 if abs(numerator) < 1e-12 else float("inf") * numerator
    return numerator / sqrt(variance)


def paired_difference(only_a: int, only_b: int, pairs: int, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return rate_a − rate_b with its score interval (estimate, low, high) from paired episodes."""
    if only_a < 0 or only_b < 0 or only_a + only_b > pairs:
        raise ValueError(f"discordant counts ({only_a}, {only_b}) do not fit into {pairs} pairs")
    if pairs == 0:
        return 0.0, -1.0, 1.0
    z = z_value(confidence)
    estimate = (only_a - only_b) / pairs

    def end(inside: float, outside: float) -> float:
        """Find the difference at which the statistic, which is monotonic, reaches z, by bisection."""
        for _ in range(60):
            middle = (inside + outside) / 2
            if abs(paired_score(only_a, only_b, pairs, middle)) <= z:
                inside = middle
            else:
                outside = middle
        return inside

    return estimate, end(estimate, -1.0), end(estimate, 1.0)


@dataclass(frozen=True)
class Rate:
    """A success rate with its 95 % Wilson interval; all in [0, 1]."""

    successes: int
    trials: int

    @property
    def value(self) -> float:
        return self.successes / self.trials if self.trials else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.successes, self.trials)

    @property
    def percent(self) -> str:
        """The rate, for example "95.0 %"."""
        return f"{100 * self.value:.1f} %"

    @property
    def percent_interval(self) -> str:
        """The interval in percent, for example "76.4–99.1"."""
        low, high = self.interval
        return f"{100 * low:.1f}–{100 * high:.1f}"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types; the rate is None without trials."""
        return {
            "done": self.trials,
            "successes": self.successes,
            "rate": self.value if self.trials else None,
            "interval": list(self.interval),
        }

    def __str__(self) -> str:
        if not self.trials:
            return "no episodes"
        return f"{self.percent} ({self.successes}/{self.trials}), 95 % {self.percent_interval} %"
