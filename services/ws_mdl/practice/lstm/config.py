"""Everything about a run of the LSTM lab that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl import corpora
from services.ws_mdl.practice.settings import PracticeSettings

MODELS = ("attention", "plain", "transformer")

# What its numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "d_model": "[1, inf)", "hidden": "[1, inf)", "layers": "[1, inf)", "h": "[1, inf)", "dropout": "[0, 1)",
    "label_smoothing": "[0, 1)", "seq": "[3, inf)", "min_frequency": "[1, inf)", "val_fraction": "[0, 1)",
    "val_sentences": "[1, inf)",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train lstm` are these fields, and those of every practice lab."""

    LAB = "lstm"

    corpus: str = "default"  # default, reverse, opus_books, lemon-mint, or a .tsv or .jsonl file
    pair: str | None = None  # source and target language, as in en-it; default: the corpus's first pair
    model: Literal["attention", "plain", "transformer"] = "attention"  # LSTMs with it or without; lab 1's model
    d_model: int = 64  # numbers per word, of the LSTMs
    hidden: int = 128  # numbers of a state; the Transformer's d_model
    layers: int = 2  # the Transformer's N
    h: int = 4  # the Transformer's heads
    dropout: float = 0.1  # share of numbers that training leaves out
    label_smoothing: float = 0.0  # share of the target given to all other words
    seq: int = 64  # most tokens in a sentence, [SOS] and [EOS] included; longer ones are skipped
    min_frequency: int = 2  # rarer words become [UNK]
    val_fraction: float = 0.1  # of the source sentences, kept for measuring
    val_sentences: int = 256  # translated for BLEU and for the share of exact ones

    lrate: float = 2e-3
    clip: float = 1.0
    precision: Literal["auto", "fp32", "bf16"] = "fp32"  # torch's LSTM on a CPU is no faster in bf16

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model {self.model!r} is not known; choose {', '.join(MODELS)}")
        if self.pair is None:
            self.pair = corpora.NAMED[self.corpus][0][0] if self.corpus in corpora.NAMED else "en-it"
        if self.name is None:
            self.name = f"{Path(self.corpus).stem}-{self.pair}-{self.model}"
        self.check(ALLOWED)
        if self.model == "transformer":
            self.check_heads(self.hidden, self.h)
