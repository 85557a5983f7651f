"""What the labs' programs have in common: flags, models and data, training, results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import transformers
import tyro
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.hf import loops, sources
from vla_common.volume import Volume, put_whole, shown


@dataclass(frozen=True, kw_only=True)
class Request:
    """Flags that every lab has."""

    LAB = ""
    STEPS = (100, 1000)  # by default: of a small model made here, of the hub's

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


@dataclass(frozen=True)
class Result:
    """A trained model, each step's loss, its scores, and the texts of held-out rows: read, written, expected."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    scores: dict[str, float]
    asked: Sequence[str] = field(default=())
    said: Sequence[str] = field(default=())
    meant: Sequence[str] = field(default=())


Lab = TypeVar("Lab", bound=Request)


def read_flags(lab: type[Lab], description: str | None) -> Lab:
    """Return the command line's flags."""
    quiet()
    return tyro.cli(lab, prog=f"python -m services.hf.{lab.LAB}", description=description)


def quiet() -> None:
    """Leave transformers' bars and its reports of new heads out: the labs print what they load themselves."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def begin(request: Request, kind: str, data: str, volume: Volume) -> tuple[sources.Found, sources.Rows]:
    """Return model and data of a lab; print whose they are. kind: bert, gpt, t5. data: reviews, news, pairs."""
    sources.require_push(request.push)
    model = sources.model(kind, request.model, volume, request.pretrained)
    rows = sources.data(data, request.data, request.examples, volume, request.held)
    print(model.said, rows.said, sep="\n", flush=True)
    return model, rows


def train(
    request: Request, model: PreTrainedModel, rows: Sequence[Any], collate: loops.Collate, real: bool, volume: Volume
) -> list[float]:
    """Train a model in place by the loop that was asked for; return each step's loss. real: it is one of the hub's."""
    rate, steps = request.lr or (5e-5 if real else 3e-3), request.steps or request.STEPS[real]
    plan = loops.Plan(
        steps, request.batch_size, rate, steps // 10, request.seed, request.cpu, say_every=max(1, steps // 5)
    )
    model.to("cpu" if request.cpu or not torch.cuda.is_available() else "cuda")
    return loops.LOOPS[request.by](model, rows, collate, plan, volume.path("logs") / "hf" / request.LAB)


def finish(request: Request, result: Result, volume: Volume, lines: Sequence[str]) -> None:
    """Print how the loss fell and a lab's own lines, and save model and tokenizer."""
    print(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} in {len(result.losses)} steps, by {request.by}")
    print(*lines, sep="\n")
    save(request, volume, [result.model, result.tokenizer])


def save(request: Request, volume: Volume, parts: Sequence[Any]) -> Path:
    """Write model and tokenizer by `save_pretrained`, whole or not at all; a previous one stays as NAME.before-N."""

    def write(draft: Path) -> None:
        for part in parts:
            part.save_pretrained(draft)

    directory = put_whole(volume.path("checkpoints") / "hf" / request.LAB / request.name, write)
    print(f"saved: {shown(directory)}")
    sources.push(request.push, list(parts))
    return directory


def batches(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Return rows in groups of `size`, in their order."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def on_device(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch where the model is."""
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], most: int) -> list[list[int]]:
    """Return each text's tokens, with the tokenizer's special ones, `most` at most."""
    return tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
