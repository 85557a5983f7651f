"""Pairs of texts, [CLS] A [SEP] B [SEP]: B is what follows A in half of them, else something from another place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.practice import text
from services.ws_mdl.practice.bert.config import Config
from services.ws_mdl.practice.bert.model import mask_words
from services.ws_mdl.practice.text import Ids
from services.ws_mdl.transformer.dataset import pad_rows
from services.ws_mdl.transformer.tokenization import SPECIAL
from vla_common.volume import Volume

OWN = ("[CLS]", "[SEP]", "[MASK]")  # beside lab 1's special tokens


class Examples(NamedTuple):
    """Some pairs, masked: int64 [batch, seq] each, and follows int64 [batch], 1 where B follows A."""

    ids: Tensor
    segments: Tensor
    labels: Tensor
    follows: Tensor

    def to(self, device: torch.device) -> Examples:
        """Returns them on a device."""
        return Examples(*(one.to(device) for one in self))


@dataclass(frozen=True)
class Part:
    """Blocks of texts, and every place (block, text) that another text follows: there a pair begins."""

    blocks: list[Ids]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        return [(number, start) for number, block in enumerate(self.blocks) for start in range(len(block) - 1)]


@dataclass(frozen=True)
class Pairs:
    """A corpus, and how pairs are made of it. Its length is that of what is learned from."""

    train: Part
    held: Part
    tokenizer: Tokenizer
    seq: int
    mask_fraction: float

    def __len__(self) -> int:
        return len(self.train.places)

    @cached_property
    def words(self) -> Tensor:
        """The ids of all words, int64 [n]: what is special is neither masked nor put in a word's place."""
        special = {self.id(token) for token in (*SPECIAL, *OWN)}
        return torch.tensor([one for one in range(self.tokenizer.get_vocab_size()) if one not in special])

    def id(self, token: str) -> int:
        """Returns the id of a special token."""
        return self.tokenizer.token_to_id(token)

    def examples(self, index: Tensor, generator: torch.Generator) -> Examples:
        """Returns the examples of those numbers to learn from; B, and what is masked, are drawn anew each time."""
        return self._made(self.train, index, generator)

    def held_out(self) -> Examples:
        """Returns an example for each place in what is held out: the same ones at every call."""
        return self._made(self.held, torch.arange(len(self.held.places)), torch.Generator().manual_seed(0))

    def _made(self, part: Part, index: Tensor, generator: torch.Generator) -> Examples:
        follows = torch.randint(2, (len(index),), generator=generator)
        pairs = [self._pair(part, at, bool(one), generator) for at, one in zip(index.tolist(), follows, strict=True)]
        ids = pad_rows([first + second for first, second in pairs], self.id("[PAD]"))
        segments = pad_rows([[0] * len(first) + [1] * len(second) for first, second in pairs], 0)
        maskable = torch.isin(ids, self.words)
        hidden, labels = mask_words(ids, maskable, self.id("[MASK]"), self.words, self.mask_fraction, generator)
        return Examples(hidden, segments, labels, follows)

    def _pair(
        self, part: Part, at: int, follows: bool, generator: torch.Generator
    ) -> tuple[list[int], list[int]]:  # fmt: skip
        """Returns [CLS] A [SEP], and B [SEP]; A is half of its block's rest, so that something is left to follow."""
        block, start = part.places[at]
        texts = part.blocks[block]
        end = start + (len(texts) - start) // 2
        other, begin = (block, end) if follows else elsewhere(part, block, generator)
        room = (self.seq - 3) // 2
        first, second = joined(texts[start:end])[-room:], joined(part.blocks[other][begin:])[:room]
        return [self.id("[CLS]"), *first, self.id("[SEP]")], [*second, self.id("[SEP]")]


def elsewhere(part: Part, block: int, generator: torch.Generator) -> tuple[int, int]:
    """Returns a place that is drawn from the other blocks."""
    while True:
        place = part.places[int(torch.randint(len(part.places), (), generator=generator))]
        if place[0] != block:
            return place


def joined(texts: Ids) -> list[int]:
    """Returns the tokens of texts in a row."""
    return [token for ids in texts for token in ids]


def load(config: Config, volume: Volume) -> Pairs:
    """Returns a corpus as pairs of texts. Raises ValueError for one that has too few."""
    found = text.load(config.corpus, config.pair, config.tokenizer, config.vocab_size, config.held_fraction, volume)
    found.tokenizer.add_special_tokens(list(OWN))
    pairs = Pairs(Part(found.train), Part(found.held), found.tokenizer, config.seq, config.mask_fraction)
    for part in (pairs.train, pairs.held):
        if len({block for block, _ in part.places}) < 2:
            raise ValueError(
                f"corpus {config.corpus!r} is too short for texts that follow and texts from elsewhere, {text.RUN} "
                "together; expected two such runs to learn from and two held out: more text, or more held-fraction"
            )
    return pairs


def most_frequent(pairs: Pairs) -> int:
    """Returns the word that is most frequent in what is learned from."""
    words = set(pairs.words.tolist())
    counts = Counter(token for block in pairs.train.blocks for ids in block for token in ids if token in words)
    return counts.most_common(1)[0][0]
