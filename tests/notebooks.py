"""Runs the project's notebooks as a student would, from the first cell to the last, in the size that tests have."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests import kernels

if TYPE_CHECKING:
    from nbformat import NotebookNode  # loads a grammar for a second: where notebooks are run, and not to name tests

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ("image/png", "image/gif", "application/vnd.jupyter.widget-view+json")
MOST_S = 280  # for one cell; the slowest takes some seconds on a quiet machine

os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel, and not one of the user's


def of(service: str) -> list[Path]:
    """Returns a service folder's notebooks."""
    return sorted((ROOT / "services" / service / "notebooks").glob("*.ipynb"))


def name_of(path: Path) -> str:
    """Returns what a test of one is called."""
    return path.stem


def executed(path: Path, volume: Path, **variables: str) -> list[NotebookNode]:
    """Returns a notebook's code cells with what they put out. Raises CellExecutionError with a failing cell's words."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec
    from nbclient import NotebookClient

    class Served(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=kernels.asking(_kernels()), display_name="Python 3", language="python")

    notebook = nbformat.read(path, as_version=4)
    own = {"VLALAB_SMALL": "1", "VLALAB_VOLUME": str(volume), "PYTHONPATH": _import_path()}
    given = {"kernel_manager_class": Served, "kernel_name": "python3", "resources": {"metadata": {"path": volume}}}
    NotebookClient(notebook, timeout=MOST_S, **given).execute(env={**os.environ, **own, **variables})
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _import_path() -> str:
    shared = (str(folder) for folder in (ROOT / "shared").iterdir() if any(folder.glob("vla_*")))
    return os.pathsep.join([str(ROOT), *shared])


@functools.cache
def _kernels() -> Path:
    """Returns the socket of a process that serves kernels until this one ends."""
    where = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # a socket's address has 107 bytes at most
    folder = tempfile.TemporaryDirectory(prefix="vlalab-kernels-", dir=where)
    place = Path(folder.name) / "asked"
    env = {**os.environ, "PYTHONPATH": _import_path()}
    process = subprocess.Popen(kernels.command(place), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(lambda: (process.stdin.close(), process.wait(60), folder.cleanup()))
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the process that serves kernels does not start; what it said is above")
    return place


def shows_a_picture(cell: NotebookNode) -> bool:
    """Returns whether a cell put out a picture, a film, a drawing or a viewer."""
    found = [output.get("data", {}) for output in cell.outputs]
    return any(kind in data for data in found for kind in PICTURES) or any(
        "<svg" in data.get("text/html", "") or "<img" in data.get("text/html", "") for data in found
    )
