"""Everything about a training run that can be chosen, with the course's names for what the course has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from services.ws_mdl import corpora
from services.ws_mdl.settings import RunSettings

# What a size fills in where nothing else is asked for. "base" is the paper's base model; "course" is that model trained
# as the course trains it: 8 sentences, all padded to seq, at a constant rate, Adam's own betas, no clipping, every
# epoch's weights kept.
COMMON: dict[str, Any] = {
    "seq": 350, "epochs": 20, "batch_size": None, "schedule": "warmup", "beta2": 0.98, "clip": 1.0,
    "precision": "auto", "keep": 3,
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "N": 2, "h": 4, "d_ff": 512, "dropout": 0.1, "batch_tokens": 1024, "warmup_steps": 400},
    "small": {"d_model": 256, "N": 3, "h": 4, "d_ff": 1024, "dropout": 0.2, "batch_tokens": 1024, "warmup_steps": 400},
    "base": {"d_model": 512, "N": 6, "h": 8, "d_ff": 2048, "dropout": 0.1, "batch_tokens": 4096, "warmup_steps": 4000},
    "course": {
        "d_model": 512, "N": 6, "h": 8, "d_ff": 2048, "dropout": 0.1, "batch_tokens": 4096, "warmup_steps": 4000,
        "batch_size": 8, "schedule": "constant", "beta2": 0.999, "clip": 0.0, "precision": "fp32", "keep": 0,
    },
}  # fmt: skip
LEMON_MINT = {"batch_size": 12, "epochs": 30, "seq": 1300}  # where the course's numbers are others

# What its numbers may be; `./lab train --set` reads it too, so it holds literals only.
ALLOWED = {
    "d_model": "[1, inf)", "N": "[1, inf)", "h": "[1, inf)", "d_ff": "[1, inf)", "batch_tokens": "[1, inf)",
    "batch_size": "[1, inf)", "beta2": "(0, 1)",
    "epochs": "[1, inf)", "accumulate": "[1, inf)", "warmup_steps": "[1, inf)", "log_every": "[1, inf)",
    "dropout": "[0, 1)", "label_smoothing": "[0, 1)", "val_fraction": "[0, 1)",
    "seq": "[3, inf)",  # [SOS], a word, [EOS]
    "vocab_size": "[1, inf)", "min_frequency": "[1, inf)", "keep": "[0, inf)", "val_sentences": "[0, inf)",
    "clip": "[0, inf)", "lr": "(0, inf)", "lr_factor": "(0, inf)",
}  # fmt: skip

# The course's names of settings that have another name here.
COURSE_NAMES = {"num_epochs": "epochs", "seq_len": "seq", "datasource": "corpus"}


@dataclass
class Config(RunSettings):
    """A training run. `get_config` makes one; the flags of `train` are these fields."""

    LAB = "transformer"

    corpus: str = "default"  # default, opus_books, lemon-mint, reverse, or a .tsv or .jsonl file
    pair: str | None = None  # source and target language, as in en-it; default: the corpus's first pair
    size: Literal["tiny", "small", "base", "course"] = "small"  # gives what is None here, where it is not given
    d_model: int | None = None  # numbers per word
    N: int | None = None  # encoder blocks, and as many decoder blocks
    h: int | None = None  # attention heads; must divide d_model
    d_ff: int | None = None  # width of the feed-forward blocks
    dropout: float | None = None  # share of numbers that training leaves out
    batch_tokens: int | None = None  # padded target tokens in a batch, at most, and source tokens likewise
    batch_size: int | None = None  # sentences in a batch, each padded to seq: the course's way; else batch-tokens
    warmup_steps: int | None = None  # until the warm-up schedule's highest rate
    norm: Literal["pre", "post"] = "pre"  # layer normalization before each sublayer (course) or after it (paper)
    activation: Literal["relu", "gelu"] = "relu"  # of the feed-forward blocks
    positions: Literal["sinusoidal", "learned", "rotary", "relative"] = "sinusoidal"  # how a word knows its place
    tied: bool = False  # target embedding and projection share their weights
    seq: int | None = None  # most tokens in a sentence, [SOS] and [EOS] included; default: 350

    tokenizer: Literal["word", "bpe"] = "word"  # words as they are, or pieces of them
    min_frequency: int = 2  # rarer words become [UNK]
    vocab_size: int = 8000  # of a BPE tokenizer, at most
    too_long: Literal["skip", "cut"] = "skip"  # what happens to sentences of more than seq tokens
    val_fraction: float = 0.1  # of the source sentences, kept for validation

    epochs: int | None = None
    accumulate: int = 1  # batches per step of the optimizer
    schedule: Literal["warmup", "constant"] | None = None  # the paper's (default), or size course's constant rate
    lr: float = 1e-4  # of the constant schedule
    lr_factor: float = 1.0  # the warm-up schedule times this
    label_smoothing: float = 0.1  # share of the target given to all other words
    beta2: float | None = None  # Adam's second; default: the paper's 0.98, size course's 0.999
    clip: float | None = None  # longest gradient, 0 for any; default: 1, size course's 0
    seed: int = 0  # of weights and the order of sentences

    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: Literal["auto", "fp32", "bf16"] | None = None  # auto (default): bf16 where the device computes in it
    compile: bool = False  # torch.compile: minutes at first, faster steps on a GPU

    name: str | None = None  # of the run; default: corpus-pair-size
    preload: str = "latest"  # go on from the newest weights, from epoch N as in "7", or "none": start anew
    keep: int | None = None  # newest weight files to keep, 0 for all; default: 3, size course's 0
    log_every: int = 20  # steps between two points of the curves
    val_sentences: int = 256  # translated after each epoch for BLEU, CER and WER

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"size {self.size!r} is not known; choose {', '.join(SIZES)}")
        given = {**COMMON, **SIZES[self.size]}
        if self.size == "course" and self.corpus == "lemon-mint":
            given |= LEMON_MINT
        for name, value in given.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.pair is None:
            self.pair = corpora.NAMED[self.corpus][0][0] if self.corpus in corpora.NAMED else "en-it"
        if self.name is None:
            self.name = f"{Path(self.corpus).stem}-{self.pair}-{self.size}"
        self._check()

    def _check(self) -> None:
        self.check(ALLOWED)
        if self.d_model % self.h != 0:
            raise ValueError(f"d_model {self.d_model} cannot be divided among h = {self.h} heads; choose another h")

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        source, _, target = self.pair.partition("-")
        return source, target

    # --- as the course reads it: config["batch_size"] ---

    def __getitem__(self, name: str) -> Any:
        """Return a setting by its name here or in the course. Raises KeyError for any other."""
        if name in ("lang_src", "lang_tgt"):
            return self.languages[name == "lang_tgt"]
        value = getattr(self, self._field(name))
        # Batches of about equal length have no fixed number of sentences; a DataLoader of the course needs one.
        return SIZES["course"]["batch_size"] if name == "batch_size" and value is None else value

    def __setitem__(self, name: str, value: Any) -> None:
        """Change a setting. Raises KeyError for an unknown name, ValueError for a value that is not allowed."""
        if name in ("lang_src", "lang_tgt"):
            source, target = self.languages
            name, value = "pair", f"{source}-{value}" if name == "lang_tgt" else f"{value}-{target}"
        if name == "preload" and value is None:
            value = "none"
        setattr(self, self._field(name), value)
        self._check()

    def _field(self, name: str) -> str:
        field = COURSE_NAMES.get(name, name)
        if field not in self.__dataclass_fields__:
            known = sorted({*self.__dataclass_fields__, *COURSE_NAMES, "lang_src", "lang_tgt"})
            raise KeyError(f"setting {name!r} not found; known: {', '.join(known)}")
        return field


def get_config(size: str = "small", **changes: Any) -> Config:
    """Returns the configuration of a size, with changes: get_config("base", epochs=30, corpus="opus_books")."""
    return Config(size=size, **changes)
