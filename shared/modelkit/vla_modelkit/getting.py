"""The program that gets a checkpoint onto the volume: its flags, random checkpoints, and who the files belong to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import tyro

from vla_common import endings
from vla_common.volume import Volume, put_whole, shown
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import CheckpointError, changed_files, file_hash, read_record, write_record
from vla_modelkit.checkpoint_options import CheckpointOptions

RANDOM = "random-"  # what a made-up checkpoint's manifest has before its size, instead of a repository


@dataclass(frozen=True)
class GetCheckpoint(CheckpointOptions):
    """The options that every model's program has, and what is published of that model."""

    MODEL: ClassVar[str]  # its service
    LICENCE: ClassVar[str]  # of the published weights, as their authors state it; printed before a download
    PUBLISHED: ClassVar[Mapping[str, tuple[str, str]]]  # suite -> (repository, commit)
    TINY_SUITES: ClassVar[Sequence[str]] = ()  # what --suite may be with --tiny

    def __post_init__(self):
        if not self.tiny and bool(self.suite) == bool(self.repo):
            raise ValueError("no checkpoint chosen: give --suite SUITE for a published one, or --tiny for a random one")
        known = self.TINY_SUITES if self.tiny else self.PUBLISHED
        if self.suite and self.suite not in known:
            said = did_you_mean(self.suite, known) if known else "; --tiny takes none"
            raise ValueError(f"suite {self.suite!r} not found{said}")
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a folder name")

    def pinned(self) -> tuple[str, str]:
        """Returns (repository, revision): a suite's published checkpoint, or another repository's."""
        repo, pinned = self.PUBLISHED[self.suite] if self.suite else (self.repo, "main")
        pinned = dict(self.PUBLISHED.values()).get(repo, pinned)
        return repo, self.revision or pinned

    def directory(self, volume: Volume) -> Path:
        """Returns where the checkpoint belongs. Raises CheckpointError where a random one would replace another.

        What lies under a random checkpoint's usual name without a record is one that was interrupted; elsewhere it was
        put there by hand.
        """
        usual = f"{self.MODEL}-{self.size}" if self.tiny else self.pinned()[0].rpartition("/")[2]
        directory = volume.checkpoints / (self.name or usual)
        by_hand = directory.name != usual and directory.is_dir() and any(directory.iterdir())
        there = read_record(directory).get("repo", "another checkpoint" if by_hand else "")
        if self.tiny and there and not self.force and not is_random(directory):
            raise CheckpointError(f"{directory} holds {there}; choose another --name for a random checkpoint")
        return directory


Settings = TypeVar("Settings", bound=GetCheckpoint)


def is_random(directory: Path) -> bool:
    """Returns whether a folder holds a finished checkpoint that was made up."""
    return str(read_record(directory).get("repo", "")).startswith(RANDOM)


def make_random(directory: Path, settings: GetCheckpoint, write: Callable[[Path], object], **more: Any) -> None:
    """Has `write` fill `folder` with a random checkpoint and records it; a whole one stays, unless forced."""
    if is_random(directory) and not settings.force and not changed_files(directory, read_record(directory)):
        print(f"{shown(directory)} is there already")
        return

    def fill(draft: Path) -> None:
        write(draft)
        record_random(draft, settings.size, settings.seed, **more)

    put_whole(directory, fill)


def record_random(directory: Path, size: str, seed: int, **more: Any) -> None:
    """Writes the manifest of a folder of made-up weights."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    hashes = {path.relative_to(directory).as_posix(): file_hash(path) for path in files}
    write_record(directory, f"{RANDOM}{size}", f"seed-{seed}", hashes, **more)


def main(kind: type[Settings], get: Callable[[Settings, Path], object]) -> None:
    """Gets the checkpoint into its folder and prints how to serve it."""
    endings.run(_main, kind, get)


def _main(kind: type[Settings], get: Callable[[Settings, Path], object]) -> None:
    settings = tyro.cli(kind, prog=f"python -m services.{kind.MODEL}.checkpoints")
    directory = settings.directory(Volume())
    if not settings.tiny:
        print(f"licence: {kind.LICENCE}\npage: huggingface.co/{settings.pinned()[0]}", flush=True)
    get(settings, directory)
    _give_to_owner(directory)
    print(f"checkpoint: {shown(directory)}\nserve it: ./lab up {kind.MODEL} --checkpoint {directory.name}")


def _give_to_owner(directory: Path) -> None:
    """Gives files that root made to the folder's owner, so that containers and their users can replace them."""
    if os.geteuid() == 0:
        owner = directory.stat()
        for path in directory.rglob("*"):
            os.chown(path, owner.st_uid, owner.st_gid)
