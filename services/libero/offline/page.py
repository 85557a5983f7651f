"""The page of a scored data set or of one answer: one file, without network."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from services.libero.offline.scores import KINDS
from vla_contract import PolicyInfo
from vla_evaluation.report.page import FOLDER, templates


def render(policy: str, dataset: str, subtitle: str, facts: Sequence[tuple[str, str]], **parts: Any) -> str:
    """Returns the page as HTML. parts: figures, verdict, frames, instruction, plots, as the template names them."""
    environment = templates(Path(__file__).parent, FOLDER)
    environment.filters["number"] = lambda value: f"{value:.4g}"
    empty = {"figures": None, "verdict": "", "frames": [], "instruction": "", "plots": []}
    given = {"policy": policy, "dataset": dataset, "subtitle": subtitle, "facts": facts, "kinds": KINDS}
    return environment.get_template("page.html.j2").render(**given, **{**empty, **parts})


DETAILS = ("embodiment", "embodiment_from", "assumed", "prompt", "denoising_steps", "engine")


def facts(info: PolicyInfo, notes: Sequence[str], asked: Mapping[str, object]) -> list[tuple[str, str]]:
    """Returns what the answers depend on, by name."""
    checkpoint = info.checkpoint
    rows = [("policy", info.name), ("device", info.device), ("numbers", info.quantization)]
    if checkpoint:
        rows.append(("checkpoint", " ".join(str(one) for one in vars(checkpoint).values() if one)))
    rows += [(name, str(value)) for name, value in asked.items()]
    rows += [(name, info.details[name]) for name in DETAILS if name in info.details]
    return [*rows, *(("note", one) for one in notes)]


def png(picture: np.ndarray) -> str:
    """Returns a picture uint8 [H, W, 3] as a data URI."""
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return _uri(stream.getvalue())


def embedded(path: Path) -> str:
    """Returns a PNG file as a data URI."""
    return _uri(path.read_bytes())


def _uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
