"""A small BERT (Devlin et al., 2018), of lab 1's encoder: it fills in masked words, and says whether B follows A.

Shapes stand at the end of the line: batch examples of seq tokens, each a vector of d_model numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.transformer.dataset import padding_mask
from services.ws_mdl.transformer.model import InputEmbeddings, LayerNormalization

NOT_ASKED = -100  # the label of a token that is not to be guessed: cross_entropy leaves it out
MASKED, REPLACED = 0.8, 0.1  # of the chosen words; the rest stays as it is


class BERT(nn.Module):
    """Tokens, positions and segments, lab 1's encoder, and two heads: a word for each place, and next or not.

    The words' scores come from the embedding's own table, behind a layer that turns vectors into what is looked up.
    """

    def __init__(
        self, vocab_size: int, seq: int, pad: int, d_model: int = 96, N: int = 2, h: int = 4, d_ff: int = 384,
        dropout: float = 0.1, positions: str = "learned",
    ) -> None:  # fmt: skip
        super().__init__()
        self.pad = pad
        self.embed = InputEmbeddings(d_model, vocab_size)
        self.segments = nn.Embedding(2, d_model)  # which of the two texts a token is of
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.encoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        self.transform = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), LayerNormalization(d_model))
        self.word_bias = nn.Parameter(torch.zeros(vocab_size))
        self.pooler = nn.Sequential(nn.Linear(d_model, d_model), nn.Tanh())
        self.follows = nn.Linear(d_model, 2)
        initialize(self)

    def encode(self, ids: Tensor, segments: Tensor) -> Tensor:
        """Returns a vector for each token [batch, seq, d_model], made of all the others; ids, segments int64."""
        x = self.positions(self.embed(ids) + self.segments(segments))
        return self.encoder(x, padding_mask(ids, self.pad))  # no causal mask: each token sees both sides

    def words(self, x: Tensor) -> Tensor:
        """Returns the scores of the words [..., vocabulary] for vectors [..., d_model]."""
        return F.linear(self.transform(x), self.embed.embedding.weight, self.word_bias)

    def next_text(self, x: Tensor) -> Tensor:
        """Returns the scores [batch, 2] of "B is from elsewhere" and "B follows A", from [CLS]'s vector alone."""
        return self.follows(self.pooler(x[:, 0]))

    def forward(self, ids: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the scores of the words [batch, seq, vocabulary], and those of `next_text` [batch, 2]."""
        x = self.encode(ids, segments)
        return self.words(x), self.next_text(x)


def mask_words(
    ids: Tensor, maskable: Tensor, mask: int, words: Tensor, fraction: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Returns ids with some words hidden, and the labels: the word where it is to be guessed, else NOT_ASKED.

    ids int64 [batch, seq]. maskable: bool, true where there is a word. mask: the id of [MASK]. words: ids int64 [n]
    that a word may be replaced by. Of the chosen `fraction`, 80 % become [MASK], 10 % another word and 10 % stay: a
    network that only ever guessed at [MASK] would have nothing to say of words that are there.
    """
    chosen = (torch.rand(ids.shape, generator=generator) < fraction) & maskable
    fate = torch.rand(ids.shape, generator=generator)
    other = words[torch.randint(len(words), ids.shape, generator=generator)]
    hidden = torch.where(chosen & (fate < MASKED), mask, ids)
    hidden = torch.where(chosen & (fate >= MASKED) & (fate < MASKED + REPLACED), other, hidden)
    return hidden, torch.where(chosen, ids, NOT_ASKED)


def loss_of(model: BERT, ids: Tensor, segments: Tensor, labels: Tensor, follows: Tensor) -> Tensor:
    """Returns the mean cost in nats of the masked words, and that of the next text, added up.

    ids, segments, labels: int64 [batch, seq], as `mask_words` has them. follows: int64 [batch], 1 where B follows A.
    """
    x = model.encode(ids, segments)
    asked = labels != NOT_ASKED
    words = F.cross_entropy(model.words(x[asked]).float(), labels[asked])  # only their vectors meet the vocabulary
    return words + F.cross_entropy(model.next_text(x).float(), follows)
