"""Everything about a small BERT's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings

# What its own numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "seq": "[8, inf)", "vocab_size": "[1, inf)", "d_model": "[1, inf)", "N": "[1, inf)", "h": "[1, inf)",
    "d_ff": "[1, inf)", "dropout": "[0, 1)", "held_fraction": "(0, 1)", "mask_fraction": "(0, 1)",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train bert` are these fields."""

    LAB = "bert"

    corpus: str = "default"  # one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file
    pair: str | None = None  # languages of a corpus, as in en-it: the first is the one that is read
    tokenizer: Literal["word", "bpe"] = "word"  # words as they are, or pieces of them
    vocab_size: int = 4000  # of a BPE tokenizer, at most
    held_fraction: float = 0.1  # of the corpus: measured on, never learned from
    mask_fraction: float = 0.15  # of the words are to be guessed

    seq: int = 64  # tokens of the two texts together
    d_model: int = 96  # numbers per token
    N: int = 2  # encoder blocks
    h: int = 4  # attention heads; must divide d_model
    d_ff: int = 384  # width of the feed-forward blocks
    dropout: float = 0.1  # share of numbers that training leaves out
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "learned"  # how a token knows its place

    epochs: int = 6
    batch_size: int = 16  # pairs of texts
    lrate: float = 1.5e-3
    save_every: int = 1

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check(ALLOWED)
        self.check_heads(self.d_model, self.h)
