"""Write ONNX files, run them in onnxruntime, and compare output and time with torch."""

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
# of the largest difference, in units of the output's largest number
LIMITS = {torch.float32: 1e-4, torch.float16: 2e-2}
ROUNDS = 5


@dataclass(frozen=True)
class Measured:
    """A module's comparison: largest difference, relative to the output's largest number; cosine; milliseconds."""

    file: str
    apart: float
    cosine: float
    torch_ms: float
    onnx_ms: float


def export(part: Exported, directory: Path) -> Path:
    """Write a module's ONNX file and return its path; large weights are in a second file next to it."""
    path = directory / f"{part.file}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tracer, about shapes that the comparison covers
        torch.onnx.export(
            part.module, tuple(part.inputs.values()), str(path), dynamo=False, opset_version=OPSET,
            do_constant_folding=True, input_names=list(part.inputs), output_names=[part.output], dynamic_axes=part.axes,
        )  # fmt: skip
    return path


def measure(part: Exported, path: Path, rounds: int = ROUNDS) -> Measured:
    """Compare an ONNX file with its torch module."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {name: value.numpy() for name, value in part.inputs.items()}
    with torch.inference_mode():
        torch_output = part.module(*part.inputs.values()).float().numpy()
        torch_ms = _median_ms(lambda: part.module(*part.inputs.values()), rounds)
    onnx_output = session.run([part.output], inputs)[0].astype(np.float32)
    onnx_ms = _median_ms(lambda: session.run([part.output], inputs), rounds)
    return Measured(part.file, *compared(torch_output, onnx_output), torch_ms, onnx_ms)


def compared(expected: np.ndarray, actual: np.ndarray) -> tuple[float, float]:
    """Return the largest difference, relative to the largest number of `expected`, and the cosine of the two."""
    apart = float(np.abs(expected - actual).max() / max(float(np.abs(expected).max()), 1e-12))
    return apart, float((expected * actual).sum() / (np.linalg.norm(expected) * np.linalg.norm(actual) + 1e-12))


def _median_ms(work: Callable[[], object], rounds: int) -> float:
    work()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3
