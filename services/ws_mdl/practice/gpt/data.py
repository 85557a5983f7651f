"""Text as streams of tokens: the texts of a block one after the other, each ended by [EOS]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.practice import text
from services.ws_mdl.practice.gpt.config import Config
from services.ws_mdl.practice.text import Ids
from vla_common.volume import Volume


@dataclass(frozen=True)
class Streams:
    """The corpus as one stream to learn from, and a stream for each block that is held out."""

    train: Tensor  # int64 [tokens]
    held: list[list[int]]  # each begins with an [EOS] that is not guessed
    tokenizer: Tokenizer
    held_characters: int
    seq: int

    def __len__(self) -> int:
        return (len(self.train) - 1) // self.seq

    def windows(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Returns windows int64 [batch, seq + 1]; each begins at a drawn place near its number's own."""
        shift = torch.randint(self.seq, (len(index),), generator=generator)
        starts = (index * self.seq + shift).clamp(max=len(self.train) - self.seq - 1)
        return self.train[starts[:, None] + torch.arange(self.seq + 1)]

    @cached_property
    def eos(self) -> int:
        return self.tokenizer.token_to_id("[EOS]")

    @property
    def held_tokens(self) -> int:
        """How many tokens are guessed."""
        return sum(len(stream) - 1 for stream in self.held)


def load(config: Config, volume: Volume) -> Streams:
    """Returns a corpus as streams. Raises ValueError for one that is shorter than a window."""
    found = text.load(config.corpus, config.pair, config.tokenizer, config.vocab_size, config.held_fraction, volume)
    eos = found.tokenizer.token_to_id("[EOS]")
    train = [token for block in found.train for token in stream_of(block, eos)[1:]]
    if len(train) <= config.seq:
        raise ValueError(f"corpus {config.corpus!r} has {len(train)} tokens; expected more than seq = {config.seq}")
    held = [stream_of(block, eos) for block in found.held]
    return Streams(torch.tensor(train), held, found.tokenizer, found.held_characters, config.seq)


def stream_of(block: Ids, eos: int) -> list[int]:
    """Returns [EOS], then every text with an [EOS] behind it."""
    return [eos, *(token for ids in block for token in (*ids, eos))]
