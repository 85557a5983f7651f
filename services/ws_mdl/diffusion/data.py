"""Pictures with labels: the course's sprite arrays, MNIST, and two sets that need no download.

`digits` are scikit-learn's 1,797 handwritten digits (8 × 8); `sprites` are drawn by `sprites.py`. A folder may hold the
course's arrays or MNIST's idx files; `mnist` comes from the hub.
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
MOST_BYTES = 500_000_000  # of an idx file: ten times MNIST's pictures


@dataclass(frozen=True)
class Pictures:
    """x: float32 [n, c, h, h] in [-1, 1]. labels: int64 [n], numbers into `classes`."""

    name: str
    x: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def __post_init__(self):
        if self.x.ndim != 4 or self.x.shape[2] != self.x.shape[3] or self.x.shape[2] % 4 or self.x.shape[2] < 8:
            raise ValueError(
                f"{self.name}: pictures of shape {tuple(self.x.shape)}; expected [n, c, h, h], h = 8, 12, 16 …"
            )
        if len(self.x) == 0 or len(self.x) != len(self.labels):
            raise ValueError(
                f"{self.name}: {len(self.x)} pictures and {len(self.labels)} labels; expected as many, at least 1"
            )

    def __len__(self) -> int:
        return len(self.x)

    @property
    def height(self) -> int:
        return self.x.shape[2]

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    def split(self, fraction: float = 0.1, seed: int = 0) -> tuple[Pictures, Pictures]:
        """Returns most of the pictures, and a share of them held back."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        held = max(1, round(len(order) * fraction))
        parts = order[held:], order[:held]
        most, share = (replace(self, x=self.x[index], labels=self.labels[index]) for index in parts)
        return most, share


def load(source: str) -> Pictures:
    """Returns the pictures of that name, or of a folder. Raises ValueError that says what is wrong with it."""
    if source == "digits":
        return digits()
    if source == "sprites":
        drawn, labels = sprites.make_sprites(SPRITES_COUNT)
        return Pictures("sprites", to_unit_range(drawn), torch.from_numpy(labels), sprites.CLASSES)
    if source == "mnist":
        return mnist_from_hub()
    for directory in (Path(source).expanduser(), Volume().path("datasets") / source):
        if directory.is_dir():
            return from_directory(directory)
    raise ValueError(f"data {source!r} not found; expected {', '.join(NAMED)}, or a folder with .npy or idx files")


def to_unit_range(images: np.ndarray) -> Tensor:
    """Returns uint8 pictures [n, h, w, c] as float32 [n, c, h, w] in [-1, 1]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))).float() / 127.5 - 1


def digits() -> Pictures:
    """Returns scikit-learn's digits (UCI's optical recognition set), 8 × 8 with 17 shades, doubled to 16 × 16.

    Its file is read, as load_digits does: the package itself takes 0.8 s to import.
    """
    package = Path(find_spec("sklearn").origin).parent
    rows = torch.from_numpy(np.loadtxt(package / "datasets/data/digits.csv.gz", np.uint8, delimiter=","))
    x = rows[:, :-1].reshape(-1, 1, 8, 8).float() / 8 - 1  # 0 … 16
    x = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return Pictures("digits", x, rows[:, -1].long(), DIGITS)


# --- folders ------------------------------------------------------------------------------------------------


def from_directory(directory: Path) -> Pictures:
    """Returns the course's sprite arrays or MNIST's idx files of a folder, compressed or not."""
    arrays = sorted(directory.glob("*.npy"))
    labels = [path for path in arrays if "label" in path.name]
    images = [path for path in arrays if path not in labels]
    if len(images) == 1 and len(labels) == 1:
        return sprite_arrays(images[0], labels[0])
    found = sorted(directory.rglob("train-images-idx3-ubyte*"))
    if found:
        return mnist_files(found[0], found[0].with_name(found[0].name.replace("images-idx3", "labels-idx1")))
    names = ", ".join(path.name for path in arrays) or "no .npy files"
    raise ValueError(
        f"{directory} has {names}; expected two .npy files (pictures, and labels with 'label' in the name) or MNIST's "
        "train-images-idx3-ubyte and train-labels-idx1-ubyte"
    )


def sprite_arrays(images: Path, labels: Path) -> Pictures:
    """Returns pictures uint8 [n, h, h, 3] with one-hot labels [n, 5], as the course has them."""
    x, one_hot = (_array(path) for path in (images, labels))
    if x.ndim != 4 or x.shape[3] not in (1, 3) or x.dtype != np.uint8:
        raise ValueError(f"{images} holds {x.dtype} {list(x.shape)}; expected uint8 [n, h, h, 3] from 0 to 255")
    if one_hot.ndim != 2 or one_hot.shape[1] != len(sprites.CLASSES):
        raise ValueError(
            f"{labels} holds {list(one_hot.shape)}; expected [n, {len(sprites.CLASSES)}]: {', '.join(sprites.CLASSES)}"
        )
    if not np.isin(one_hot, (0, 1)).all() or (one_hot.sum(axis=1) != 1).any():
        raise ValueError(f"{labels} is not one-hot; expected a single 1 in each row")
    return Pictures(images.stem, to_unit_range(x), torch.from_numpy(one_hot.argmax(axis=1)).long(), sprites.CLASSES)


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is no array of numbers ({error})") from error


def mnist_files(images: Path, labels: Path) -> Pictures:
    """Returns MNIST from its idx files: uint8, 28 × 28."""
    if not labels.is_file():
        raise ValueError(f"{labels} not found beside {images.name}")
    x, y = idx(images, 3), idx(labels, 1)
    return Pictures("mnist", to_unit_range(x[..., None]), torch.from_numpy(y).long(), DIGITS)


def idx(path: Path, dimensions: int) -> np.ndarray:
    """Returns the uint8 array of an idx file: 0 0 8 and the number of dimensions, big-endian int32 sizes, bytes."""
    with path.open("rb") as packed:
        is_gzip = packed.read(2) == b"\x1f\x8b"
        packed.seek(0)
        file = gzip.GzipFile(fileobj=packed) if is_gzip else packed
        head = file.read(4)
        if head != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"{path} begins with {head.hex()}; expected 000008{dimensions:02x}, an idx file of bytes")
        shape = np.frombuffer(file.read(4 * dimensions).ljust(4 * dimensions, b"\0"), ">u4")
        size = min(int(shape.prod(dtype=np.float64)), MOST_BYTES)
        values = np.frombuffer(file.read(size + 1), np.uint8)  # and no more, whatever a packed file unpacks to
    if values.size != shape.prod(dtype=np.float64) or not values.size:
        raise ValueError(f"{path} says {' × '.join(map(str, shape))} and has {values.size} bytes: it is cut off")
    return values.reshape(shape).copy()  # torch wants arrays that can be written to


def mnist_from_hub() -> Pictures:
    """Returns MNIST's training pictures from the hub, kept in its cache. Raises ValueError where it cannot be had."""
    from datasets import load_dataset

    with hub.offline_if_unreachable() as why:
        try:
            rows = load_dataset(HUB_REPOSITORY, split="train", revision=HUB_REVISION)
        except Exception as error:  # the library raises whatever its network layer does
            raise ValueError(
                f"{HUB_REPOSITORY} cannot be had from the hub ({why or type(error).__name__}); take --data digits, or "
                "a folder with MNIST's idx files"
            ) from error
    x = np.stack([np.asarray(image, np.uint8) for image in rows["image"]])
    return Pictures("mnist", to_unit_range(x[..., None]), torch.tensor(rows["label"]), DIGITS)
