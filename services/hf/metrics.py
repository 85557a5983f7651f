"""Metrics that work offline: `evaluate` downloads its own from the hub.

`Sentiment` wraps scikit-learn's metrics in evaluate's interface (add_batch, compute).
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
    """Accuracy, and F1 of class 1."""

    def _info(self) -> evaluate.MetricInfo:
        columns = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description=str(self.__doc__), citation="", inputs_description="", features=columns)

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {
            "accuracy": float(accuracy_score(references, predictions)),
            "f1": float(f1_score(references, predictions, zero_division=0.0)),
        }


def exact(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Return the share of predictions that equal their references, ignoring surrounding spaces."""
    pairs = zip(predictions, references, strict=True)
    return sum(prediction.strip() == reference.strip() for prediction, reference in pairs) / len(references)


def rouge_l(prediction: str, reference: str) -> float:
    """Return ROUGE-L (Lin 2004), 0 to 1: F1 of the longest common subsequence of words."""
    predicted, expected = prediction.split(), reference.split()
    row = [0] * (len(expected) + 1)  # common subsequence of the words so far and each prefix of `expected`
    for word in predicted:
        before = row[:]
        for at, other in enumerate(expected):
            row[at + 1] = before[at] + 1 if word == other else max(before[at + 1], row[at])
    return 2 * row[-1] / (len(predicted) + len(expected)) if row[-1] else 0.0


def bleu(predictions: Sequence[str], references: Sequence[str], longest: int = 4) -> float:
    """Return corpus BLEU (Papineni et al. 2002), 0 to 1, with one reference each and without smoothing."""

    def ngrams(text: str, length: int) -> Counter[tuple[str, ...]]:
        tokens = text.split()
        return Counter(tuple(tokens[at : at + length]) for at in range(len(tokens) - length + 1))

    logarithms = []
    for length in range(1, longest + 1):
        counts = [ngrams(text, length) for text in predictions]
        pairs = zip(counts, references, strict=True)
        right = sum((count & ngrams(reference, length)).total() for count, reference in pairs)
        if right == 0:
            return 0.0
        logarithms.append(math.log(right / sum(count.total() for count in counts)))
    total, expected = (sum(len(text.split()) for text in side) for side in (predictions, references))
    return math.exp(sum(logarithms) / longest + min(0.0, 1 - expected / total))
