"""`python -m services.gr00t.export --checkpoint gr00t-tiny`: a checkpoint's seven ONNX modules, compared with torch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import tyro
from rich.table import Table

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.export import comparison
from services.gr00t.export.comparison import LIMITS, Measured
from services.gr00t.export.modules import Exported, modules
from services.gr00t.model.loading import load_model, weight_bytes
from services.gr00t.options import ExportOptions
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.policy import INSTRUCTION
from vla_common import entrypoint
from vla_common.volume import Volume, display_path, require_space
from vla_modelkit.devices import DTYPES
from vla_modelkit.weights import Safetensors

MAX_BATCH = 8
LENGTHS = {1: (80, 296, 300), 2: (80, 568, 600)}  # images -> prompt tokens: least, usual, most
TRTEXEC = ("trtexec", "--useCudaGraph", "--stronglyTyped", "--separateProfileRun", "--noDataTransfers")


def main(arguments: Sequence[str]) -> int:
    """Export the modules and compare them with torch. Raises ValueError if one differs more than its dtype explains."""
    options = tyro.cli(ExportOptions, prog="python -m services.gr00t.export", args=list(arguments))
    checkpoint = find(options.checkpoint)
    config, dtype = load_config(checkpoint.directory), DTYPES[options.dtype]
    directory = (
        Path(options.out).expanduser() if options.out else Volume().checkpoints / f"{checkpoint.directory.name}-onnx"
    )
    directory.mkdir(parents=True, exist_ok=True)
    require_space(directory, 2 * weight_bytes(config, dtype))
    exported, views = cut(checkpoint, config, dtype, options.embodiment)
    rows = []
    for part in exported:
        path = comparison.export(part, directory)
        rows.append(comparison.measure(part, path))
        print(f"{part.file}.onnx: {path.stat().st_size / 1e6:.1f} MB, apart by {rows[-1].apart:.1e}", flush=True)
    show(rows)
    script = write_script(directory, exported, views)
    print(f"files: {display_path(directory)}")
    if failed := [row for row in rows if not row.apart <= LIMITS[dtype]]:
        advice = "try --dtype fp32" if options.dtype == "fp16" else "do not use its files"
        raise ValueError(
            f"{failed[0].file} differs from torch by {failed[0].apart:.2g} of its largest number; expected at most "
            f"{LIMITS[dtype]:g} in {options.dtype}: {advice}"
        )
    print(f"for TensorRT's engines run {display_path(script)} on the machine that will use them")
    return 0


def cut(
    checkpoint: CheckpointDirectory, config: ModelConfig, dtype: torch.dtype, embodiment: str = ""
) -> tuple[tuple[Exported, ...], int]:
    """Return a checkpoint's modules on the CPU, and the number of its robot's images."""
    robot = checkpoint.embodiment(embodiment)
    views = len(robot.cameras)
    text = len(Prompts(tokenizer.load(checkpoint.directory), views, config.patches).ids(INSTRUCTION))
    model = load_model(config, Safetensors(checkpoint.directory), torch.device("cpu"), dtype, "eager")
    return modules(model, views, text, dtype, robot.projector), views


def show(rows: Sequence[Measured]) -> None:
    table = Table(
        "module", "torch, ms", "onnxruntime, ms", "largest difference", "cosine", title="one observation, CPU"
    )
    for row in rows:
        cells = (f"{row.torch_ms:.2f}", f"{row.onnx_ms:.2f}", f"{row.apart:.1e}", f"{row.cosine:.6f}")
        table.add_row(Path(row.file).name, *cells)
    entrypoint.console().print(table)


def write_script(directory: Path, exported: Sequence[Exported], views: int) -> Path:
    """Write build_engines.sh, for a machine that has TensorRT's trtexec; return its path.

    Shapes are those of upstream's build_engine.sh.
    """
    low, usual, high = LENGTHS.get(views, (80, 272 * views + 24, 280 * views + 40))
    commands = []
    for part in exported:
        usual_batch = views if "pixel_values" in part.inputs else 1
        flags = []
        for name, batch, length in (("min", 1, low), ("opt", usual_batch, usual), ("max", MAX_BATCH, high)):
            sizes, specs = {"batch_size": batch, "sequence_length": length}, []
            for key, value in part.inputs.items():
                shape = (sizes.get(part.axes[key].get(axis, ""), size) for axis, size in enumerate(value.shape))
                specs.append(f"{key}:{'x'.join(map(str, shape))}")
            flags.append(f"--{name}Shapes={','.join(specs)}")
        engine = f"engines/{Path(part.file).name}.engine"
        commands.append(shlex.join([*TRTEXEC, f"--onnx={part.file}.onnx", f"--saveEngine={engine}", *flags]))
    path = directory / "build_engines.sh"
    path.write_text("\n".join(["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', "mkdir -p engines", *commands, ""]))
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    entrypoint.run(main, sys.argv[1:])
