"""`python -m services.lerobot.checkpoints`: download a LeRobot checkpoint, or create a tiny random one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from services.lerobot.repositories import BASE, REVISIONS, named_repositories, repository_directory
from services.lerobot.settings import CheckpointSettings
from services.lerobot.types import check_tiny
from vla_common.volume import Volume
from vla_modelkit.checkpoint import ADAPTER, ADAPTER_WEIGHTS, SINGLE, CheckpointError, read_json
from vla_modelkit.checkpoint_program import GetCheckpoint, main, make_random
from vla_modelkit.download import TORCH_WEIGHTS, fetch

FILES = ("*.json", "*.safetensors", "LICENSE*", "README.md")
TEXT = ("*.json", "*.txt", "*.model", "*.jinja", "LICENSE*")  # of a tokenizer or processor
WEIGHTS, CODE = ("*.safetensors", TORCH_WEIGHTS), ("*.py",)


@dataclass(frozen=True)
class Get(GetCheckpoint, CheckpointSettings):
    """Download a LeRobot checkpoint and the repositories that it names, or make a tiny random one."""

    MODEL = "lerobot"
    PUBLISHED: ClassVar[Mapping[str, tuple[str, str]]] = {}
    LICENCE = "each repository's own, on its page; the checkpoint's backbone may have further terms"

    def __post_init__(self) -> None:
        if self.suite:
            raise ValueError("LeRobot's checkpoints have no table of suites; give --repo OWNER/NAME")
        if self.tiny:
            check_tiny(self.type)
        elif not self.repo and not self.name:
            raise ValueError(
                "no checkpoint selected: give --repo OWNER/NAME, --tiny --type TYPE for a random one, or --name NAME "
                "to download what a checkpoint on the volume names"
            )
        if self.tiny or self.repo:
            super().__post_init__()

    def directory(self, volume: Volume) -> Path:
        """Return the checkpoint's directory. Raises CheckpointError where it cannot be written or completed."""
        if self.tiny and not self.name:
            return replace(self, name=f"lerobot-tiny-{self.type}").directory(volume)
        directory = super().directory(volume)
        if not self.tiny and not self.repo and not (directory / "config.json").is_file():
            raise CheckpointError(f"{directory} has no config.json; give --repo OWNER/NAME to download a checkpoint")
        return directory


def get(settings: Get, directory: Path) -> None:
    """Download the checkpoint and what it names into `directory`, or create a random one there."""
    if settings.tiny:
        from services.lerobot import tiny  # imports torch, which a download does without

        make_random(directory, settings, lambda path: tiny.write(path, settings.type, settings.seed))
        return
    if settings.repo:
        fetch(*settings.pinned(), directory, FILES, settings.force, require_policy)
    if "type" not in read_json(directory / "config.json"):
        raise CheckpointError(f"{directory / 'config.json'} names no policy type; expected a checkpoint of LeRobot")
    for repository, (field, needs_weights) in named_repositories(directory).items():
        print(f"{field}: {repository} (page: huggingface.co/{repository})", flush=True)
        patterns = TEXT + (WEIGHTS if needs_weights else ()) + (CODE if settings.remote_code else ())
        revision = REVISIONS.get(repository, "main")
        fetch(repository, revision, repository_directory(directory, repository), patterns, settings.force)
    if (directory / ADAPTER).is_file():
        from services.lerobot.adapters import merge_into_checkpoint  # imports torch

        with base_of(directory) as base:
            merge_into_checkpoint(directory, base, settings.remote_code)


@contextmanager
def base_of(adapter: Path) -> Iterator[Path]:
    """Yield the directory of an adapter's base: a path, a checkpoint on the volume, or a download for the block.

    A download that was interrupted is resumed. Raises CheckpointError.
    """
    config = read_json(adapter / ADAPTER)
    name = str(config.get(BASE) or "")
    for path in (Path(name).expanduser(), Volume().checkpoints / name):
        if name and path.is_dir():
            yield path
            return
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name):
        raise CheckpointError(
            f"{adapter / ADAPTER} names the base {name!r}, which is not on this machine; set {BASE} there to a "
            "checkpoint on the volume or to OWNER/NAME"
        )
    print(f"{BASE}: {name} (page: huggingface.co/{name})", flush=True)
    directory = adapter / "base"
    fetch(name, config.get("revision") or "main", directory, FILES, check=require_base)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def require_policy(source: str, names: Iterable[str]) -> None:
    """Raise CheckpointError, before a download, for a repository that is neither a checkpoint nor an adapter."""
    names = set(names)
    weights = ADAPTER_WEIGHTS if ADAPTER in names else SINGLE
    if missing := sorted({"config.json", weights} - names):
        raise CheckpointError(f"{source} has no {' and no '.join(missing)}; expected a checkpoint of LeRobot")


def require_base(source: str, names: Iterable[str]) -> None:
    """Raise CheckpointError, before a download, for an adapter's base that has no weights of its own."""
    if missing := sorted({"config.json", SINGLE} - set(names)):
        raise CheckpointError(f"{source}, the adapter's base, has no {' and no '.join(missing)}")


if __name__ == "__main__":
    main(Get, get)
