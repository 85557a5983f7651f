"""Curves of a run in TensorBoard: `./lab up tensorboard` shows what lies under logs/tensorboard on the volume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class Curves:
    """Writes a run's events below `folder`, or nowhere when folder is None (processes other than the main one)."""

    def __init__(self, directory: Path | None, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second's import, which translating need not pay

        # a run that goes on takes back what was written after the state it goes on from
        self.writer = (
            SummaryWriter(str(directory), purge_step=step + 1 if step else None, flush_secs=10) if directory else None
        )

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer:
            self.writer.close()

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Adds a point to each curve: group/name."""
        if self.writer:
            for name, value in values.items():
                self.writer.add_scalar(f"{group}/{name}", value, step)
