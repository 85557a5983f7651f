"""An n-gram with interpolated Kneser-Ney smoothing (Kneser & Ney, 1995; Chen & Goodman, 1999): what counting can do.

The highest order counts how often a token followed n - 1 others. Each lower order counts after how many different
tokens it did: "Francisco" is frequent, and yet likely after one word only. Each order gives a part of its weight, the
discount, to the next lower one; the last gives its part to all tokens alike.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence


class KneserNey:
    """An n-gram learned from streams of token ids."""

    def __init__(self, streams: Sequence[Sequence[int]], vocabulary: int, order: int = 5) -> None:
        self.vocabulary, self.order = vocabulary, order
        self.counts = [_counted(streams, length, length == order) for length in range(1, order + 1)]
        self.totals = [{context: sum(after.values()) for context, after in counts.items()} for counts in self.counts]
        self.discounts = []  # n1 / (n1 + 2 n2): sequences counted once and twice (Ney, Essen & Kneser, 1994)
        for counts in self.counts:
            often = Counter(count for after in counts.values() for count in after.values())
            self.discounts.append(often[1] / (often[1] + 2 * often[2]) if often[1] else 0.5)

    def probability(self, context: Sequence[int], token: int) -> float:
        """Return the probability of a token after a context, of which the last order - 1 tokens count."""
        likely = 1 / self.vocabulary
        for length in range(min(self.order, len(context) + 1)):
            past = tuple(context[len(context) - length :])
            after = self.counts[length].get(past)
            if after is None:  # never seen, nor will longer ones have been
                break
            discount, total = self.discounts[length], self.totals[length][past]
            passed_on = discount * len(after) / total
            likely = max(after.get(token, 0) - discount, 0) / total + passed_on * likely
        return likely

    def nats(self, streams: Sequence[Sequence[int]]) -> float:
        """Return the negative log-likelihood of streams in nats, without the first token of each."""
        return -sum(
            math.log(self.probability(stream[max(0, at - self.order + 1) : at], stream[at]))
            for stream in streams for at in range(1, len(stream))
        )  # fmt: skip


Counts = dict[tuple[int, ...], Counter]  # after these tokens → token → how often


def _counted(streams: Sequence[Sequence[int]], length: int, highest: bool) -> Counts:
    """Return the counts of sequences of a length; of lower orders how many different tokens stood before each.

    A sequence with which a stream begins has nothing before it: that counts as one token more.
    """
    counts: Counts = defaultdict(Counter)
    seen: set[tuple[int, ...]] = set()
    for stream in streams:
        for end in range(length, len(stream) + 1):
            gram = tuple(stream[end - length : end])
            longer = tuple(stream[max(0, end - length - 1) : end])
            if not highest and longer in seen:
                continue
            seen.add(longer)
            counts[gram[:-1]][gram[-1]] += 1
    return counts
