"""The program that downloads or creates a checkpoint: flags, random checkpoints, and owners of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import tyro

from vla_common import entrypoint
from vla_common.volume import Volume, display_path, replace_directory
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import CheckpointError, changed_files, read_record, record_directory
from vla_modelkit.checkpoint_options import CheckpointOptions

RANDOM = "random-"  # prefix of `repo` in a random checkpoint's manifest, before its size


@dataclass(frozen=True)
class GetCheckpoint(CheckpointOptions):
    """The options of every model's program, and the model's published checkpoints."""

    MODEL: ClassVar[str]  # its service
    LICENCE: ClassVar[str]  # of the published weights; printed before a download
    PUBLISHED: ClassVar[Mapping[str, tuple[str, str]]]  # suite -> (repository, commit)
    TINY_SUITES: ClassVar[Sequence[str]] = ()  # choices of --suite with --tiny

    def __post_init__(self):
        if not self.tiny and bool(self.suite) == bool(self.repo):
            raise ValueError("no checkpoint selected: give --suite SUITE, or --tiny for a random one")
        suites = self.TINY_SUITES if self.tiny else self.PUBLISHED
        if self.suite and self.suite not in suites:
            hint = did_you_mean(self.suite, suites) if suites else "; --tiny takes none"
            raise ValueError(f"suite {self.suite!r} not found{hint}")
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a directory name")

    def pinned(self) -> tuple[str, str]:
        """Return (repository, revision): a suite's published checkpoint, or another repository's."""
        repo, pinned = self.PUBLISHED[self.suite] if self.suite else (self.repo, "main")
        pinned = dict(self.PUBLISHED.values()).get(repo, pinned)
        return repo, self.revision or pinned

    @property
    def random_name(self) -> str:
        """The usual directory of a random checkpoint."""
        return f"{self.MODEL}-{self.size}"

    def directory(self, volume: Volume) -> Path:
        """Return the checkpoint's directory. Raises CheckpointError if a random one would replace another.

        A directory without a manifest is an interrupted random checkpoint if it has the default name, else the
        user's own.
        """
        usual = self.random_name if self.tiny else self.pinned()[0].rpartition("/")[2]
        directory = volume.checkpoints / (self.name or usual)
        by_hand = directory.name != usual and directory.is_dir() and any(directory.iterdir())
        existing = read_record(directory).get("repo", "another checkpoint" if by_hand else "")
        if self.tiny and existing and not self.force and not is_random(directory):
            raise CheckpointError(f"{directory} contains {existing}; choose another --name for a random checkpoint")
        return directory


Settings = TypeVar("Settings", bound=GetCheckpoint)


def is_random(directory: Path) -> bool:
    """Return whether a directory contains a finished random checkpoint."""
    return str(read_record(directory).get("repo", "")).startswith(RANDOM)


def make_random(directory: Path, settings: GetCheckpoint, write: Callable[[Path], object], **more: Any) -> None:
    """Let `write` create a random checkpoint and write its manifest; a complete one is kept, unless forced."""
    if is_random(directory) and not settings.force and not changed_files(directory, read_record(directory)):
        print(f"{display_path(directory)} exists already")
        return

    def fill(draft: Path) -> None:
        write(draft)
        record_directory(draft, f"{RANDOM}{settings.size}", f"seed-{settings.seed}", **more)

    replace_directory(directory, fill)


def main(kind: type[Settings], get: Callable[[Settings, Path], object]) -> None:
    """Download or create the checkpoint and print the command that serves it."""
    entrypoint.run(_main, kind, get)


def _main(kind: type[Settings], get: Callable[[Settings, Path], object]) -> None:
    settings = tyro.cli(kind, prog=f"python -m services.{kind.MODEL}.checkpoints")
    directory = settings.directory(Volume())
    if not settings.tiny and settings.pinned()[0]:
        print(f"licence: {kind.LICENCE}\npage: huggingface.co/{settings.pinned()[0]}", flush=True)
    get(settings, directory)
    if os.geteuid() == 0:  # so that containers and their users can replace the files that root made
        owner = directory.stat()
        for path in directory.rglob("*"):
            os.chown(path, owner.st_uid, owner.st_gid)
    print(f"checkpoint: {display_path(directory)}\nserve it: ./lab up {kind.MODEL} --checkpoint {directory.name}")
