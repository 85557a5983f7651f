"""`python -m services.gr00t.checkpoints --suite libero_goal`: gets a checkpoint onto the shared volume.

`--suite base` is NVIDIA's own; `--tiny` makes a small random one without any download.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from services.gr00t import tiny
from services.gr00t.checkpoint import RECORD, CheckpointError, Published, find, published, weight_files
from vla_contract import Volume
from vla_contract.volume import make_own_folder, require_space

SIZE = 6 * 10**9  # bytes: 5.4 GB of weights and room to spare
FILES = ["*.json", "*.safetensors", "experiment_cfg/*", "LICENSE*", "README.md"]  # not the optimizer's state


@dataclass(frozen=True)
class Get:
    """Get a GR00T N1.5 checkpoint onto the shared volume."""

    suite: str = ""  # libero_spatial, libero_object, libero_goal, libero_10, or base
    tiny: bool = False  # a small random checkpoint instead, made here
    embodiment: str = "libero"  # of the tiny one
    name: str = ""  # its folder under checkpoints/; default: the repository's name, or gr00t-tiny

    def __post_init__(self):
        if bool(self.suite) == self.tiny:
            raise ValueError(
                "give --suite NAME for a published checkpoint (libero_goal, base, …), or --tiny for a random one"
            )

        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a folder name")

    def folder(self, volume: Volume) -> Path:
        """Returns where the checkpoint belongs. Raises CheckpointError where a random one would replace another."""
        usual = "gr00t-tiny" if self.tiny else published(self.suite).repo.split("/")[1]
        folder = volume.checkpoints / (self.name or usual)
        if self.tiny and folder.exists() and find(str(folder)).record.get("repo") != tiny.REPO:
            raise CheckpointError(f"{folder} holds another checkpoint; choose another --name for the random one")
        return folder


def download(wanted: Published, suite: str, folder: Path) -> Path:
    """Returns `folder` with the checkpoint and our record in it; an interrupted download goes on.

    Raises CheckpointError where the hub cannot be reached or files are missing, VolumeError where the disk is full.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    require_space(folder, SIZE - sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    try:
        snapshot_download(wanted.repo, revision=wanted.revision, local_dir=folder, allow_patterns=FILES)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{wanted.repo} at {wanted.revision} cannot be downloaded: {' '.join(str(error).split())[:300]}. Do it "
            f"again: what has arrived is kept. Or get the repository's files elsewhere and put them into {folder}"
        ) from error
    weight_files(folder)
    record = {"repo": wanted.repo, "revision": wanted.revision, "embodiment": wanted.embodiment}
    (folder / RECORD).write_text(json.dumps(record | ({"suite": suite} if suite != "base" else {}), indent=1))
    return folder


def main() -> None:
    """Gets the checkpoint and says how to serve it."""
    try:
        wanted = tyro.cli(Get, prog="python -m services.gr00t.checkpoints")
        folder = make_own_folder(wanted.folder(Volume()))
        if wanted.tiny:
            tiny.make(folder, wanted.embodiment)
        else:
            download(published(wanted.suite), wanted.suite, folder)
        found = find(str(folder))
    except (OSError, ValueError) as error:
        raise SystemExit(f"gr00t: {error}") from None
    print(f"{folder}: embodiment {found.embodiment().name}; serve it with VLALAB_GR00T_CHECKPOINT={folder.name}")


if __name__ == "__main__":
    main()
