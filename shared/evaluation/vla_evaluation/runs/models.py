"""The models of the course that were trained on this volume, as far as their files' names tell: no PyTorch is here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vla_common.volume import Volume

PREFIXES = {
    "transformer": "tmodel",
    "diffusion": "model",
    "minivla": "minivla",
    "vit": "vit",
    "bert": "bert",
    "gpt": "gpt",
    "lstm": "lstm",
    "vae": "vae",
    "forecast": "forecast",
    "skipgram": "skipgram",
}  # of the weights files, by folder under checkpoints/


@dataclass(frozen=True)
class Model:
    """A trained model: its folder of weights, and its curves."""

    lab: str
    folder: Path
    curves: Path
    epochs: int
    changed: float  # seconds since the epoch

    @property
    def name(self) -> str:
        return self.folder.name


def find_models(volume: Volume) -> list[Model]:
    """Returns the models that have weights, the one trained last at the end."""
    found = [
        model
        for lab in PREFIXES
        for folder in (volume.path("checkpoints") / lab).glob("*")
        if not folder.name.startswith(".") and (model := _model(volume, lab, folder))
    ]
    return sorted(found, key=lambda model: (model.changed, model.name))


def _model(volume: Volume, lab: str, folder: Path) -> Model | None:
    """Returns the model in a folder; `tmodel_04.pt` is the state after epoch 4, the first being 0."""
    pattern = re.compile(rf"{PREFIXES[lab]}_(\d+)(_\d+)?\.pt")
    states = [(found, path) for path in folder.glob("*.pt") if (found := pattern.fullmatch(path.name))]
    if not states:
        return None
    epochs = max(int(found[1]) + (0 if found[2] else 1) for found, _ in states)
    changed = max(path.stat().st_mtime for _, path in states)
    return Model(lab, folder, volume.path("logs") / "tensorboard" / lab / folder.name, epochs, changed)
