"""`python -m services.openvla.checkpoints`: download a published checkpoint, or create a tiny random one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from services.openvla.checkpoint.oft import Oft, check_oft_files
from services.openvla.checkpoint.published import (
    DOWNLOAD_PATTERNS,
    OFT_REPOSITORIES,
    PUBLISHED,
    SUITES,
    check_remote_code,
)
from services.openvla.options import CheckpointOptions
from vla_common.options import option
from vla_contract.protocol.errors import did_you_mean
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
        if self.oft and self.suite:
            return OFT_REPOSITORIES[self.suite], self.revision or "main"
        return super().pinned()


def get(settings: CheckpointSettings, directory: Path) -> None:
    """Download the checkpoint into `directory`, or create a random one there."""
    if settings.tiny:
        from services.openvla.checkpoint import tiny  # imports torch, which a download does without

        spec = replace(tiny.SPECS[settings.size], seed=settings.seed, oft=Oft() if settings.oft else None)
        spec = replace(spec, suites=(settings.suite,)) if settings.suite else spec
        images = {"images": 2} if settings.oft else {}

        def write_tiny(path: Path) -> None:
            tiny.write(path, spec, settings.remote_code)

        make_random(directory, settings, write_tiny, **images)
    else:
        fetch(*settings.pinned(), directory, DOWNLOAD_PATTERNS, settings.force, check_oft_files)


if __name__ == "__main__":
    main(CheckpointSettings, get)
