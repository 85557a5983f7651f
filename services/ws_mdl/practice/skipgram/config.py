"""Everything about a skip-gram run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import PYTHON, corpus_option, pair_option
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train skipgram` are these fields."""

    LAB = "skipgram"

    corpus: str = corpus_option(
        "one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file", PYTHON
    )
    pair: str | None = pair_option("languages of a corpus, as in en-it: the first is the one that is read")
    held_fraction: float = option(0.1, "of the corpus: measured on, never learned from", "(0, 1)")
    window: int = option(4, "words to each side that are a word's neighbours", "[1, inf)")
    negatives: int = option(8, "drawn words that a neighbour is told from", "[1, inf)")
    rare: float = option(
        1e-3, "share of a corpus above which a word is left out at times, the oftener the more frequent", "(0, 1]"
    )
    d_model: int = option(96, "numbers per word", "[1, inf)")

    epochs: int = 10
    batch_size: int = option(256, "words in the middle")
    lrate: float = 3e-3
    weight_decay: float = 0.0
    measure_every: int = 5

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check()
