"""Shared code of the labs: flags, models and data, training, results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import transformers
import tyro
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.hf import loops, sources
from vla_common.options import Options, option
from vla_common.volume import Volume, display_path, replace_directory


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """Flags of every lab."""

    LAB = ""
    STEPS = (100, 1000)  # default for a locally made model, and for one from the hub

    model: str = option("auto", "auto: the hub's, else made locally; made; or NAME or NAME@REVISION on the hub")
    data: Literal["auto", "made"] = option("auto", "auto: the hub's, else made locally")
    examples: int = option(2000, "maximum number of training rows", "[1, inf)")
    held: int = option(200, "held-out rows for measuring", "[1, inf)")
    steps: int | None = option(None, "optimizer steps", "[1, inf)", default_help="depends on the lab")
    batch_size: int = option(32, "rows of a step", "[1, inf)")
    lr: float | None = option(
        None, "peak learning rate", "(0, inf)", default_help="3e-3 for a locally made model, 5e-5 for the hub's"
    )
    seed: int = option(0, "of all random numbers")
    by: Literal["trainer", "loop"] = option("trainer", "transformers' Trainer, or a plain loop with accelerate")
    cpu: bool = option(False, "even if there is a GPU")
    name: str = option("latest", "saved as checkpoints/hf/LAB/NAME on the volume")
    push: str | None = option(None, "upload to this OWNER/NAME on the hub; needs HF_TOKEN")
    pretrained: int | None = option(None, "pre-training steps of a locally made model", default_help="300")

    def __post_init__(self) -> None:
        self.check_options()
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"--name {self.name!r} is not a directory name; use letters, digits, '-', '_' and '.'")


@dataclass(frozen=True)
class TrainingResult:
    """A trained model, the loss of each step, scores, and texts of held-out rows."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    losses: list[float]
    scores: dict[str, float]
    inputs: Sequence[str] = ()
    predictions: Sequence[str] = ()
    references: Sequence[str] = ()


Lab = TypeVar("Lab", bound=Request)


def read_flags(lab: type[Lab], description: str | None) -> Lab:
    """Parse the command line."""
    quiet()
    return tyro.cli(lab, prog=f"python -m services.hf.{lab.LAB}", description=description)


def quiet() -> None:
    """Silence transformers' progress bars and warnings about new heads: the labs print what they load."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_model_and_data(
    request: Request, kind: str, data: str, volume: Volume
) -> tuple[sources.LocalModel, sources.Rows]:
    """Load a lab's model (bert, gpt, t5) and data (reviews, news, pairs); print where they come from."""
    sources.require_push(request.push)
    model = sources.model(kind, request.model, volume, request.pretrained)
    rows = sources.data(data, request.data, request.examples, volume, request.held)
    print(model.description, rows.description, sep="\n", flush=True)
    return model, rows


def train(
    request: Request, model: PreTrainedModel, rows: Sequence[Any], collate: loops.Collate, real: bool, volume: Volume
) -> list[float]:
    """Train a model in place with the requested loop; return the loss of each step. real: the model is from the hub."""
    rate, steps = request.lr or (5e-5 if real else 3e-3), request.steps or request.STEPS[real]
    params = loops.Hyperparameters(
        steps, request.batch_size, rate, steps // 10, request.seed, request.cpu, log_every=max(1, steps // 5)
    )
    model.to("cpu" if request.cpu or not torch.cuda.is_available() else "cuda")
    return loops.LOOPS[request.by](model, rows, collate, params, volume.path("logs") / "hf" / request.LAB)


def finish(request: Request, result: TrainingResult, volume: Volume, lines: Sequence[str]) -> None:
    """Print the loss and a lab's own lines; save model and tokenizer."""
    print(f"loss {result.losses[0]:.3f} → {result.losses[-1]:.3f} in {len(result.losses)} steps, by {request.by}")
    print(*lines, sep="\n")
    save(request, volume, [result.model, result.tokenizer])


def save(request: Request, volume: Volume, parts: Sequence[Any]) -> Path:
    """Save model and tokenizer atomically by `save_pretrained`; an existing directory is renamed to NAME.before-N."""

    def write(draft: Path) -> None:
        for part in parts:
            part.save_pretrained(draft)

    directory = replace_directory(volume.path("checkpoints") / "hf" / request.LAB / request.name, write)
    print(f"saved: {display_path(directory)}")
    sources.push(request.push, list(parts))
    return directory


def batches(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Split rows into batches of `size`."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def on_device(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Move a batch to the model's device."""
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Return each text's token ids with special tokens, truncated to max_length."""
    return tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
