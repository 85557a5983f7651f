"""The settings of a training, with the course's names for what the course has, and the options of `translate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from services.ws_mdl import corpora, settings
from services.ws_mdl.settings import RunSettings
from vla_common.options import Options, device_option, option

PREFIX = "tmodel"  # of a run's weight files

# Defaults per size. "base" is the paper's base model; "course" is that model with the course's training: 8 sentences,
# all padded to seq, a constant rate, Adam's default betas, no clipping, weights of every epoch.
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
LEMON_MINT = {"batch_size": 12, "epochs": 30, "seq": 1300}  # the course's settings for this corpus

# The course's name → our name.
COURSE_NAMES = {"num_epochs": "epochs", "seq_len": "seq", "datasource": "corpus"}


@dataclass
class Config(RunSettings):
    """A training run. `get_config` makes one; the flags of `train` are these fields."""

    LAB = "transformer"

    corpus: str = settings.corpus_option("default, opus_books, lemon-mint, reverse, or a .tsv or .jsonl file")
    pair: str | None = settings.pair_option("source and target, as in en-it", default_help="the corpus's first pair")
    size: Literal["tiny", "small", "base", "course"] = option(
        "small", "tiny, small, base (paper) or course (its recipe)"
    )
    d_model: int | None = option(None, "width of the model", "[1, inf)")
    N: int | None = option(None, "encoder blocks, and as many decoder blocks", "[1, inf)")
    h: int | None = option(None, "attention heads; d_model must be a multiple", "[1, inf)")
    d_ff: int | None = option(None, "width of the feed-forward blocks", "[1, inf)")
    dropout: float | None = option(None, "dropout probability in training", "[0, 1)")
    batch_tokens: int | None = option(None, "maximum padded tokens in a batch, for source and target each", "[1, inf)")
    batch_size: int | None = option(
        None, "sentences in a batch, each padded to seq, as in the course; default: by batch-tokens", "[1, inf)"
    )
    warmup_steps: int | None = option(None, "steps to the warm-up schedule's peak", "[1, inf)")
    norm: Literal["pre", "post"] = option("pre", "layer norm before each sublayer (course) or after it (paper)")
    activation: Literal["relu", "gelu"] = option("relu", "of the feed-forward blocks")
    positions: Literal["sinusoidal", "learned", "rotary", "relative"] = option("sinusoidal", "positional encoding")
    tied: bool = option(False, "target embedding and projection share their weights")
    seq: int | None = option(None, "maximum tokens per sentence, with [SOS] and [EOS]", "[3, inf)", default_help="350")

    tokenizer: Literal["word", "bpe"] = option("word", "whole words, or byte-pair encoding")
    min_frequency: int = option(2, "rarer words become [UNK]", "[1, inf)")
    vocab_size: int = option(8000, "of a BPE tokenizer, at most", "[1, inf)")
    too_long: Literal["skip", "cut"] = option("skip", "skip or cut sentences of more than seq tokens")
    val_fraction: float = option(0.1, "of the source sentences, held out for validation", "[0, 1)")

    epochs: int | None = option(None, "passes over the training set", "[1, inf)")
    accumulate: int = option(1, "batches per step of the optimizer", "[1, inf)")
    schedule: Literal["warmup", "constant"] | None = option(
        None, "the paper's (default), or the constant rate of size course"
    )
    lr: float = option(1e-4, "of the constant schedule", "(0, inf)")
    lr_factor: float = option(1.0, "factor on the warm-up schedule", "(0, inf)")
    label_smoothing: float = option(0.1, "share of the target probability for all other words", "[0, 1)")
    beta2: float | None = option(None, "Adam's second beta", "(0, 1)", default_help="0.98 (size course: 0.999)")
    clip: float | None = option(
        None, "maximum norm of the gradient, 0 for none", "[0, inf)", default_help="1 (size course: 0)"
    )
    seed: int = option(0, "of weights and data order")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] | None = option(
        None, "auto (default): bf16 where the device computes in it"
    )
    compile: bool = option(False, "torch.compile: slow start, faster steps on a GPU")

    name: str | None = settings.name_option()
    preload: str = settings.preload_option()
    keep: int | None = option(
        None, "newest weight files to keep, 0 for all", "[0, inf)", default_help="3 (size course: 0)"
    )
    log_every: int = option(20, "steps between two points of the curves", "[1, inf)")
    val_sentences: int = option(256, "sentences translated after each epoch for BLEU, CER and WER", "[0, inf)")

    def __post_init__(self) -> None:
        if self.size not in SIZES:
            raise ValueError(f"unknown size {self.size!r}; choose {', '.join(SIZES)}")
        defaults = COMMON | SIZES[self.size]
        if self.size == "course" and self.corpus == "lemon-mint":
            defaults |= LEMON_MINT
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        if self.pair is None:
            self.pair = corpora.NAMED[self.corpus][0][0] if self.corpus in corpora.NAMED else "en-it"
        if self.name is None:
            self.name = f"{Path(self.corpus).stem}-{self.pair}-{self.size}"
        self._check()

    def _check(self) -> None:
        self.check()
        if self.d_model % self.h != 0:
            raise ValueError(f"--d-model must be a multiple of h = {self.h} heads, got {self.d_model}")

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
        # Length-sorted batches have no fixed number of sentences; the course's DataLoader needs one.
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
            names = sorted({*self.__dataclass_fields__, *COURSE_NAMES, "lang_src", "lang_tgt"})
            raise KeyError(f"setting {name!r} not found; known: {', '.join(names)}")
        return field


def get_config(size: str = "small", **changes: Any) -> Config:
    """Return the configuration of a size with changes: get_config("base", epochs=30, corpus="opus_books")."""
    return Config(size=size, **changes)


@dataclass
class TranslateCommand(Options):
    """Translate sentences with a trained run."""

    sentences: tuple[str, ...] = option(help="sentences to translate", group="internal")
    name: str | None = settings.trained_option("transformer")
    epoch: str | None = settings.epoch_option("are used one after the other")
    beam: int = option(4, "beam width; 1 is greedy search", "[1, inf)")
    penalty: float = option(0.6, "larger values favour longer translations", group="internal")
    pictures: bool = option(False, "save attention maps as PNG and as a page")
    device: str = device_option()
