"""A GR00T N1.5 checkpoint: where it lies, what it says about itself, and how to get one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from services.gr00t.checkpoint.config import ADAPTER, refuse_others
from services.gr00t.checkpoint.embodiment import OWN, Embodiment, embodiment, read, usable
from vla_common.volume import Volume
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import CheckpointError, find_folder, read_json, read_record

EARLIER = "vla-lab.json"  # the manifest of folders from before it was called as every model's
METADATA = "experiment_cfg/metadata.json"


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
HOW_TO_GET = (
    "get one with `./lab checkpoint gr00t --suite libero_goal` (fine-tuned on LIBERO) or `--suite base` "
    f"({PUBLISHED['base'].repo} at {PUBLISHED['base'].revision}), or put its folder into checkpoints/ on the volume; "
    "then set VLALAB_GR00T_CHECKPOINT to the folder's name"
)


@dataclass(frozen=True)
class CheckpointFolder:
    """A checkpoint folder, its metadata by embodiment tag, and our record of where it comes from."""

    folder: Path
    metadata: Mapping[str, Any]
    record: Mapping[str, Any]

    def embodiment(self, name: str = "") -> Embodiment:
        """Returns the embodiment to serve: the named one, else the folder's own embodiment.json, else the recorded one,
        else that of a published checkpoint whose repository's name the folder has, else LIBERO's.

        Raises CheckpointError where the checkpoint has no statistics for it.
        """
        chosen = self._chosen(name)
        if chosen.tag not in self.metadata:
            raise CheckpointError(
                f"checkpoint {self.folder.name} has statistics for {', '.join(self.metadata) or 'nothing'}; embodiment "
                f"{chosen.name!r} needs {chosen.tag!r}. Serve a checkpoint fine-tuned for it, such as "
                f"{PUBLISHED['libero_spatial'].repo} for LIBERO, or set VLALAB_GR00T_EMBODIMENT to one it has"
                f" ({', '.join(usable(self.metadata)) or 'none of ours'})"
            )
        return chosen

    def _chosen(self, name: str) -> Embodiment:
        if not name and (self.folder / OWN).is_file():
            return read(self.folder / OWN)
        by_name = {one.repo.split("/")[1]: one.embodiment for one in PUBLISHED.values()}
        return embodiment(name or self.record.get("embodiment") or by_name.get(self.folder.name, "libero"))

    @property
    def suites(self) -> tuple[str, ...]:
        """The suite it was fine-tuned for, as recorded; empty: unknown."""
        return (self.record["suite"],) if self.record.get("suite") else ()

    @property
    def overrides(self) -> Mapping[str, Any] | None:
        """Changes to upstream's Eagle configuration, which only small test checkpoints have."""
        return self.record.get("eagle")


def find(name: str, volume: Volume | None = None) -> CheckpointFolder:
    """Returns the checkpoint called `name`: a folder under checkpoints/ on the volume, or a path.

    Raises CheckpointError where there is none, or where it is not a GR00T N1.5 checkpoint.
    """
    folder = find_folder(name, "VLALAB_GR00T_CHECKPOINT", HOW_TO_GET, volume)
    lone_adapter = (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()
    refuse_others(folder, {} if lone_adapter else read_json(folder / "config.json"))
    earlier = read_json(folder / EARLIER) if (folder / EARLIER).is_file() else {}
    return CheckpointFolder(folder, read_json(folder / METADATA), read_record(folder) or earlier)


def published(suite: str) -> Published:
    """Returns the published checkpoint for a suite, or the base model. Raises ValueError for an unknown name."""
    if suite not in PUBLISHED:
        raise ValueError(f"no published checkpoint for {suite!r}{did_you_mean(suite, PUBLISHED)}")
    return PUBLISHED[suite]
