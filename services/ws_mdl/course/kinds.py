"""What a file of the course is, told by its content: its name gives an epoch, a language or a run's name at most."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from services.ws_mdl.diffusion.data import idx
from services.ws_mdl.transformer.checkpoints import describe
from services.ws_mdl.transformer.tokenization import load_tokenizer
from vla_modelkit.training.weights import DamagedFileError, State, load_state

LAST_EPOCH = 31  # of the course's 32: what a file called "trained" holds
LANGUAGES = {"english": "en", "korean": "ko", "italian": "it", "kr": "ko"}  # as the course's files are called
NEEDED = frozenset({"model_state_dict", "optimizer_state_dict", "epoch", "global_step"})
EXPECTED = re.compile(r"\.(pt|pth|npy)$|(^|/)tokenizer_[^/]*\.json$|(^|/)events\.out\.tfevents|-idx[13]-ubyte(\.gz)?$")


@dataclass(frozen=True)
class File:
    """A file that was recognised: its name where it came from, and where its bytes can be read."""

    name: str
    path: Path

    @property
    def stem(self) -> str:
        """Its name without folders and ending."""
        return PurePosixPath(self.name).stem


@dataclass(frozen=True)
class TransformerWeights(File):
    """A state of the course's Transformer. shapes: what `checkpoints.describe` says of it."""

    epoch: int
    shapes: dict[str, Any]


@dataclass(frozen=True)
class DiffusionWeights(File):
    """Weights of the course's U-Net: the state dict alone. run: its name without the epoch."""

    epoch: int
    run: str
    channels: int
    n_feat: int
    classes: int
    height: int


@dataclass(frozen=True)
class TokenizerFile(File):
    """A tokenizer of `size` words of a language."""

    language: str
    size: int


@dataclass(frozen=True)
class Array(File):
    """Pictures uint8 [n, h, h, 3], or one-hot labels [n, 5]."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Idx(File):
    """MNIST's pictures or labels."""


@dataclass(frozen=True)
class Curves(File):
    """TensorBoard's events."""


def recognise(name: str, path: Path) -> File | None:
    """Returns what a file is, or None for none of the course's. Raises ValueError for one that should be and is not."""
    try:
        found = _by_content(name, path)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error).replace(str(path), "it")) from error
    if found is None and EXPECTED.search(name):
        raise ValueError(f"is not what its name says (it begins with {_head(path, 8)!r})")
    return found


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _by_content(name: str, path: Path) -> File | None:
    head = _head(path, 64)
    if head[:4] == b"PK\3\4" or head[:2] == b"\x80\2":
        return _weights(name, path)
    if head[:6] == b"\x93NUMPY":
        return _array(name, path)
    if b"brain.Event:" in head:
        return Curves(name, path)
    if head[:3] == b"\0\0\x08" or (head[:2] == b"\x1f\x8b" and _is_packed_idx(path)):
        idx(path, 3 if "idx3" in name else 1)
        return Idx(name, path)
    return _tokenizer(name, path) if head.lstrip()[:1] == b"{" and name.endswith(".json") else None


def _is_packed_idx(path: Path) -> bool:
    with gzip.open(path) as file:
        return file.read(3) == b"\0\0\x08"


# --- weights ------------------------------------------------------------------------------------------------


def _weights(name: str, path: Path) -> File | None:
    if zipfile.is_zipfile(path) and not any(part.endswith("data.pkl") for part in zipfile.ZipFile(path).namelist()):
        return None  # another kind of archive
    try:
        state = load_state(path)
    except DamagedFileError as error:
        pickled = "eights only" in str(error)  # torch's words for a file that would run something
        raise ValueError("holds more than numbers and was not unpickled" if pickled else str(error)) from error
    if "init_conv.conv1.0.weight" in state:
        return _diffusion(name, path, state)
    if missing := NEEDED - set(state):
        raise ValueError(f"lacks {', '.join(sorted(missing))}: neither the course's Transformer nor its U-Net")
    return _transformer(name, path, state)


def _transformer(name: str, path: Path, state: State) -> TransformerWeights:
    try:
        shapes = describe(state["model_state_dict"])
    except (KeyError, ValueError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"holds no weights of the course's Transformer (it lacks {error})") from error
    if not isinstance(state["epoch"], int) or not 0 <= state["epoch"] < 10_000:
        raise ValueError(f"says epoch {state['epoch']!r}; expected a number from 0")
    return TransformerWeights(name, path, state["epoch"], shapes)


def _diffusion(name: str, path: Path, state: State) -> DiffusionWeights:
    try:
        n_feat, channels = state["init_conv.conv1.0.weight"].shape[:2]
        classes = state["contextembed1.model.0.weight"].shape[1]
        height = 4 * state["up0.0.weight"].shape[2]
    except (KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"holds no weights of the course's U-Net (it lacks {error})") from error
    stem = PurePosixPath(name).stem
    number = re.search(r"_(\d+)$", stem)
    run = re.sub(r"_(\d+|trained)$", "", stem)
    run = re.sub(r"[^a-z0-9.]+", "-", run.lower()).strip("-") or "model"
    return DiffusionWeights(
        name, path, int(number[1]) if number else LAST_EPOCH, run, channels, n_feat, classes, height
    )


# --- words, arrays ------------------------------------------------------------------------------------------


def _tokenizer(name: str, path: Path) -> TokenizerFile | None:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict) or "vocab" not in str(content.get("model", ""))[:10_000]:
        return None
    tokenizer = load_tokenizer(path)
    language = PurePosixPath(name).stem.lower().removeprefix("tokenizer_")
    language = LANGUAGES.get(language, language)
    if not re.fullmatch(r"[a-z]{2,}", language):
        raise ValueError("says no language; expected a name such as tokenizer_en.json")
    return TokenizerFile(name, path, language, tokenizer.get_vocab_size())


def _array(name: str, path: Path) -> Array:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"is no array of numbers ({error})") from error
    pictures = values.ndim == 4 and values.shape[1] == values.shape[2] and values.shape[3] in (1, 3)
    if not (pictures and values.dtype == np.uint8) and values.ndim != 2:
        raise ValueError(f"holds {values.dtype} {list(values.shape)}; expected uint8 [n, h, h, 3] or one-hot [n, 5]")
    return Array(name, path, values.shape)
