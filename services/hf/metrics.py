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
    """Returns the share of texts that are as they should be, spaces at the ends aside."""
    return sum(one.strip() == other.strip() for one, other in zip(said, meant, strict=True)) / len(meant)


def rouge_l(said: str, meant: str) -> float:
    """Returns ROUGE-L (Lin 2004): F1 of the longest row of words that both have in this order, 0 to 1."""
    ours, theirs = said.split(), meant.split()
    common = _longest_common(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _longest_common(left: list[str], right: list[str]) -> int:
    row = [0] * (len(right) + 1)
    for word in left:
        before = row[:]
        for at, other in enumerate(right):
            row[at + 1] = before[at] + 1 if word == other else max(before[at + 1], row[at])
    return row[-1]


def bleu(said: Sequence[str], meant: Sequence[str], longest: int = 4) -> float:
    """Returns corpus BLEU (Papineni et al. 2002) over words, one reference each, without smoothing: 0 to 1."""
    found, possible = Counter(), Counter()
    for ours, theirs in zip(said, meant, strict=True):
        for length in range(1, longest + 1):
            own, right = _ngrams(ours.split(), length), _ngrams(theirs.split(), length)
            found[length] += sum((own & right).values())
            possible[length] += sum(own.values())
    words, expected = (sum(len(text.split()) for text in side) for side in (said, meant))
    if not all(found[length] for length in range(1, longest + 1)):
        return 0.0
    precision = sum(math.log(found[length] / possible[length]) for length in range(1, longest + 1)) / longest
    return math.exp(precision + min(0.0, 1 - expected / words))


def _ngrams(words: list[str], length: int) -> Counter:
    return Counter(tuple(words[at : at + length]) for at in range(len(words) - length + 1))
