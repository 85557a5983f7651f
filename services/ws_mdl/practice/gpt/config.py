"""Everything about a small GPT's run that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.ws_mdl.practice.settings import PracticeSettings
from services.ws_mdl.settings import PYTHON, corpus_option, pair_option
from vla_common.options import option


@dataclass
class Config(PracticeSettings):
    """A training run. The flags of `train gpt` are these fields."""

    LAB = "gpt"

    corpus: str = corpus_option(
        "one of lab 1's, python (its reference, no download), or a .txt, .tsv or .jsonl file", PYTHON
    )
    pair: str | None = pair_option("languages of a corpus, as in en-it: the first is the one that is read")
    tokenizer: Literal["character", "word", "bpe"] = option("character", "what a token is; bpe: pieces of words")
    vocab_size: int = option(1000, "of a BPE tokenizer, at most", "[1, inf)")
    held_fraction: float = option(0.1, "of the corpus: measured on, never learned from", "(0, 1)")

    seq: int = option(128, "tokens that are looked at", "[2, inf)")
    d_model: int = option(96, "numbers per token", "[1, inf)")
    N: int = option(3, "blocks", "[1, inf)")
    h: int = option(4, "attention heads; must divide d_model", "[1, inf)")
    d_ff: int = option(384, "width of the feed-forward blocks", "[1, inf)")
    dropout: float = option(0.0, "share of numbers that training leaves out", "[0, 1)")
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = option(
        "rotary", "how a token knows its place"
    )

    temperature: float = option(0.8, "of the samples shown at the end; below 1 prefers the likely", "[0, inf)")
    top_k: int = option(0, "of the samples: only the k likeliest tokens, 0 for all", "[0, inf)")
    top_p: float = option(0.95, "of the samples: only the likeliest that have this much together", "(0, 1]")

    epochs: int = 20
    batch_size: int = option(8, "windows of seq tokens: small batches are many steps, which so small a corpus needs")
    lrate: float = 2.5e-3
    weight_decay: float = 0.1
    measure_every: int = 2
    save_every: int = 1

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = Path(self.corpus).stem
        self.check()
        self.check_heads(self.d_model, self.h)
