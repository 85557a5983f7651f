"""The course's models that were trained on this volume, from their file names: PyTorch is not installed."""

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
}  # of the weights files, by directory under checkpoints/


@dataclass(frozen=True)
class TrainedModel:
    """A trained model: its directory of weights, and its curves."""

    lab: str
    directory: Path
    curves: Path
    epochs: int
    changed: float  # seconds since the epoch

    @property
    def name(self) -> str:
        return self.directory.name


def find_models(volume: Volume) -> list[TrainedModel]:
    """Return the models that have weights, the last trained one last."""
    models = []
    for lab, prefix in PREFIXES.items():
        pattern = re.compile(rf"{prefix}_(\d+)(_\d+)?\.pt")  # tmodel_04.pt is the state after epoch 4, from 0 on
        for directory in (volume.path("checkpoints") / lab).glob("[!.]*"):
            states = [(match, path) for path in directory.glob("*.pt") if (match := pattern.fullmatch(path.name))]
            if states:
                epochs = max(int(match[1]) + (0 if match[2] else 1) for match, _ in states)
                changed = max(path.stat().st_mtime for _, path in states)
                curves = volume.path("logs") / "tensorboard" / lab / directory.name
                models.append(TrainedModel(lab, directory, curves, epochs, changed))
    return sorted(models, key=lambda model: (model.changed, model.name))
