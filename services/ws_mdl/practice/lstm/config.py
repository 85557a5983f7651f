"""Everything about a run of the LSTM lab that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl import corpora
from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import corpus_option, pair_option
from vla_common.options import option

MODELS = ("attention", "plain", "transformer")


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train lstm` are these fields, and those of every practice lab."""

    LAB = "lstm"

    corpus: str = corpus_option("default, reverse, opus_books, lemon-mint, or a .tsv or .jsonl file")
    pair: str | None = pair_option("source and target language, as in en-it", default_help="the corpus's first pair")
    model: Literal["attention", "plain", "transformer"] = option("attention", "LSTMs with it or without; lab 1's model")
    d_model: int = option(64, "numbers per word, of the LSTMs", "[1, inf)")
    hidden: int = option(128, "numbers of a state; the Transformer's d_model", "[1, inf)")
    layers: int = option(2, "the Transformer's N", "[1, inf)")
    h: int = option(4, "the Transformer's heads", "[1, inf)")
    dropout: float = option(0.1, "share of numbers that training leaves out", "[0, 1)")
    label_smoothing: float = option(0.0, "share of the target given to all other words", "[0, 1)")
    seq: int = option(64, "most tokens in a sentence, [SOS] and [EOS] included; longer ones are skipped", "[3, inf)")
    min_frequency: int = option(2, "rarer words become [UNK]", "[1, inf)")
    val_fraction: float = option(0.1, "of the source sentences, kept for measuring", "[0, 1)")
    val_sentences: int = option(256, "translated for BLEU and for the share of exact ones", "[1, inf)")

    lrate: float = 2e-3
    clip: float = 1.0
    precision: Literal["auto", "fp32", "bf16"] = option("fp32", "torch's LSTM on a CPU is no faster in bf16")

    def __post_init__(self) -> None:
        if self.pair is None:
            self.pair = corpora.NAMED[self.corpus][0][0] if self.corpus in corpora.NAMED else "en-it"
        if self.name is None:
            self.name = f"{Path(self.corpus).stem}-{self.pair}-{self.model}"
        self.check()
        if self.model == "transformer":
            self.check_heads(self.hidden, self.h)
