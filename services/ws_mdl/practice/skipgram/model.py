"""Skip-gram with negative sampling (Mikolov et al., 2013): words that stand near the same words get like vectors.

No layer, no order, no attention: a table of words in the middle, a table of words beside them, and a product. What is
learned is how much more often two words stand together than chance would have it (Levy & Goldberg, 2014). A word has
one vector wherever it stands: that is what masked pre-training does otherwise.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SkipGram(nn.Module):
    """Two vectors for each word: one for when it is in the middle, one for when it stands beside."""

    def __init__(self, vocab_size: int, d_model: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.middle = nn.Embedding(vocab_size, d_model)
        self.beside = nn.Embedding(vocab_size, d_model)
        nn.init.uniform_(self.middle.weight, -0.5 / d_model, 0.5 / d_model)
        nn.init.zeros_(self.beside.weight)

    def forward(self, middle: Tensor, beside: Tensor) -> Tensor:
        """Returns scores [batch, words] of words [batch, words] beside the words [batch] in the middle."""
        return (self.beside(beside) @ self.middle(middle).unsqueeze(-1)).squeeze(-1)


def loss_of(model: SkipGram, middle: Tensor, near: Tensor, drawn: Tensor) -> Tensor:
    """Returns the mean cost in nats of telling neighbours from drawn words.

    middle int64 [batch]; near [batch, neighbours], padding where there is none; drawn [batch, negatives]: each real
    neighbour is told from all of them.
    """
    real = near != model.pad  # (batch, neighbours)
    told = F.logsigmoid(model(middle, near)).where(real, 0.0).sum(dim=1)
    against = F.logsigmoid(-model(middle, drawn)).sum(dim=1) * real.sum(dim=1)
    return -(told + against).sum() / real.sum().clamp(min=1)


@torch.inference_mode()
def word_scores(model: SkipGram, near: Tensor, counts: Tensor, trust: float) -> Tensor:
    """Returns scores [places, vocabulary] of the word that neighbours [places, neighbours] stand around.

    By Bayes' rule, neighbours taken as independent: log p(word) + Σ log p(neighbour | word), of which the products are
    what a word adds. trust: what they count; below 1, since neighbours are not independent.
    """
    around = model.beside(near).masked_fill((near == model.pad).unsqueeze(-1), 0.0).sum(dim=1)  # (places, d_model)
    return counts.log() + trust * around @ model.middle.weight.T


def nearest(vectors: Tensor, word: int, among: Tensor, count: int = 5) -> list[int]:
    """Returns the words of `among` int64 [n] whose vectors point most as one word's does, the nearest first."""
    unit = F.normalize(vectors, dim=-1)
    likeness = (unit[among] @ unit[word]).masked_fill(among == word, -2.0)
    return among[likeness.topk(min(count, len(among) - 1)).indices].tolist()
