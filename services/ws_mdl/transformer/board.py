"""What a run shows in TensorBoard (`./lab up tensorboard`): curves, sample translations, attention pictures."""

from __future__ import annotations

from matplotlib.figure import Figure

from services.ws_mdl.transformer.validation import Sample
from vla_modelkit.training.board import Curves


class Board(Curves):
    """Curves, with samples and pictures beside them."""

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
