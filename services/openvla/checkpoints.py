"""`python -m services.openvla.checkpoints`: download a published checkpoint, or create a tiny random one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from services.openvla.checkpoint.oft import Oft, check_oft_files
from services.openvla.checkpoint.published import (
    COMMITS,
    DOWNLOAD_PATTERNS,
    OFT_REPOSITORIES,
    PUBLISHED,
    SUITES,
    check_remote_code,
)
from services.openvla.options import CheckpointOptions
from vla_common.options import option
from vla_common.volume import Volume
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import ADAPTER, CheckpointError
from vla_modelkit.checkpoint_options import REPOSITORY
from vla_modelkit.checkpoint_program import GetCheckpoint, main, make_random
from vla_modelkit.download import fetch

SIZES = ("tiny", "siglip", "mid")  # of random checkpoints


@dataclass(frozen=True)
class CheckpointSettings(GetCheckpoint, CheckpointOptions):
    """Download OpenVLA fine-tuned on a LIBERO suite (15 GB), or make a tiny random checkpoint (75 MB)."""

    MODEL, PUBLISHED, TINY_SUITES = "openvla", PUBLISHED, SUITES
    LICENCE = "OpenVLA is MIT; its weights derive from Llama 2 and are subject to the Llama Community License as well"

    size: str = option("tiny", "with --tiny: tiny, siglip (one real SigLIP tower) or mid (as many patches as 7B)")
    remote_code: Path | None = option(
        None, "with --tiny: openvla's directory prismatic/extern/hf, copied into the checkpoint for engine hf"
    )

    def __post_init__(self):
        if self.merge or self.base:
            if not self.merge or self.suite or self.repo or self.tiny:
                raise ValueError("--merge takes --base and --name alone: --merge ADAPTER --base CHECKPOINT")
            return
        super().__post_init__()
        if self.oft and self.suite and not self.tiny and self.suite not in OFT_REPOSITORIES:
            raise ValueError(
                f"suite {self.suite!r} of OpenVLA-OFT not found{did_you_mean(self.suite, OFT_REPOSITORIES)}"
            )
        if self.size not in SIZES:
            raise ValueError(f"--size {self.size!r} not found{did_you_mean(self.size, SIZES)}")
        if self.tiny and self.remote_code is not None:
            check_remote_code(self.remote_code)

    @property
    def random_name(self) -> str:
        return f"openvla-oft-{self.size}" if self.oft else super().random_name

    def pinned(self) -> tuple[str, str]:
        if self.suite:
            repo = (OFT_REPOSITORIES if self.oft else PUBLISHED)[self.suite][0]
        else:
            repo = self.repo
        return repo, self.revision or COMMITS.get(repo, "main")

    def directory(self, volume: Volume) -> Path:
        """Return the checkpoint's directory; a merged adapter gets a new one."""
        if self.merge and not self.name:
            return volume.checkpoints / f"{Path(self.merge).absolute().name}-merged"
        return super().directory(volume)


def check_listing(source: str, names: Iterable[str]) -> None:
    """Raise CheckpointError, before a download, for a repository that cannot be served as it is."""
    names = list(names)
    check_oft_files(source, names)
    if any(name.endswith(ADAPTER) for name in names) and not any(fnmatch(name, "model*.safetensors") for name in names):
        repo = source.partition(" ")[0]
        raise CheckpointError(f"{repo} is a LoRA adapter without its base: ./lab checkpoint openvla --merge {repo}")


def local_checkpoint(name: str, *patterns: str) -> Path:
    """Return the directory of a path, a checkpoint on the volume, or a repository of the hub, downloaded to it."""
    checkpoints = Volume().checkpoints
    for path in (Path(name).expanduser(), checkpoints / name):
        if path.is_dir():
            return path
    if not re.fullmatch(REPOSITORY, name):
        raise CheckpointError(f"{name!r} is neither a directory, nor on the volume, nor a repository (OWNER/NAME)")
    directory = checkpoints / name.rpartition("/")[2]
    fetch(name, COMMITS.get(name, "main"), directory, (*DOWNLOAD_PATTERNS, *patterns))
    return directory


def get(settings: CheckpointSettings, directory: Path) -> None:
    """Download the checkpoint into `directory`, create a random one there, or merge an adapter."""
    if settings.merge:
        from services.openvla.checkpoint import adapter  # imports torch, which a download does without

        source = local_checkpoint(settings.merge, f"{adapter.LORA}/*")
        adapter.merge(source, local_checkpoint(settings.base) if settings.base else None, directory)
    elif settings.tiny:
        from services.openvla.checkpoint import tiny  # imports torch, which a download does without

        spec = replace(tiny.SPECS[settings.size], seed=settings.seed, oft=Oft() if settings.oft else None)
        spec = replace(spec, suites=(settings.suite,)) if settings.suite else spec
        images = {"images": 2} if settings.oft else {}

        def write_tiny(path: Path) -> None:
            tiny.write(path, spec, settings.remote_code)

        make_random(directory, settings, write_tiny, **images)
    else:
        fetch(*settings.pinned(), directory, DOWNLOAD_PATTERNS, settings.force, check_listing)


if __name__ == "__main__":
    main(CheckpointSettings, get)
