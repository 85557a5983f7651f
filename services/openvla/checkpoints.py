"""`python -m services.openvla.checkpoints`: gets a published checkpoint onto the volume, or makes a tiny random one."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from services.openvla import download
from services.openvla.errors import CheckpointError
from services.openvla.record import RECORD, file_hash, write_record
from services.openvla.suites import SUITES
from vla_contract import Volume
from vla_contract.errors import did_you_mean
from vla_contract.volume import make_own_folder

SIZES = ("tiny", "siglip", "mid")  # of random checkpoints


@dataclass(frozen=True)
class CheckpointSettings:
    """Download OpenVLA fine-tuned on a LIBERO suite (15 GB), or make a tiny random checkpoint (75 MB)."""

    suite: str = ""
    """libero_spatial, libero_object, libero_goal or libero_10; with --tiny: whose statistics (default: all)."""
    repo: str = ""
    """Another repository on the hub, as in openvla/openvla-7b."""
    revision: str = ""
    """Its commit, tag or branch; default: the pinned one, for another repository "main" as it is now."""
    tiny: bool = False
    """Make a random checkpoint in the published format instead."""
    size: str = "tiny"
    """With --tiny: tiny, siglip (one real SigLIP tower) or mid (as many patches as the 7B model)."""
    seed: int = 0
    """With --tiny: of the random weights."""
    remote_code: Path | None = None
    """With --tiny: openvla's folder prismatic/extern/hf, copied into the checkpoint for --engine hf."""
    name: str = ""
    """Folder under checkpoints/; default: the repository's name, or openvla-tiny."""
    force: bool = False
    """Make or download again what is there already."""

    def __post_init__(self):
        known = [*(SUITES if self.tiny else download.REPOSITORIES), ""]
        if self.suite not in known:
            raise ValueError(f"suite {self.suite!r} not found{did_you_mean(self.suite, known[:-1])}")
        if self.size not in SIZES:
            raise ValueError(f"--size {self.size!r} not found{did_you_mean(self.size, SIZES)}")
        if not self.tiny and bool(self.suite) == bool(self.repo):
            raise ValueError("give one of --suite SUITE, --repo OWNER/NAME and --tiny")
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a folder name")


def make_tiny(settings: CheckpointSettings, checkpoints: Path) -> Path:
    """Returns the folder of a random checkpoint."""
    from services.openvla import tiny  # imports torch, which a download does without

    folder = checkpoints / (settings.name or f"openvla-{settings.size}")
    if (folder / RECORD).is_file() and not settings.force:
        print(f"{folder} is there already (--force makes it again)")
        return folder
    if folder.exists() and not settings.force:
        raise ValueError(f"{folder} exists and is no finished checkpoint; choose another --name, or add --force")
    spec = tiny.SPECS[settings.size]
    suites = (settings.suite,) if settings.suite else spec.suites
    spec = replace(spec, seed=settings.seed, suites=suites)
    shutil.rmtree(folder, ignore_errors=True)
    tiny.write(make_own_folder(folder), spec, settings.remote_code)
    files = [path for path in folder.iterdir() if path.is_file()]
    write_record(
        folder, f"random-{settings.size}", f"seed-{settings.seed}", {path.name: file_hash(path) for path in files}
    )
    give_to_owner(folder)
    return folder


def give_to_owner(folder: Path) -> None:
    """Gives files that root made to the folder's owner, so that containers and their users can replace them."""
    if os.geteuid() == 0:
        owner = folder.stat()
        for path in folder.rglob("*"):
            os.chown(path, owner.st_uid, owner.st_gid)


def main() -> None:
    """Gets the checkpoint and prints how to serve it."""
    try:
        settings = tyro.cli(CheckpointSettings, prog="python -m services.openvla.checkpoints")
        checkpoints = Volume().checkpoints
        if settings.tiny:
            folder = make_tiny(settings, checkpoints)
        else:
            repo, revision = download.pinned(settings.suite, settings.repo)
            folder = checkpoints / (settings.name or repo.rpartition("/")[2])
            download.fetch(repo, settings.revision or revision, folder, settings.force)
            give_to_owner(folder)
    except (CheckpointError, ValueError, OSError) as error:
        raise SystemExit(str(error)) from None
    print(f"checkpoint: {folder}\nserve it: ./lab up openvla --checkpoint {folder.name}")


if __name__ == "__main__":
    main()
