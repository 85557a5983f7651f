"""`python -m services.gr00t.checkpoints --suite libero_goal`: downloads a checkpoint onto the shared volume.

`--suite base` is NVIDIA's own; `--tiny` makes a small random one without any download.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.directory import PUBLISHED, suite_of
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, embodiment, shipped
from services.gr00t.options import CheckpointOptions
from vla_contract.protocol.errors import did_you_mean
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.checkpoint_program import GetCheckpoint, main, make_random
from vla_modelkit.download import fetch

FILES = ("*.json", "*.txt", "*.safetensors", "experiment_cfg/*", "LICENSE*", "README.md")  # not the optimizer's state


@dataclass(frozen=True)
class Get(GetCheckpoint, CheckpointOptions):
    """Get a GR00T N1.5 checkpoint (5.4 GB) onto the shared volume; --suite base is the model before fine-tuning."""

    MODEL, PUBLISHED = "gr00t", {suite: (entry.repo, entry.revision) for suite, entry in PUBLISHED.items()}
    LICENCE = (
        "GR00T N1.5 is under NVIDIA's NSCL V1, a non-commercial licence, though its model card also calls it ready for "
        "commercial use; a fine-tuned checkpoint may have further terms"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.size != "tiny":
            raise ValueError(f"--size {self.size!r} not found{did_you_mean(self.size, ['tiny'])}")
        requested = embodiment(self.embodiment) if self.embodiment else None
        if requested and self.published_suite:
            trained = embodiment(PUBLISHED[self.published_suite].embodiment)
            if requested.tag == trained.tag and requested.name != trained.name:
                raise ValueError(
                    f"--embodiment {requested.name!r} scales numbers differently from {trained.name!r}, with which "
                    f"{self.pinned()[0]} was trained; remove the flag"
                )

    @property
    def published_suite(self) -> str | None:
        """The key in PUBLISHED of the requested checkpoint; None: another repository, or a random checkpoint."""
        return None if self.tiny else suite_of(self.pinned()[0])

    def require_embodiment(self, source: str, names: Iterable[str]) -> None:
        """Raise CheckpointError, before a download, if the embodiment of a repository is not stated."""
        if not self.embodiment and not self.published_suite and EMBODIMENT_FILE not in names:
            raise CheckpointError(
                f"{source} is not a checkpoint of the lab's table and has no {EMBODIMENT_FILE}, so nothing states how "
                f"its numbers are scaled; give --embodiment, one of {', '.join(shipped())}"
            )


def get(settings: Get, directory: Path) -> None:
    """Download the checkpoint into `directory`, or create a random one there."""
    if settings.tiny:
        from services.gr00t.checkpoint import tiny  # imports torch, which a download does without

        name = settings.embodiment or "libero"
        more = {"embodiment": name, "eagle": tiny.TINY.eagle()}
        make_random(directory, settings, lambda path: tiny.write(path, name, settings.seed), **more)
        return
    suite, more = settings.published_suite, {}
    if settings.embodiment:
        more = {"embodiment": settings.embodiment, "embodiment_from": "--embodiment"}
    elif suite:
        more = {"embodiment": PUBLISHED[suite].embodiment, "embodiment_from": "published table"}
    if suite and suite != "base":
        more["suite"] = suite
    fetch(*settings.pinned(), directory, FILES, settings.force, settings.require_embodiment, **more)
    tokenizer.complete(directory)


if __name__ == "__main__":
    main(Get, get)
