"""`python -m services.openvla.checkpoints`: gets a published checkpoint onto the volume, or makes a tiny random one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from services.openvla.checkpoint.oft import refuse_other_files
from services.openvla.checkpoint.published import PUBLISHED, WANTED, check_remote_code
from services.openvla.checkpoint.suites import SUITES
from vla_common.options import option
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.download import fetch
from vla_modelkit.getting import GetCheckpoint, main, make_random

SIZES = ("tiny", "siglip", "mid")  # of random checkpoints


@dataclass(frozen=True)
class CheckpointSettings(GetCheckpoint):
    """Download OpenVLA fine-tuned on a LIBERO suite (15 GB), or make a tiny random checkpoint (75 MB)."""

    MODEL, PUBLISHED, TINY_SUITES = "openvla", PUBLISHED, SUITES
    LICENCE = "OpenVLA is MIT; its weights derive from Llama 2 and are subject to the Llama Community License as well"

    size: str = option("tiny", "with --tiny: tiny, siglip (one real SigLIP tower) or mid (as many patches as 7B)")
    remote_code: Path | None = option(
        None, "with --tiny: openvla's folder prismatic/extern/hf, copied into the checkpoint for engine hf"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.size not in SIZES:
            raise ValueError(f"--size {self.size!r} not found{did_you_mean(self.size, SIZES)}")
        if self.tiny and self.remote_code is not None:
            check_remote_code(self.remote_code)


def get(settings: CheckpointSettings, directory: Path) -> None:
    """Downloads the checkpoint into `folder`, or makes it there."""
    if settings.tiny:
        make_random(directory, settings, lambda place: write_tiny(settings, place))
    else:
        fetch(*settings.pinned(), directory, WANTED, settings.force, refuse_other_files)


def write_tiny(settings: CheckpointSettings, directory: Path) -> None:
    """Writes a random checkpoint into `folder`."""
    from services.openvla.checkpoint import tiny  # imports torch, which a download does without

    spec = tiny.SPECS[settings.size]
    suites = (settings.suite,) if settings.suite else spec.suites
    tiny.write(directory, replace(spec, seed=settings.seed, suites=suites), settings.remote_code)


if __name__ == "__main__":
    main(CheckpointSettings, get)
