"""An IPython extension that every kernel of the lab loads at its start."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from vla_common.volume import Volume

FIRST_TO_KILL = "500"  # of 1000: out of memory, kernels are killed before the notebook server
GPU_GB = "VLALAB_GPU_GB"  # a class's grant
OOM_SCORE = Path("/proc/self/oom_score_adj")


def load_ipython_extension(shell: Any) -> None:
    """Make this kernel the OOM killer's first choice, add a Hangul font to matplotlib, and `%check`."""
    if int(OOM_SCORE.read_text()) < int(FIRST_TO_KILL):  # lowering it needs privileges
        OOM_SCORE.write_text(FIRST_TO_KILL)
    sys.meta_path.insert(0, AfterImport("matplotlib.font_manager", add_hangul))
    if os.environ.get(GPU_GB):
        sys.meta_path.insert(0, AfterImport("torch.cuda", limit_gpu))
    shell.register_magic_function(check)


def check(line: str) -> None:
    """`%check transformer.attention`: create an exercise's file, or check it; without a name, list all of them."""
    directory = Volume().notebooks / "exercises"
    command = [sys.executable, "-m", "lessons.exercises.check", "--directory", str(directory)]
    command += ["--name", line.strip()] if line.strip() else []
    print(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout, end="")


class AfterImport(MetaPathFinder):
    """Calls a function with a module as soon as it is imported; importing it at each start would take too long."""

    def __init__(self, module: str, function: Callable[[Any], None]) -> None:
        self.module, self.function = module, function

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the module that is waited for, None for others."""
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self.function(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def add_hangul(font_manager: Any) -> None:
    """Add NanumGothic for glyphs that matplotlib's own font lacks: its font list is a cache without packages' fonts."""
    package = importlib.util.find_spec("koreanize_matplotlib")  # its font file only: importing it changes settings
    if package and package.submodule_search_locations:
        font_manager.fontManager.addfont(Path(package.submodule_search_locations[0]) / "fonts" / "NanumGothic.ttf")
        settings = sys.modules["matplotlib"].rcParams
        settings["font.family"] = [*settings["font.family"], "NanumGothic"]


def limit_gpu(cuda: Any) -> None:
    """Limit torch's tensors to the granted GB of the GPU, when CUDA starts."""

    def limit() -> None:
        total = cuda.get_device_properties(0).total_memory
        cuda.set_per_process_memory_fraction(min(1.0, float(os.environ[GPU_GB]) * 1e9 / total), 0)

    cuda._lazy_call(limit)
