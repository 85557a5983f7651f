"""A GR00T N1.5 checkpoint: where it lies, what it says about itself, and how to get one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from services.gr00t.embodiments import EMBODIMENTS, Embodiment, embodiment
from vla_contract import Checkpoint, Volume
from vla_contract.errors import did_you_mean, nearest

RECORD = "vla-lab.json"  # written beside a checkpoint that we made or downloaded: repo, revision, embodiment, suite
METADATA = "experiment_cfg/metadata.json"


class CheckpointError(ValueError):
    """A checkpoint is missing or cannot be used as it is; the text says what is wrong and what to do."""


@dataclass(frozen=True)
class Published:
    """A published checkpoint: repository and revision on the model hub, and the embodiment to serve it as."""

    repo: str
    revision: str
    embodiment: str


_LIBERO = "youliangtan/gr00t-n1.5-libero-{}-posttrain"
PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        "base": Published("nvidia/GR00T-N1.5-3B", "869830fc749c35f34771aa5209f923ac57e4564e", "oxe_droid"),
        "libero_spatial": Published(_LIBERO.format("spatial"), "03294ae3de7d4870be8ae6e27cbdeffcb46b6425", "libero"),
        "libero_object": Published(_LIBERO.format("object"), "f422266b016fd917127d3a0348062a5cd750df43", "libero"),
        "libero_goal": Published(_LIBERO.format("goal"), "17be45f5bf8a543594761b263c68cf33f33847bd", "libero_mean_std"),
        "libero_10": Published(_LIBERO.format("long"), "aa49078d5cc9ce72917bc4312f1ef12771f277de", "libero"),
    }
)


@dataclass(frozen=True)
class Found:
    """A checkpoint folder, its metadata by embodiment tag, and our record of where it comes from."""

    folder: Path
    metadata: Mapping[str, Any]
    record: Mapping[str, Any]

    def embodiment(self, name: str | None = None) -> Embodiment:
        """Returns the embodiment to serve: the named one, else the recorded one, else that of a published checkpoint
        whose repository's name the folder has, else LIBERO's.

        Raises CheckpointError where the checkpoint has no statistics for it.
        """
        by_name = {one.repo.split("/")[1]: one.embodiment for one in PUBLISHED.values()}
        chosen = embodiment(name or self.record.get("embodiment") or by_name.get(self.folder.name, "libero"))
        if chosen.tag not in self.metadata:
            usable = [one.name for one in EMBODIMENTS.values() if one.tag in self.metadata]
            raise CheckpointError(
                f"checkpoint {self.folder.name} has statistics for {', '.join(self.metadata) or 'nothing'}; embodiment "
                f"{chosen.name!r} needs {chosen.tag!r}. Serve a checkpoint fine-tuned for it, such as "
                f"{PUBLISHED['libero_spatial'].repo} for LIBERO, or set VLALAB_GR00T_EMBODIMENT to one it has"
                f" ({', '.join(usable) or 'none of ours'})"
            )
        return chosen

    @property
    def suites(self) -> tuple[str, ...]:
        """The suite it was fine-tuned for, as recorded; empty: unknown."""
        return (self.record["suite"],) if self.record.get("suite") else ()

    @property
    def sizes(self) -> Mapping[str, Any] | None:
        """Changes to upstream's Eagle configuration, which only small test checkpoints have."""
        return self.record.get("eagle")

    def described(self) -> Checkpoint:
        """Returns repository, revision and the sha256 over the weight files' own (of 5 GB: seconds)."""
        return Checkpoint(
            self.record.get("repo", self.folder.name),
            self.record.get("revision", "unrecorded"),
            weights_hash(self.folder),
        )


def find(name: str | None, volume: Volume | None = None) -> Found:
    """Returns the checkpoint called `name`: a folder under checkpoints/ on the volume, or a path.

    Raises CheckpointError where there is none, or where it is not a GR00T N1.5 checkpoint.
    """
    checkpoints = (volume or Volume()).path("checkpoints")
    if not name:
        raise CheckpointError(f"no checkpoint is named. {how_to_get(checkpoints)}")
    folder = Path(name) if Path(name).is_dir() else checkpoints / name
    if not folder.is_dir():
        near = nearest(name, _names(checkpoints)) if _names(checkpoints) else "."
        raise CheckpointError(
            f"checkpoint {name!r} is no folder under {checkpoints} and no path{near} {how_to_get(checkpoints)}"
        )
    config = _read(folder / "config.json", folder)
    if config.get("model_type") != "gr00t_n1_5":
        raise CheckpointError(
            f"{folder} holds a model of type {config.get('model_type')!r}; expected 'gr00t_n1_5' (GR00T N1 and N1.6 "
            f"are other models). {how_to_get(checkpoints)}"
        )
    record = _read(folder / RECORD, folder) if (folder / RECORD).exists() else {}
    return Found(folder, _read(folder / METADATA, folder), record)


def how_to_get(checkpoints: Path) -> str:
    """Returns how to get a checkpoint, in a sentence."""
    base = PUBLISHED["base"]
    return (
        "Get one with `./lab checkpoint gr00t --suite libero_goal` (fine-tuned on LIBERO) or "
        f"`--suite base` ({base.repo} at {base.revision}), or put its folder into {checkpoints}; then set "
        "VLALAB_GR00T_CHECKPOINT to the folder's name"
    )


def published(suite: str) -> Published:
    """Returns the published checkpoint for a suite, or the base model. Raises ValueError for an unknown name."""
    if suite not in PUBLISHED:
        raise ValueError(f"no published checkpoint for {suite!r}{did_you_mean(suite, PUBLISHED)}")
    return PUBLISHED[suite]


def weight_files(folder: Path) -> list[Path]:
    """Returns the files that hold the weights. Raises CheckpointError where one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(_read(index, folder)["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors")) or ["model.safetensors"]
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(f"{folder} lacks {', '.join(absent)}: the download was not finished, do it again")
    return [folder / name for name in names]


def weights_hash(folder: Path) -> str:
    """Returns the sha256 over the names and sha256 of the weight files."""
    total = hashlib.sha256()
    for path in weight_files(folder):
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
        total.update(f"{path.name} {digest.hexdigest()}\n".encode())
    return total.hexdigest()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _read(path: Path, folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except OSError as error:
        raise CheckpointError(
            f"{folder} is no complete GR00T N1.5 checkpoint: {path.relative_to(folder)} cannot be read "
            f"({error.strerror}); download it again, or name another folder"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON ({error}); download the checkpoint again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, no object; download the checkpoint again")
    return value
