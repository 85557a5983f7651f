"""TensorRT's engines of the ONNX files, by its own program trtexec, with the shapes of upstream's build_engine.sh."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.gr00t.export.modules import Exported

PLACE = Path("/usr/src/tensorrt/bin/trtexec")  # where NVIDIA's packages put it
MAX_BATCH = 8
LENGTHS = {1: (80, 296, 300), 2: (80, 568, 600)}  # pictures -> prompt tokens: least, usual, most
FLAGS = ("--useCudaGraph", "--stronglyTyped", "--separateProfileRun", "--noDataTransfers")


def trtexec() -> str | None:
    """Returns TensorRT's program, None where it is not installed."""
    return shutil.which("trtexec") or (str(PLACE) if os.access(PLACE, os.X_OK) else None)


def command(program: str, one: Exported, views: int) -> list[str]:
    """Returns the command that builds one module's engine, to be run in the folder of the files."""
    least, usual, most = LENGTHS.get(views, (80, 272 * views + 24, 280 * views + 40))
    engine = Path("engines") / f"{Path(one.file).name}.engine"
    shapes = {
        "min": _shapes(one, 1, least),
        "opt": _shapes(one, views if "pixel_values" in one.inputs else 1, usual),
        "max": _shapes(one, MAX_BATCH, most),
    }
    given = [f"--{name}Shapes={value}" for name, value in shapes.items()]
    return [program, *FLAGS, f"--onnx={one.file}.onnx", f"--saveEngine={engine}", *given]


def _shapes(one: Exported, batch: int, length: int) -> str:
    sizes: Mapping[str, int] = {"batch_size": batch, "sequence_length": length}
    found = []
    for name, value in one.inputs.items():
        axes = one.axes[name]
        shape = [sizes.get(axes.get(axis, ""), size) for axis, size in enumerate(value.shape)]
        found.append(f"{name}:{'x'.join(map(str, shape))}")
    return ",".join(found)


def write_script(directory: Path, exported: Sequence[Exported], views: int) -> Path:
    """Writes build_engines.sh beside the files, for a machine that has TensorRT; returns its path."""
    lines = [shlex.join(command("trtexec", one, views)) for one in exported]
    path = directory / "build_engines.sh"
    path.write_text("\n".join(["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"', "mkdir -p engines", *lines, ""]))
    path.chmod(0o755)
    return path


def build(program: str, directory: Path, exported: Sequence[Exported], views: int) -> None:
    """Builds every engine. Raises RuntimeError with the log's end where trtexec fails."""
    (directory / "engines").mkdir(exist_ok=True)
    for one in exported:
        log = directory / "engines" / f"{Path(one.file).name}.log"
        with log.open("w") as file:
            code = subprocess.run(command(program, one, views), cwd=directory, stdout=file, stderr=file).returncode
        if code:
            end = " ".join(log.read_text(errors="replace").split()[-30:])
            raise RuntimeError(f"trtexec ended with {code} for {one.file}; its log is {log}: {end}")
