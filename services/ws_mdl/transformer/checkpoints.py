"""Weight files: written whole or not at all, found by their number, checked before they are loaded.

`tmodel_07.pt` is the state after epoch 7 (the first is 0), `tmodel_08_000123.pt` that after 123 batches of epoch 8.
They hold the course's keys `model_state_dict`, `optimizer_state_dict`, `epoch` and `global_step`, and a few more.
"""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.ws_mdl.transformer.model import Transformer

State = dict[str, Any]
NAME = re.compile(r"tmodel_(\d+)(?:_(\d+))?\.pt")


class DamagedFileError(ValueError):
    """A weights file that cannot be read: cut off, or no weights file at all."""


def get_weights_file_path(folder: Path, epoch: int, batches: int = 0) -> Path:
    """Returns the name of the state after an epoch or, with `batches`, of that many batches into it."""
    return folder / (f"tmodel_{epoch:02d}_{batches:06d}.pt" if batches else f"tmodel_{epoch:02d}.pt")


def weights_files(folder: Path) -> list[Path]:
    """Returns the folder's weight files, oldest first, by number: epoch 10 comes after epoch 9."""
    numbered = ((found, path) for path in folder.glob("tmodel_*.pt") if (found := NAME.fullmatch(path.name)))
    return [path for _, path in sorted((_number(found), path) for found, path in numbered)]


def _number(found: re.Match[str]) -> tuple[float, float]:
    return int(found[1]), int(found[2]) if found[2] else math.inf  # a whole epoch comes after its parts


def latest_weights_file_path(folder: Path) -> Path | None:
    """Returns the newest weights file of a run, or None."""
    return next(reversed(weights_files(folder)), None)


def save_weights(path: Path, state: State, keep: int = 0) -> None:
    """Writes a state, then takes away what it makes old: parts of epochs, and all but `keep` epochs (0: keeps all)."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    files = weights_files(path.parent)
    older = files[: files.index(path)]
    parts = [other for other in older if NAME.fullmatch(other.name)[2]]
    whole = [other for other in older if other not in parts]
    for other in parts + (whole[: max(0, len(whole) - keep + 1)] if keep else []):
        other.unlink()


def load_weights(path: Path, device: torch.device | str = "cpu") -> State:
    """Returns the state in a weights file; nothing in it can run code. Raises DamagedFileError."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
        missing = {"model_state_dict", "epoch", "global_step"} - set(state)
    except FileNotFoundError as error:
        raise ValueError(f"weights file {path} not found") from error
    except Exception as error:  # a damaged file fails anywhere in zip, pickle or tensor code
        raise DamagedFileError(f"{path} cannot be read ({_first_line(error)})") from error
    if missing:
        raise DamagedFileError(f"{path} lacks {', '.join(sorted(missing))}: no weights file of a Transformer")
    return state


def load_latest(folder: Path, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
    """Returns the newest state that can be read, naming those that cannot; None where there are no files at all.

    Raises DamagedFileError when there are files and none can be read.
    """
    files = weights_files(folder)
    for path in reversed(files):
        try:
            return path, load_weights(path, device)
        except DamagedFileError as error:
            print(f"{error}; taking the one before it", file=sys.stderr, flush=True)
    if files:
        raise DamagedFileError(
            f"none of the {len(files)} weight files in {folder} can be read; remove them to start anew"
        )
    return None


def load_chosen(folder: Path, preload: str, device: torch.device | str = "cpu") -> tuple[Path, State] | None:
    """Returns what `preload` says: "latest", an epoch's number as in "7", or None for "none"."""
    if preload == "latest":
        return load_latest(folder, device)
    if preload == "none":
        if newest := latest_weights_file_path(folder):
            raise ValueError(f"preload is none, but {folder} has weights up to {newest.name}; give another --name")
        return None
    path = get_weights_file_path(folder, int(preload))
    if not path.exists():
        known = ", ".join(file.name for file in weights_files(folder)) or "no weights"
        raise ValueError(f"{path.name} not found; {folder} has {known}")
    return path, load_weights(path, device)


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


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
