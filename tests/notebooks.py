"""Runs the project's notebooks as a student would, from the first cell to the last, in the size that tests have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests import forked

if TYPE_CHECKING:
    from nbformat import NotebookNode  # loads a grammar for a second: where notebooks are run, and not to name tests

PICTURES = ("image/png", "image/gif", "application/vnd.jupyter.widget-view+json")
MOST_S = 280  # for one cell; the slowest takes some seconds on a quiet machine

os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")  # this environment's kernel, and not one of the user's


def of(service: str) -> list[Path]:
    """Returns a service folder's notebooks."""
    return sorted((forked.ROOT / "services" / service / "notebooks").glob("*.ipynb"))


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
        kernel_spec = KernelSpec(argv=forked.kernel(), display_name="Python 3", language="python")

    notebook = nbformat.read(path, as_version=4)
    own = {"VLALAB_SMALL": "1", "VLALAB_VOLUME": str(volume), "PYTHONPATH": forked.import_path()}
    given = {"kernel_manager_class": Served, "kernel_name": "python3", "resources": {"metadata": {"path": volume}}}
    NotebookClient(notebook, timeout=MOST_S, **given).execute(env={**os.environ, **own, **variables})
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shows_image(cell: NotebookNode) -> bool:
    """Returns whether a cell put out a picture, a film, a drawing or a viewer."""
    found = [output.get("data", {}) for output in cell.outputs]
    return any(kind in data for data in found for kind in PICTURES) or any(
        "<svg" in data.get("text/html", "") or "<img" in data.get("text/html", "") for data in found
    )


PLOT_HANGUL = """
import sys, warnings
from vla_notebooks.kernel import AfterImport, add_hangul
sys.meta_path.insert(0, AfterImport("matplotlib.font_manager", add_hangul))
import matplotlib.pyplot as plt
warnings.simplefilter("error")  # a missing glyph is a warning
plt.title("Loss 손실")
plt.savefig("/dev/null", format="png")
"""


def plot_hangul(directory: Path) -> None:
    """Plot a Korean title in a new process as a kernel does. Raises AssertionError where a glyph is missing."""
    variables = {**os.environ, "PYTHONPATH": forked.import_path(), "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(directory)}
    done = subprocess.run([sys.executable, "-c", PLOT_HANGUL], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
