"""Text as words with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.practice import text
from services.ws_mdl.practice.skipgram.config import Config
from services.ws_mdl.practice.text import Ids
from services.ws_mdl.transformer.tokenization import SPECIAL
from vla_common.volume import Volume


@dataclass(frozen=True)
class Words:
    """A corpus as rows of words. Its length is the number of words that are learned from."""

    train: Tensor  # int64 [steps]: texts with `window` times padding before, between and behind them
    held: Tensor  # likewise
    tokenizer: Tokenizer
    pad: int
    window: int
    rare: float

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def places(self) -> Tensor:
        """Where the words stand in `train`, int64 [words]."""
        return (self.train != self.pad).nonzero().squeeze(1)

    @cached_property
    def counts(self) -> Tensor:
        """How often each token stands in what is learned from, float [vocabulary]; never less than a tenth."""
        counted = torch.bincount(self.train[self.places], minlength=self.tokenizer.get_vocab_size())
        return counted.float().clamp(min=0.1)

    @cached_property
    def asked(self) -> Tensor:
        """How often each word stands there, as a guess may say it: special tokens, [UNK] too, as good as never."""
        special = [self.tokenizer.token_to_id(token) for token in SPECIAL]
        return self.counts.index_fill(0, torch.tensor(special), 1e-9)

    @cached_property
    def kept(self) -> Tensor:
        """How likely each token is to be taken: √(rare / share), at most 1 (Mikolov et al., 2013)."""
        return (self.rare / (self.counts / self.counts.sum())).sqrt().clamp(max=1)

    def examples(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Returns words [batch] and their neighbours [batch, 2 · window], padding where there is none.

        Which of the frequent ones are left out, and how far a word looks, is drawn anew each time.
        """
        places = self.places[index]
        middle, near = self.train[places], neighbours(self.train, places, self.window)
        reach = torch.randint(1, self.window + 1, (len(index), 1), generator=generator)
        taken = (offsets(self.window).abs() <= reach) & (torch.rand(near.shape, generator=generator) < self.kept[near])
        taken &= torch.rand(len(index), 1, generator=generator) < self.kept[middle, None]
        return middle, near.where(taken, self.pad)


def offsets(window: int) -> Tensor:
    """Returns where neighbours stand, int64 [2 · window], as in -2, -1, 1, 2."""
    return torch.tensor([*range(-window, 0), *range(1, window + 1)])


def neighbours(stream: Tensor, places: Tensor, window: int) -> Tensor:
    """Returns the tokens around places, int64 [places, 2 · window]."""
    return stream[places[:, None] + offsets(window)]


def padded(blocks: list[Ids], pad: int, window: int) -> Tensor:
    """Returns texts one after the other, with `window` times padding before, between and behind them."""
    row = [pad] * window
    for block in blocks:
        for ids in block:
            row += [*ids, *[pad] * window]
    return torch.tensor(row)


def load(config: Config, volume: Volume) -> Words:
    """Returns a corpus as words: those of `train bert`, with the same texts held out."""
    found = text.load(config.corpus, config.pair, "word", 0, config.held_fraction, volume)
    pad = found.tokenizer.token_to_id("[PAD]")
    streams = (padded(blocks, pad, config.window) for blocks in (found.train, found.held))
    return Words(*streams, found.tokenizer, pad, config.window, config.rare)
