"""An IPython extension that every kernel of the lab loads at its start."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from vla_common.volume import Volume

FIRST_TO_KILL = "500"  # of 1000: out of memory, kernels are killed before the notebook server
OOM_SCORE = Path("/proc/self/oom_score_adj")


def load_ipython_extension(shell: Any) -> None:
    """Make this kernel the OOM killer's first choice, add a Hangul font to matplotlib, and `%check`."""
    if int(OOM_SCORE.read_text()) < int(FIRST_TO_KILL):  # lowering it needs privileges
        OOM_SCORE.write_text(FIRST_TO_KILL)
    sys.meta_path.insert(0, HangulFont())
    shell.register_magic_function(check)


def check(line: str) -> None:
    """`%check transformer.attention`: create an exercise's file, or check it; without a name, list all of them."""
    directory = Volume().notebooks / "exercises"
    command = [sys.executable, "-m", "lessons.exercises.check", "--directory", str(directory)]
    command += ["--name", line.strip()] if line.strip() else []
    print(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout, end="")


class HangulFont(MetaPathFinder):
    """Adds NanumGothic for glyphs that matplotlib's own font lacks, as soon as matplotlib's fonts are imported.

    Its font list is a cache that does not see the font of a package; importing matplotlib at each start takes too long.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "matplotlib.font_manager":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        package = importlib.util.find_spec("koreanize_matplotlib")  # its font file only: importing it changes settings
        if spec and spec.loader and package and package.submodule_search_locations:
            font = Path(package.submodule_search_locations[0]) / "fonts" / "NanumGothic.ttf"
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                module.fontManager.addfont(font)
                settings = sys.modules["matplotlib"].rcParams
                settings["font.family"] = [*settings["font.family"], "NanumGothic"]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
