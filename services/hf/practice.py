"""What the labs' programs have in common: flags, where results lie, what is said at the beginning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.hf import loops, sources
from vla_common.volume import Volume, put_whole, shown


@dataclass(frozen=True, kw_only=True)
class Request:
    """Flags that every lab has."""

    LAB = ""
    STEPS = (100, 1000)  # where none are asked for: of a small model made here, of the hub's

    model: str = "auto"  # auto: the hub's, else one made here; made; or a NAME or NAME@REVISION on the hub
    data: Literal["auto", "made"] = "auto"  # auto: the hub's, else made here
    examples: int = 2000  # rows to learn from, at most
    held: int = 200  # rows to measure with, which are not learned from
    steps: int | None = None  # of the optimizer; default: hundreds for a small model made here, more for the hub's
    batch_size: int = 32
    lr: float | None = None  # highest rate; default: 3e-3 for a small model made here, 5e-5 for the hub's
    seed: int = 0
    by: Literal["trainer", "loop"] = "trainer"  # transformers' Trainer, or a bare loop with accelerate
    cpu: bool = False  # also where there is a GPU
    name: str = "latest"  # of what is saved: checkpoints/hf/LAB/NAME on the volume
    push: str | None = None  # upload to this OWNER/NAME on the hub; needs HF_TOKEN
    pretrained: int | None = None  # steps of pre-training of a model made here; default: 300

    def __post_init__(self) -> None:
        for flag in ("examples", "held", "steps", "batch_size"):
            if getattr(self, flag) is not None and getattr(self, flag) < 1:
                raise ValueError(f"{flag} is {getattr(self, flag)}; expected at least 1")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr is {self.lr}; expected above 0")
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"name {self.name!r} cannot name a folder; use letters, digits, '-', '_' and '.'")

    def plan(self, real: bool) -> loops.Plan:
        """Returns what the training is told; real: the model is one of the hub's."""
        rate, steps = self.lr or (5e-5 if real else 3e-3), self.steps or self.STEPS[real]
        return loops.Plan(steps, self.batch_size, rate, steps // 10, self.seed, self.cpu, say_every=max(1, steps // 5))

    def folder(self, volume: Volume) -> Path:
        """Returns where the result lies."""
        return volume.path("checkpoints") / "hf" / self.LAB / self.name


def quiet() -> None:
    """Leaves transformers' bars and its reports of new heads out: the labs say themselves what they load."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def train(
    request: Request, model: PreTrainedModel, rows: Sequence[Any], collate: loops.Collate, real: bool, volume: Volume
) -> list[float]:
    """Trains a model in place by the loop that was asked for; returns each step's loss."""
    model.to("cpu" if request.cpu or not torch.cuda.is_available() else "cuda")
    folder = volume.path("logs") / "hf" / request.LAB
    return loops.LOOPS[request.by](model, rows, collate, request.plan(real), folder)


def save(request: Request, volume: Volume, parts: Sequence[Any]) -> Path:
    """Writes model and tokenizer by `save_pretrained`, whole or not at all; what was there stays as NAME.before-N."""

    def write(draft: Path) -> None:
        for part in parts:
            part.save_pretrained(draft)

    folder = put_whole(request.folder(volume), write)
    print(f"saved: {shown(folder)}")
    sources.push(request.push, list(parts))
    return folder


def batches(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Returns rows in groups of `size`, in their order."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def on_device(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns a batch where the model is."""
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], most: int) -> list[list[int]]:
    """Returns each text's tokens, with the tokenizer's special ones, `most` at most."""
    return tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
