"""Curves of a run in TensorBoard: `./lab up tensorboard` displays logs/tensorboard on the volume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class Curves:
    """Writes a run's events to `directory`; None (in processes other than the main one) writes nothing."""

    def __init__(self, directory: Path | None, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        # a resumed run discards the points after its state
        self.writer = (
            SummaryWriter(str(directory), purge_step=step + 1 if step else None, flush_secs=10) if directory else None
        )

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer:
            self.writer.close()

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve group/name."""
        if self.writer:
            for name, value in values.items():
                self.writer.add_scalar(f"{group}/{name}", value, step)
