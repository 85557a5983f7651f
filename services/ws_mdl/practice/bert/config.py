"""Everything about a small BERT's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import PYTHON, corpus_option, pair_option
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train bert` are these fields."""

    LAB = "bert"

    corpus: str = corpus_option(
        "one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file", PYTHON
    )
    pair: str | None = pair_option("languages of a corpus, as in en-it: the first is the one that is read")
    tokenizer: Literal["word", "bpe"] = option("word", "words as they are, or pieces of them")
    vocab_size: int = option(4000, "of a BPE tokenizer, at most", "[1, inf)")
    held_fraction: float = option(0.1, "of the corpus: measured on, never learned from", "(0, 1)")
    mask_fraction: float = option(0.15, "of the words are to be guessed", "(0, 1)")

    seq: int = option(64, "tokens of the two texts together", "[8, inf)")
    d_model: int = option(96, "numbers per token", "[1, inf)")
    N: int = option(2, "encoder blocks", "[1, inf)")
    h: int = option(4, "attention heads; must divide d_model", "[1, inf)")
    d_ff: int = option(384, "width of the feed-forward blocks", "[1, inf)")
    dropout: float = option(0.1, "share of numbers that training leaves out", "[0, 1)")
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = option(
        "learned", "how a token knows its place"
    )

    epochs: int = 6
    batch_size: int = option(16, "pairs of texts")
    lrate: float = 1.5e-3
    save_every: int = 1

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check()
        self.check_heads(self.d_model, self.h)
