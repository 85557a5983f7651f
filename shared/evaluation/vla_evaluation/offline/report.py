"""The self-contained page of a scored data set or of one row, and the curves of an episode as PNG."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from vla_contract import PolicyInfo
from vla_evaluation.offline.scores import METRICS
from vla_evaluation.report.page import DIRECTORY, templates

DETAILS = ("embodiment", "embodiment_from", "assumed", "prompt", "denoising_steps", "engine")
PLOT_COLUMNS = 4
COLOURS = {"recorded": "#3b7ddd", "policy": "#c9701a", "state": "#9aa3ad"}


def render(policy: str, dataset: str, subtitle: str, provenance: Sequence[tuple[str, str]], **parts: Any) -> str:
    """Return the page as HTML. parts: figures, verdict, frames, instruction, plots, as the template names them."""
    environment = templates(Path(__file__).parent, DIRECTORY)
    environment.filters["number"] = lambda value: f"{value:.4g}"
    empty = {"figures": None, "verdict": "", "frames": [], "instruction": "", "plots": []}
    names = {"policy": policy, "dataset": dataset, "subtitle": subtitle, "provenance": provenance, "kinds": METRICS}
    return environment.get_template("report.html.j2").render(**names, **{**empty, **parts})


def list_provenance(info: PolicyInfo, notes: Sequence[str], settings: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the settings that the actions depend on, as (name, value)."""
    rows = [("policy", info.name), ("device", info.device), ("numbers", info.quantization)]
    if info.checkpoint:
        rows.append(("checkpoint", " ".join(str(var) for var in vars(info.checkpoint).values() if var)))
    rows += [(name, str(value)) for name, value in settings.items()]
    rows += [(name, info.details[name]) for name in DETAILS if name in info.details]
    return [*rows, *(("note", note) for note in notes)]


def frame_uri(frame: np.ndarray) -> str:
    """Return a frame uint8 [H, W, 3] as a data URI."""
    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, "PNG")
    return _data_uri(stream.getvalue())


def plot_curves(
    path: Path, title: str, names: Sequence[str], recorded: np.ndarray, predicted: np.ndarray, every: int,
    state: np.ndarray | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Write a PNG with a subplot per dimension; return its title and data URI.

    recorded, predicted: [T, n]; every: steps between two inferences, each a dot; state: [T, n] where it has that shape.
    """
    columns = min(PLOT_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 1.9 * rows + 0.8), dpi=100, layout="constrained")
    subplots = np.atleast_1d(figure.subplots(rows, columns, sharex=True)).ravel()
    for i, (axes, name) in enumerate(zip(subplots, names, strict=False)):
        if state is not None and state.shape == recorded.shape:
            axes.plot(state[:, i], color=COLOURS["state"], lw=0.8, label="state")
        axes.plot(recorded[:, i], color=COLOURS["recorded"], lw=1.2, label="recorded")
        axes.plot(predicted[:, i], color=COLOURS["policy"], lw=1.2, ls="--", label="policy")
        request_steps = np.arange(0, len(predicted), every)
        axes.plot(request_steps, predicted[request_steps, i], ".", color=COLOURS["policy"], ms=5, label="query")
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
    for axes in subplots[len(names) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=10, wrap=True)
    figure.legend(*subplots[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)
    return title, _data_uri(path.read_bytes())


def _data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
