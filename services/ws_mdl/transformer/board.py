"""What a run shows in TensorBoard (`./lab up tensorboard`): curves, sample translations, attention pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from services.ws_mdl.transformer.validation import Sample


class Board:
    """Writes a run's events below `folder`, or nowhere when folder is None (processes other than the main one)."""

    def __init__(self, folder: Path | None, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second's import, which translating need not pay

        # a resumed run takes back what its predecessor wrote after the state it goes on from
        self.writer = SummaryWriter(str(folder), purge_step=step or None, flush_secs=10) if folder else None

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer:
            self.writer.close()

    def scalars(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Adds a point to each curve: group/name."""
        if self.writer:
            for name, value in values.items():
                self.writer.add_scalar(f"{group}/{name}", value, step)

    def samples(self, samples: list[Sample], step: int, count: int = 10) -> None:
        """Adds some translations as a table."""
        if self.writer:
            rows = "".join(
                f"| {_cell(s.source)} | {_cell(s.target)} | {_cell(s.predicted)} |\n" for s in samples[:count]
            )
            self.writer.add_text("translations", f"| source | target | predicted |\n|---|---|---|\n{rows}", step)

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Adds a picture."""
        if self.writer:
            self.writer.add_figure(name, figure, step)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
