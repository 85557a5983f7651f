"""`python -m services.gr00t.export --checkpoint gr00t-tiny`: a checkpoint's seven ONNX modules, compared with torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import tyro
from rich.table import Table

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.export import measuring, tensorrt
from services.gr00t.export.measuring import LIMITS, Measured
from services.gr00t.export.modules import Exported, modules
from services.gr00t.model.loading import load_model, weight_bytes
from services.gr00t.options import ExportOptions
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.info import INSTRUCTION
from vla_common import endings
from vla_common.volume import Volume, require_space, shown
from vla_modelkit.devices import DTYPES
from vla_modelkit.weights import Safetensors


def main(arguments: Sequence[str]) -> int:
    """Exports and compares; returns 1 where a module differs from torch by more than its numbers explain."""
    asked = tyro.cli(ExportOptions, prog="python -m services.gr00t.export", args=list(arguments))
    found = find(asked.checkpoint)
    config, dtype = load_config(found.directory), DTYPES[asked.dtype]
    directory = Path(asked.out).expanduser() if asked.out else Volume().checkpoints / f"{found.directory.name}-onnx"
    directory.mkdir(parents=True, exist_ok=True)
    require_space(directory, 2 * weight_bytes(config, dtype))
    exported, views = cut(found, config, dtype, asked.embodiment)
    rows = []
    for one in exported:
        path = measuring.export(one, directory)
        rows.append(measuring.measure(one, path))
        print(f"{one.file}.onnx: {_megabytes(path):.1f} MB, apart by {rows[-1].apart:.1e}", flush=True)
    show(rows)
    script = tensorrt.write_script(directory, exported, views)
    print(f"files: {shown(directory)}")
    if wrong := [row for row in rows if not row.apart <= LIMITS[dtype]]:
        advice = "try --dtype fp32" if asked.dtype == "fp16" else "its files are not to be used"
        raise ValueError(
            f"{wrong[0].file} differs from torch by {wrong[0].apart:.2g} of its largest number; expected at most "
            f"{LIMITS[dtype]:g} in {asked.dtype}: {advice}"
        )
    if (program := tensorrt.trtexec()) is None:
        print(f"TensorRT is not installed here (no trtexec), so no engines were built; where it is: {shown(script)}")
        return 0
    tensorrt.build(program, directory, exported, views)
    print(f"TensorRT engines: {shown(directory / 'engines')}")
    return 0


def cut(
    found: CheckpointDirectory, config: ModelConfig, dtype: torch.dtype, embodiment: str = ""
) -> tuple[tuple[Exported, ...], int]:
    """Returns a checkpoint's modules on the CPU, and how many pictures its robot has."""
    one = found.embodiment(embodiment)
    views = len(one.cameras)
    text = len(Prompts(tokenizer.load(found.directory), views, config.patches).ids(INSTRUCTION))
    model = load_model(config, Safetensors(found.directory), torch.device("cpu"), dtype, "eager")
    return modules(model, views, text, dtype, one.projector), views


def show(rows: Sequence[Measured]) -> None:
    """Prints a line for each module."""
    table = Table(
        "module", "torch, ms", "onnxruntime, ms", "largest difference", "cosine", title="one observation, CPU"
    )
    for row in rows:
        cells = (f"{row.torch_ms:.2f}", f"{row.onnx_ms:.2f}", f"{row.apart:.1e}", f"{row.cosine:.6f}")
        table.add_row(Path(row.file).name, *cells)
    endings.console().print(table)


def _megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


if __name__ == "__main__":
    endings.run(main, sys.argv[1:])
