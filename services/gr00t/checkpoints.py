"""`python -m services.gr00t.checkpoints --suite libero_goal`: gets a checkpoint onto the shared volume.

`--suite base` is NVIDIA's own; `--tiny` makes a small random one without any download.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.folder import PUBLISHED
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.download import fetch
from vla_modelkit.getting import GetCheckpoint, main, make_random

FILES = ("*.json", "*.txt", "*.safetensors", "experiment_cfg/*", "LICENSE*", "README.md")  # not the optimizer's state


@dataclass(frozen=True)
class Get(GetCheckpoint):
    """Get a GR00T N1.5 checkpoint (5.4 GB) onto the shared volume; --suite base is the model before fine-tuning."""

    MODEL, PUBLISHED = "gr00t", {suite: (one.repo, one.revision) for suite, one in PUBLISHED.items()}

    embodiment: str = "libero"
    """With --tiny or --repo: what to serve it as."""

    def __post_init__(self):
        super().__post_init__()
        if self.size != "tiny":
            raise ValueError(f"--size {self.size!r} not found{did_you_mean(self.size, ['tiny'])}")


def get(settings: Get, folder: Path) -> None:
    """Downloads the checkpoint into `folder`, or makes it there."""
    if settings.tiny:
        from services.gr00t.checkpoint import tiny  # imports torch, which a download does without

        more = {"embodiment": settings.embodiment, "eagle": tiny.TINY.eagle()}
        make_random(folder, settings, lambda place: tiny.write(place, settings.embodiment, settings.seed), **more)
        return
    suite = {"suite": settings.suite} if settings.suite not in ("", "base") else {}
    served_as = PUBLISHED[settings.suite].embodiment if settings.suite else settings.embodiment
    fetch(*settings.pinned(), folder, FILES, settings.force, embodiment=served_as, **suite)
    tokenizer.complete(folder)


if __name__ == "__main__":
    main(Get, get)
