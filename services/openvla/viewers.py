"""Viewers for notebooks: the seven tokens of an action, their bins, and their values in robot units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ipywidgets import Dropdown, IntSlider, VBox

from services.openvla.decoding.actions import ActionCodec, unnormalise
from vla_notebooks import drawing
from vla_notebooks.viewer import viewer

NAMES = ("Δx", "Δy", "Δz", "Δroll", "Δpitch", "Δyaw", "gripper")


def table(tokens: Sequence[int], codec: ActionCodec, stats: Mapping[str, Any]) -> str:
    """Draw each of the seven tokens at its bin, from -1 to 1, with its action value; return SVG."""
    values = codec.values(np.array(tokens))
    action = unnormalise(values, stats)
    width, left, step, wide = 360, 62, 44, 280
    parts = []
    for row, (name, token, value, meaning) in enumerate(zip(NAMES, tokens, values, action, strict=True)):
        top = step * row
        bin_number = min(codec.vocab_size - 1 - token, codec.bins - 2)
        parts.append(drawing.text(left - 8, top + 24, name, "end", bold=True))
        parts.append(drawing.text(left, top + 9, f"token {token} · bin {bin_number} · {value:+.3f} → {meaning:+.3f}"))
        parts.append(drawing.box(left, top + 20, wide, 9, drawing.COLOURS[7], 0.3))
        parts.append(drawing.box(left + (value + 1) / 2 * wide - 3, top + 17, 6, 15, drawing.COLOURS[0]))
    return drawing.svg(width, step * len(NAMES), parts, "seven tokens of an action, each among the bins of its axis")


def bins(tokens: Sequence[int], codec: ActionCodec, stats: Mapping[str, Any]) -> VBox:
    """Return that drawing with controls that change a token: a higher token is a lower bin."""

    def draw(which: int, bin: int) -> str:
        changed = list(tokens)
        if bin >= 0:
            changed[which] = codec.vocab_size - 1 - bin
        return table(changed, codec, stats)

    which = Dropdown(options=[(name, number) for number, name in enumerate(NAMES)])
    return viewer(draw, which=which, bin=IntSlider(description="bin (-1: own)", min=-1, max=codec.bins - 2, value=-1))
