"""Labelled images: the course's sprite arrays, MNIST, and two data sets that need no download.

`digits` are scikit-learn's 1,797 handwritten digits (8 × 8); `sprites` are drawn by `sprites.py`. A directory may hold
the course's arrays or MNIST's idx files; `mnist` comes from the hub.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from services.ws_mdl.diffusion import sprites
from vla_common.volume import Volume
from vla_modelkit import hub

NAMED = ("digits", "sprites", "mnist")
DIGITS = tuple(str(number) for number in range(10))
HUB_REPOSITORY = "ylecun/mnist"
HUB_REVISION = "77f3279092a1c1579b2250db8eafed0ad422088c"
SPRITES_COUNT = 6000
MAX_BYTES = 500_000_000  # of an idx file: ten times the size of MNIST's images


@dataclass(frozen=True)
class LabelledImages:
    """x: float32 [n, c, h, h] in [-1, 1]. labels: int64 [n], indices into `classes`."""

    name: str
    x: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self):
        if self.x.ndim != 4 or self.x.shape[2] != self.x.shape[3] or self.x.shape[2] % 4 or self.x.shape[2] < 8:
            raise ValueError(f"{self.name}: images {tuple(self.x.shape)}; expected [n, c, h, h], h = 8, 12, 16 …")
        if len(self.x) == 0 or len(self.x) != len(self.labels):
            raise ValueError(f"{self.name}: {len(self.x)} images and {len(self.labels)} labels; expected equally many")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def height(self) -> int:
        return self.x.shape[2]

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    def to(self, device: torch.device) -> LabelledImages:
        """Return the images on a device."""
        return replace(self, x=self.x.to(device), labels=self.labels.to(device))

    def split(self, fraction: float = 0.1, seed: int = 0) -> tuple[LabelledImages, LabelledImages]:
        """Split into training and validation images; `fraction` is the share of the latter."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        val_count = max(1, round(len(order) * fraction))
        parts = order[val_count:], order[:val_count]
        train, val = (replace(self, x=self.x[index], labels=self.labels[index]) for index in parts)
        return train, val


def load(source: str) -> LabelledImages:
    """Load the images of a name or a directory. Raises ValueError for invalid data."""
    if source == "digits":
        return digits()
    if source == "sprites":
        images, labels = sprites.make_sprites(SPRITES_COUNT)
        return LabelledImages("sprites", to_unit_range(images), torch.from_numpy(labels), sprites.CLASSES)
    if source == "mnist":
        return mnist_from_hub()
    for directory in (Path(source).expanduser(), Volume().path("datasets") / source):
        if directory.is_dir():
            return from_directory(directory)
    raise ValueError(f"data {source!r} not found; expected {', '.join(NAMED)}, or a directory with .npy or idx files")


def to_unit_range(images: np.ndarray) -> Tensor:
    """Convert uint8 images [n, h, w, c] to float32 [n, c, h, w] in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 127.5 - 1


def digits() -> LabelledImages:
    """Return scikit-learn's digits (UCI's optical recognition set), 8 × 8 with 17 shades, doubled to 16 × 16.

    Reads the package's file as load_digits does, but without the import, which takes 0.8 s.
    """
    package = Path(find_spec("sklearn").origin).parent
    rows = torch.from_numpy(np.loadtxt(package / "datasets/data/digits.csv.gz", np.uint8, delimiter=","))
    x = rows[:, :-1].reshape(-1, 1, 8, 8).float() / 8 - 1  # 0 … 16
    x = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return LabelledImages("digits", x, rows[:, -1].long(), DIGITS)


def mnist_from_hub() -> LabelledImages:
    """Load MNIST's training images from the hub, which are cached. Raises ValueError if it is not reachable."""
    from datasets import load_dataset

    with hub.offline_if_unreachable() as reason:
        try:
            rows = load_dataset(HUB_REPOSITORY, split="train", revision=HUB_REVISION)
        except Exception as error:  # the library raises whatever its network layer does
            raise ValueError(
                f"{HUB_REPOSITORY} is not available from the hub ({reason or type(error).__name__}); use --data digits "
                "or a directory with MNIST's idx files"
            ) from error
    x = np.stack([np.asarray(image, np.uint8) for image in rows["image"]])
    return LabelledImages("mnist", to_unit_range(x[..., None]), torch.tensor(rows["label"]), DIGITS)


def from_directory(directory: Path) -> LabelledImages:
    """Load the course's sprite arrays or MNIST's idx files, compressed or not, from a directory."""
    arrays = sorted(directory.glob("*.npy"))
    labels = [path for path in arrays if "label" in path.name]
    if len(arrays) == 2 and len(labels) == 1:
        return sprite_arrays(*(path for path in arrays if path not in labels), *labels)
    if idx_files := sorted(directory.rglob("train-images-idx3-ubyte*")):
        label_file = idx_files[0].with_name(idx_files[0].name.replace("images-idx3", "labels-idx1"))
        x, y = idx(idx_files[0], 3), idx(label_file, 1)
        return LabelledImages("mnist", to_unit_range(x[..., None]), torch.from_numpy(y).long(), DIGITS)
    names = ", ".join(path.name for path in arrays) or "no .npy files"
    raise ValueError(
        f"{directory} has {names}; expected two .npy files (images, and labels with 'label' in the name) or MNIST's "
        "train-images-idx3-ubyte and train-labels-idx1-ubyte"
    )


def sprite_arrays(images: Path, labels: Path) -> LabelledImages:
    """Load the course's images uint8 [n, h, h, 3] and one-hot labels [n, 5]."""
    x, one_hot = (_array(path) for path in (images, labels))
    if x.ndim != 4 or x.shape[3] not in (1, 3) or x.dtype != np.uint8:
        raise ValueError(f"{images} holds {x.dtype} {list(x.shape)}; expected uint8 [n, h, h, 3] from 0 to 255")
    if one_hot.ndim != 2 or one_hot.shape[1] != len(sprites.CLASSES):
        raise ValueError(
            f"{labels} holds {list(one_hot.shape)}; expected [n, {len(sprites.CLASSES)}]: {', '.join(sprites.CLASSES)}"
        )
    if not np.isin(one_hot, (0, 1)).all() or (one_hot.sum(axis=1) != 1).any():
        raise ValueError(f"{labels} is not one-hot; expected a single 1 in each row")
    numbers = torch.from_numpy(one_hot.argmax(axis=1)).long()
    return LabelledImages(images.stem, to_unit_range(x), numbers, sprites.CLASSES)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not an array of numbers ({error})") from error


def idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the uint8 array of an idx file: 0 0 8 and the number of dimensions, big-endian int32 sizes, bytes."""
    with path.open("rb") as packed:
        is_gzip = packed.read(2) == b"\x1f\x8b"
        packed.seek(0)
        file = gzip.GzipFile(fileobj=packed) if is_gzip else packed
        head = file.read(4)
        if head != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"{path} begins with {head.hex()}; expected 000008{dimensions:02x}, an idx file of bytes")
        shape = np.frombuffer(file.read(4 * dimensions).ljust(4 * dimensions, b"\0"), ">u4")
        size = min(int(shape.prod(dtype=np.float64)), MAX_BYTES)
        values = np.frombuffer(file.read(size + 1), np.uint8)  # never unpack more than declared
    if values.size != shape.prod(dtype=np.float64) or not values.size:
        raise ValueError(f"{path} declares {' × '.join(map(str, shape))} bytes but has {values.size}; it is truncated")
    return values.reshape(shape).copy()  # torch needs a writable array
