"""How good it is, without the hub: `evaluate` takes its usual metrics from there, so these are written or wrapped here.

`Sentiment` has the interface of evaluate's metrics (add_batch, compute) over scikit-learn's numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
from sklearn.metrics import accuracy_score, f1_score


class Sentiment(evaluate.Metric):
    """Accuracy, and F1 of class 1, of predicted classes against labels."""

    def _info(self) -> evaluate.MetricInfo:
        columns = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description=str(self.__doc__), citation="", inputs_description="", features=columns)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": float(f1_score(references, predictions, zero_division=0.0)),
        }


def exact(said: Sequence[str], meant: Sequence[str]) -> float:
    """Return the share of texts that are as they should be, spaces at the ends aside."""
    return sum(one.strip() == other.strip() for one, other in zip(said, meant, strict=True)) / len(meant)


def rouge_l(said: str, meant: str) -> float:
    """Return ROUGE-L (Lin 2004): F1 of the longest row of words that both have in this order, 0 to 1."""
    ours, theirs = said.split(), meant.split()
    row = [0] * (len(theirs) + 1)  # longest common rows of the words so far with theirs up to each
    for word in ours:
        before = row[:]
        for at, other in enumerate(theirs):
            row[at + 1] = before[at] + 1 if word == other else max(before[at + 1], row[at])
    return 2 * row[-1] / (len(ours) + len(theirs)) if row[-1] else 0.0


def bleu(said: Sequence[str], meant: Sequence[str], longest: int = 4) -> float:
    """Return corpus BLEU (Papineni et al. 2002) over words, one reference each, without smoothing: 0 to 1."""

    def ngrams(text: str, length: int) -> Counter[tuple[str, ...]]:
        words = text.split()
        return Counter(tuple(words[at : at + length]) for at in range(len(words) - length + 1))

    logarithms = []
    for length in range(1, longest + 1):
        counts = [(ngrams(ours, length), ngrams(theirs, length)) for ours, theirs in zip(said, meant, strict=True)]
        right = sum((ours & theirs).total() for ours, theirs in counts)
        if right == 0:
            return 0.0
        logarithms.append(math.log(right / sum(ours.total() for ours, _ in counts)))
    words, expected = (sum(len(text.split()) for text in side) for side in (said, meant))
    return math.exp(sum(logarithms) / longest + min(0.0, 1 - expected / words))
