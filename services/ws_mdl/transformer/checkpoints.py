"""Weight files: written whole or not at all, found by their number, checked before they are loaded.

`tmodel_07.pt` is the state after epoch 7 (the first is 0), `tmodel_08_000123.pt` that after 123 batches of epoch 8.
They hold the course's keys `model_state_dict`, `optimizer_state_dict`, `epoch` and `global_step`, and a few more.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from services.ws_mdl.transformer.model import Transformer
from vla_modelkit.training.weights import State, WeightFiles


def files_of(folder: Path) -> WeightFiles:
    """Returns a run's weight files."""
    return WeightFiles(folder, "tmodel")


def get_weights_file_path(folder: Path, epoch: int, batches: int = 0) -> Path:
    """Returns the name of the state after an epoch or, with `batches`, of that many batches into it."""
    return files_of(folder).path(epoch, batches)


def latest_weights_file_path(folder: Path) -> Path | None:
    """Returns the newest weights file of a run by its number, or None."""
    return files_of(folder).latest()


# --- does it fit? -------------------------------------------------------------------------------------------


def describe(weights: dict[str, Tensor], config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns what the weights' shapes say about their model, and what only a configuration says (h, activation)."""
    source, target = weights["src_embed.embedding.weight"], weights["tgt_embed.embedding.weight"]
    positions = weights.get("src_pos.pe")
    found = {
        "source vocabulary": source.shape[0],
        "target vocabulary": target.shape[0],
        "d_model": source.shape[1],
        "N": 1 + max(int(key.split(".")[2]) for key in weights if key.startswith("encoder.layers.")),
        "d_ff": weights["encoder.layers.0.feed_forward_block.linear_1.weight"].shape[0],
        "norm": "pre" if "encoder.norm.alpha" in weights else "post",
        "position table": None if positions is None else positions.shape[1],
    }
    return {**found, **{name: (config or {}).get(name) for name in ("h", "activation", "positions")}}


def load_into(model: Transformer, path: Path, state: State, config: dict[str, Any], advice: str) -> None:
    """Loads a state's weights into a model. Raises ValueError that names both sides where they do not fit.

    config: the model's configuration. advice: what the error says can be done.
    """
    try:
        theirs = describe(state["model_state_dict"], state.get("config"))
    except (KeyError, ValueError, IndexError) as error:
        raise ValueError(f"{path} holds no weights of this Transformer (it lacks {error})") from error
    ours = describe(model.state_dict(), config)
    differ = [name for name in ours if theirs[name] is not None and ours[name] != theirs[name]]
    if theirs["position table"] != ours["position table"] and "position table" not in differ:
        differ.append("position table")
    if differ:
        sides = (", ".join(f"{name} {side[name]}" for name in differ) for side in (theirs, ours))
        raise ValueError(f"{path} has {next(sides)}; this model has {next(sides)}; {advice}")
    weights = state["model_state_dict"]
    model.load_state_dict(weights if "config" in state else from_course(weights))


def from_course(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the course's weights for our layer normalization.

    The course divides by the standard deviation over n - 1 numbers, PyTorch and the literature over n; so alpha takes
    the factor √((n - 1) / n).
    """

    def scaled(alpha: Tensor) -> Tensor:
        return alpha * math.sqrt((alpha.numel() - 1) / alpha.numel())

    return {name: scaled(value) if name.endswith("norm.alpha") else value for name, value in weights.items()}
