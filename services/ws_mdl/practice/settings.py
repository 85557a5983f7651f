"""Settings of the practice labs: one class per lab, whose fields are the flags of `train LAB`.

`./lab` reads this module without the labs' packages, so it imports the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from services.ws_mdl import corpora, settings
from services.ws_mdl.settings import RunSettings
from vla_common.options import device_option, option

# What a resumed run may change: where and how long it trains, not what it learns.
FREE = ("epochs", "device", "precision", "name", "preload", "keep", "save_every", "measure_every")


@dataclass
class PracticeSettings(RunSettings):
    """Settings of every practice lab; a subclass states its own LAB, SOURCE, fields and other defaults."""

    SOURCE = ""  # the field after which a run is named by default

    epochs: int = option(20, "passes over the training set", "[1, inf)")
    batch_size: int = option(64, "examples", "[1, inf)")
    lrate: float = option(1e-3, "peak; linear warm-up, then cosine decay to 0", "(0, inf)")
    warmup: int = option(100, "batches of the warm-up", "[0, inf)")
    weight_decay: float = option(0.01, "AdamW's, on matrices only", "[0, inf)")
    clip: float = option(1.0, "maximum norm of the gradient", "(0, inf)")
    ema: float = option(0.99, "decay of the averaged weights, which are measured and shown; 0: none", "[0, 1]")
    seed: int = option(0, "of all random numbers")

    device: str = device_option()
    precision: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 where the device computes in it")

    name: str | None = settings.name_option()
    preload: str = settings.preload_option()
    keep: int = settings.keep_option()
    save_every: int = option(5, "epochs between two weight files", "[1, inf)")
    measure_every: int = option(1, "epochs between two measurements on held-out data", "[1, inf)")

    def __post_init__(self) -> None:
        if self.name is None:
            self.name = self.default_name()
        self.check()

    def default_name(self) -> str:
        """Return the run's default name: that of its data, a text's or series' file without suffix."""
        path = Path(getattr(self, self.SOURCE))
        return path.name if self.SOURCE == "data" else path.stem

    @property
    def FIXED(self) -> tuple[str, ...]:
        """The settings that a run's weights depend on."""
        return tuple(field.name for field in fields(self) if field.name not in FREE)

    def check_heads(self, d_model: int, h: int) -> None:
        """Raise ValueError if d_model is not a multiple of h, or a head's width is odd."""
        if d_model % h != 0 or d_model // h % 2 != 0:
            raise ValueError(f"--d-model must be a multiple of 2 h for h = {h} heads, got {d_model}")


@dataclass
class StackSettings(PracticeSettings):
    """Settings of a model made of one stack of lab 1's blocks."""

    d_model: int = option(64, "numbers per token", "[1, inf)")
    N: int = option(2, "blocks", "[1, inf)")
    h: int = option(4, "attention heads; must divide d_model", "[1, inf)")
    d_ff: int = option(128, "width of the feed-forward blocks", "[1, inf)")
    dropout: float = option(0.1, "dropout probability in training", "[0, 1)")
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = option("learned", "positional encoding")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_heads(self.d_model, self.h)

    def size(self) -> dict[str, Any]:
        """Return the arguments that every such model takes."""
        return {name: getattr(self, name) for name in ("d_model", "N", "h", "d_ff", "dropout", "positions")}


@dataclass
class TextSettings(PracticeSettings):
    """Settings of a lab that learns from text in one language."""

    SOURCE = "corpus"

    corpus: str = settings.corpus_option(
        "one of lab 1's, python (its reference manual, no download), or a .txt, .tsv or .jsonl file", settings.PYTHON
    )
    pair: str | None = settings.pair_option("languages of a corpus, as in en-it; the first one is used")
    held_fraction: float = option(0.1, "of the corpus, held out for measuring", "(0, 1)")


@dataclass
class Vit(StackSettings):
    """A Vision Transformer."""

    LAB, SOURCE = "vit", "data"

    data: str = settings.data_option(
        "digits", "digits, sprites, mnist, a directory as for diffusion, or a robot data set, to classify its tasks"
    )
    side: int = option(64, "height and width of a data set's frames; other images are not resized", "[8, inf)")
    held_fraction: float = option(0.2, "of the images, or of each task's episodes, held out for measuring", "(0, 1)")
    shift: int = option(2, "maximum random shift of training images in pixels", "[0, inf)")
    patch: int = option(4, "height and width of a patch in pixels; use 8 for a data set's frames", "[1, inf)")
    smoothing: float = option(0.05, "label smoothing", "[0, 1)")

    N: int = 4
    epochs: int = 60
    batch_size: int = 32


@dataclass
class Bert(TextSettings, StackSettings):
    """A small BERT."""

    LAB = "bert"

    tokenizer: Literal["word", "bpe"] = option("word", "whole words, or byte-pair encoding")
    vocab_size: int = option(4000, "of a BPE tokenizer, at most", "[1, inf)")
    mask_fraction: float = option(0.15, "share of tokens to predict", "(0, 1)")
    seq: int = option(64, "tokens of both texts", "[8, inf)")

    d_model: int = 96
    d_ff: int = 384
    epochs: int = 6
    batch_size: int = option(16, "pairs of texts")
    lrate: float = 1.5e-3
    save_every: int = 1


@dataclass
class Gpt(TextSettings, StackSettings):
    """A small GPT."""

    LAB = "gpt"

    tokenizer: Literal["character", "word", "bpe"] = option("character", "what a token is; bpe: byte-pair encoding")
    vocab_size: int = option(1000, "of a BPE tokenizer, at most", "[1, inf)")
    seq: int = option(128, "tokens of the context", "[2, inf)")
    temperature: float = option(0.8, "of the samples shown at the end; below 1: sharper distribution", "[0, inf)")
    top_k: int = option(0, "of the samples: only the k most likely tokens, 0 for all", "[0, inf)")
    top_p: float = option(0.95, "of the samples: only the most likely tokens with this total probability", "(0, 1]")

    d_model: int = 96
    N: int = 3
    d_ff: int = 384
    dropout: float = 0.0
    positions: Literal["learned", "sinusoidal", "rotary", "relative", "none"] = "rotary"
    epochs: int = 20
    batch_size: int = option(8, "windows of seq tokens; small batches give more steps on a small corpus")
    lrate: float = 2.5e-3
    weight_decay: float = 0.1
    measure_every: int = 2
    save_every: int = 1


@dataclass
class Skipgram(TextSettings):
    """Word vectors by skip-gram."""

    LAB = "skipgram"

    window: int = option(4, "context size: words on each side", "[1, inf)")
    negatives: int = option(8, "negative samples per context word", "[1, inf)")
    rare: float = option(1e-3, "frequency above which words are subsampled", "(0, 1]")
    d_model: int = option(96, "numbers per word", "[1, inf)")

    epochs: int = 10
    batch_size: int = option(256, "center words")
    lrate: float = 3e-3
    weight_decay: float = 0.0
    measure_every: int = 5


@dataclass
class Forecast(StackSettings):
    """A forecaster of a series."""

    LAB, SOURCE = "forecast", "series"

    series: str = option("bikes", "bikes (a year of hours, downloaded), made (generated), or a file of numbers")
    season: int = option(168, "period in steps, of the seasonal baseline; default: a week of hours", "[1, inf)")
    held_fraction: float = option(0.25, "of the series, at its end, held out for measuring", "(0, 1)")
    lookback: int = option(336, "steps of the context: two weeks of hours", "[2, inf)")
    patch: int = option(8, "steps of a token", "[1, inf)")
    horizon: int = option(24, "steps to forecast", "[1, inf)")
    direct: int = option(336, "last steps of the context that also pass through a linear layer", "[1, inf)")

    epochs: int = 60
    batch_size: int = option(16, "windows")
    lrate: float = 4e-3
    weight_decay: float = 0.05
    measure_every: int = 10
    save_every: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lookback % self.patch:
            raise ValueError(f"lookback {self.lookback} is not a multiple of patch {self.patch}; choose another")
        if not self.patch <= self.direct <= self.lookback:
            raise ValueError(f"direct is {self.direct}; expected from patch {self.patch} to lookback {self.lookback}")


@dataclass
class Lstm(PracticeSettings):
    """A translator of LSTMs."""

    LAB = "lstm"

    corpus: str = settings.corpus_option("default, reverse, opus_books, lemon-mint, or a .tsv or .jsonl file")
    pair: str | None = settings.pair_option("source and target, as in en-it", default_help="the corpus's first pair")
    model: Literal["attention", "plain", "transformer"] = option(
        "attention", "LSTM with or without attention, or lab 1's Transformer"
    )
    d_model: int = option(64, "numbers per word, of the LSTMs", "[1, inf)")
    hidden: int = option(128, "size of a state; the Transformer's d_model", "[1, inf)")
    layers: int = option(2, "the Transformer's N", "[1, inf)")
    h: int = option(4, "the Transformer's heads", "[1, inf)")
    dropout: float = option(0.1, "dropout probability in training", "[0, 1)")
    label_smoothing: float = option(0.0, "share of the target probability for all other words", "[0, 1)")
    seq: int = option(64, "maximum tokens per sentence, including [SOS] and [EOS]; longer ones are skipped", "[3, inf)")
    min_frequency: int = option(2, "rarer words become [UNK]", "[1, inf)")
    val_fraction: float = option(0.1, "of the source sentences, held out for measuring", "[0, 1)")
    val_sentences: int = option(256, "sentences translated for BLEU and exact match", "[1, inf)")

    lrate: float = 2e-3
    precision: Literal["auto", "fp32", "bf16"] = option("fp32", "torch's LSTM on a CPU is no faster in bf16")

    def __post_init__(self) -> None:
        if self.pair is None:
            self.pair = corpora.NAMED[self.corpus][0][0] if self.corpus in corpora.NAMED else "en-it"
        super().__post_init__()
        if self.model == "transformer":
            self.check_heads(self.hidden, self.h)

    def default_name(self) -> str:
        return f"{Path(self.corpus).stem}-{self.pair}-{self.model}"


@dataclass
class Vae(PracticeSettings):
    """A variational autoencoder."""

    LAB, SOURCE = "vae", "data"

    data: str = settings.data_option("digits", "digits, sprites, mnist, or a directory; see the diffusion lab")
    width: int = option(32, "channels of the first convolution", "[1, inf)")
    latent: int = option(16, "dimensions of z", "[1, inf)")
    sigma: float | None = option(None, "standard deviation of a pixel", "(0, inf)", default_help="learned")
    beta: float = option(1.0, "weight of the KL; 1: the bound on log p(x)", "[0, inf)")
    free_nats: float = option(0.0, "KL per dimension of z at no cost", "[0, inf)")
    anneal: float = option(0.0, "share of the batches over which the KL's weight rises from 0 to beta", "[0, 1]")

    epochs: int = 60
    batch_size: int = 100
    lrate: float = 2e-3
    weight_decay: float = 0.0
    clip: float = option(100.0, "large, because the loss is in nats per image")
    measure_every: int = 5
    save_every: int = 20
