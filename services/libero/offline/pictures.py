"""The curves of an episode as PNG: what was done, what the policy would have done, where it was asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

COLUMNS = 4
COLOURS = {"recorded": "#3b7ddd", "policy": "#c9701a", "state": "#9aa3ad"}


def curves(
    path: Path, title: str, names: Sequence[str], true: np.ndarray, predicted: np.ndarray, every: int,
    state: np.ndarray | None = None,
) -> Path:  # fmt: skip
    """Writes a picture with a subplot per dimension; returns its path.

    true, predicted: [T, n]; every: steps between two inferences, each a dot; state: [T, n] where it has that shape.
    """
    columns = min(COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.9 * rows + 0.8), dpi=100, layout="constrained")
    places = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
    for place, (axes, name) in enumerate(zip(places, names, strict=False)):
        if state is not None and state.shape == true.shape:
            axes.plot(state[:, place], color=COLOURS["state"], lw=0.8, label="state")
        axes.plot(true[:, place], color=COLOURS["recorded"], lw=1.2, label="recorded")
        axes.plot(predicted[:, place], color=COLOURS["policy"], lw=1.2, ls="--", label="policy")
        asked = np.arange(0, len(predicted), every)
        axes.plot(asked, predicted[asked, place], ".", color=COLOURS["policy"], ms=5, label="asked here")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in places[len(names) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=10, wrap=True)
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)
    return path
