"""Everything about a small GPT's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings

# What its own numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "seq": "[2, inf)", "vocab_size": "[1, inf)", "d_model": "[1, inf)", "N": "[1, inf)", "h": "[1, inf)",
    "d_ff": "[1, inf)", "dropout": "[0, 1)", "held_fraction": "(0, 1)", "temperature": "[0, inf)", "top_k": "[0, inf)",
    "top_p": "(0, 1]",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train gpt` are these fields."""

    LAB = "gpt"

    corpus: str = "default"  # one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file
    pair: str | None = None  # languages of a corpus, as in en-it: the first is the one that is read
    tokenizer: Literal["character", "word", "bpe"] = "character"  # what a token is; bpe: pieces of words
    vocab_size: int = 1000  # of a BPE tokenizer, at most
    held_fraction: float = 0.1  # of the corpus: measured on, never learned from

    seq: int = 128  # tokens that are looked at
    d_model: int = 96  # numbers per token
    N: int = 3  # blocks
    h: int = 4  # attention heads; must divide d_model
    d_ff: int = 384  # width of the feed-forward blocks
    dropout: float = 0.0  # share of numbers that training leaves out
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "rotary"  # how a token knows its place

    temperature: float = 0.8  # of the samples shown at the end; below 1 prefers the likely
    top_k: int = 0  # of the samples: only the k likeliest tokens, 0 for all
    top_p: float = 0.95  # of the samples: only the likeliest that have this much together

    epochs: int = 20
    batch_size: int = 8  # windows of seq tokens: small batches are many steps, which so small a corpus needs
    lrate: float = 2.5e-3
    weight_decay: float = 0.1
    measure_every: int = 2
    save_every: int = 1

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check(ALLOWED)
        self.check_heads(self.d_model, self.h)
