"""Everything about a skip-gram run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.ws_mdl.practice.settings import PracticeSettings

# What its own numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "held_fraction": "(0, 1)", "window": "[1, inf)", "negatives": "[1, inf)", "rare": "(0, 1]", "d_model": "[1, inf)",
}  # fmt: skip


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train skipgram` are these fields."""

    LAB = "skipgram"

    corpus: str = "default"  # one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file
    pair: str | None = None  # languages of a corpus, as in en-it: the first is the one that is read
    held_fraction: float = 0.1  # of the corpus: measured on, never learned from
    window: int = 4  # words to each side that are a word's neighbours
    negatives: int = 8  # drawn words that a neighbour is told from
    rare: float = 1e-3  # share of a corpus above which a word is left out at times, the oftener the more frequent
    d_model: int = 96  # numbers per word

    epochs: int = 10
    batch_size: int = 256  # words in the middle
    lrate: float = 3e-3
    weight_decay: float = 0.0
    measure_every: int = 5

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check(ALLOWED)
