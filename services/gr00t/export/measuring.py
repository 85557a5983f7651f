"""ONNX files written, run in onnxruntime beside torch, and compared."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from services.gr00t.export.modules import Exported

OPSET = 19  # of upstream's vision tower and language model; here of all
LIMITS = {
    torch.float32: 1e-4,
    torch.float16: 2e-2,
}  # of the largest difference, in units of the output's largest number
ROUNDS = 5


@dataclass(frozen=True)
class Measured:
    """A module's comparison: largest difference, relative to the output's largest number; cosine; milliseconds."""

    file: str
    apart: float
    cosine: float
    torch_ms: float
    onnx_ms: float


def export(one: Exported, directory: Path) -> Path:
    """Writes a module's file and returns its path; a large one's weights lie beside it."""
    path = directory / f"{one.file}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about shapes that the comparison covers
        torch.onnx.export(
            one.module, tuple(one.inputs.values()), str(path), dynamo=False, opset_version=OPSET,
            do_constant_folding=True, input_names=list(one.inputs), output_names=[one.output], dynamic_axes=one.axes,
        )  # fmt: skip
    return path


def measure(one: Exported, path: Path, rounds: int = ROUNDS) -> Measured:
    """Returns how a file that was written compares with its module."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {name: value.numpy() for name, value in one.inputs.items()}
    with torch.inference_mode():
        ours = one.module(*one.inputs.values()).float().numpy()
        torch_ms = _median_ms(lambda: one.module(*one.inputs.values()), rounds)
    theirs = session.run([one.output], given)[0].astype(np.float32)
    onnx_ms = _median_ms(lambda: session.run([one.output], given), rounds)
    return Measured(one.file, *compared(ours, theirs), torch_ms, onnx_ms)


def compared(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """Returns the largest difference, relative to the largest number of `ours`, and the cosine between the two."""
    apart = float(np.abs(ours - theirs).max() / max(float(np.abs(ours).max()), 1e-12))
    return apart, float((ours * theirs).sum() / (np.linalg.norm(ours) * np.linalg.norm(theirs) + 1e-12))


def _median_ms(work: Callable[[], object], rounds: int) -> float:
    work()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3
