"""TensorRT's engines of the ONNX files, by its own program trtexec, with the shapes of upstream's build_engine.sh."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.gr00t.export.modules import Exported

TRTEXEC_PATH = Path("/usr/src/tensorrt/bin/trtexec")  # of NVIDIA's packages
MAX_BATCH = 8
LENGTHS = {1: (80, 296, 300), 2: (80, 568, 600)}  # images -> prompt tokens: least, usual, most
FLAGS = ("--useCudaGraph", "--stronglyTyped", "--separateProfileRun", "--noDataTransfers")


def trtexec() -> str | None:
    """Return the path of trtexec, None if it is not installed."""
    return shutil.which("trtexec") or (str(TRTEXEC_PATH) if os.access(TRTEXEC_PATH, os.X_OK) else None)


def command(program: str, part: Exported, views: int) -> list[str]:
    """Return the command that builds a module's engine; run it in the directory of the files."""
    min_length, opt_length, max_length = LENGTHS.get(views, (80, 272 * views + 24, 280 * views + 40))
    engine = Path("engines") / f"{Path(part.file).name}.engine"
    shapes = {
        "min": _shapes(part, 1, min_length),
        "opt": _shapes(part, views if "pixel_values" in part.inputs else 1, opt_length),
        "max": _shapes(part, MAX_BATCH, max_length),
    }
    flags = [f"--{name}Shapes={value}" for name, value in shapes.items()]
    return [program, *FLAGS, f"--onnx={part.file}.onnx", f"--saveEngine={engine}", *flags]


def _shapes(part: Exported, batch: int, length: int) -> str:
    sizes: Mapping[str, int] = {"batch_size": batch, "sequence_length": length}
    specs = []
    for name, value in part.inputs.items():
        axes = part.axes[name]
        shape = [sizes.get(axes.get(axis, ""), size) for axis, size in enumerate(value.shape)]
        specs.append(f"{name}:{'x'.join(map(str, shape))}")
    return ",".join(specs)


def write_script(directory: Path, exported: Sequence[Exported], views: int) -> Path:
    """Write build_engines.sh next to the files, for a machine that has TensorRT; return its path."""
    lines = [shlex.join(command("trtexec", part, views)) for part in exported]
    path = directory / "build_engines.sh"
    path.write_text("\n".join(["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', "mkdir -p engines", *lines, ""]))
    path.chmod(0o755)
    return path


def build(program: str, directory: Path, exported: Sequence[Exported], views: int) -> None:
    """Build every engine. Raises RuntimeError with the end of the log if trtexec fails."""
    (directory / "engines").mkdir(exist_ok=True)
    for part in exported:
        log = directory / "engines" / f"{Path(part.file).name}.log"
        with log.open("w") as file:
            code = subprocess.run(command(program, part, views), cwd=directory, stdout=file, stderr=file).returncode
        if code:
            end = " ".join(log.read_text(errors="replace").split()[-30:])
            raise RuntimeError(f"trtexec failed with exit code {code} for {part.file}; its log is {log}: {end}")
