"""LeRobot v3.0, by LeRobot's own converter: a program of its package, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from vla_datasets import metadata
from vla_datasets.errors import DatasetError

VARIABLE = "VLALAB_LEROBOT_PYTHON"  # a Python that has lerobot 0.4 or newer
MODULE = "lerobot.datasets.v30.convert_dataset_v21_to_v30"
FORMAT = "lerobot-v3.0"
NAME = "set"  # of the converter's working copy


def require(layout: str | None) -> None:
    """Raises DatasetError where v3.0 is asked for and LeRobot's converter is not there."""
    if layout != FORMAT:
        return
    python = os.environ.get(VARIABLE)
    hint = "leave out -v3.0: v2.1 is what the lab, GR00T N1.5 and LeRobot up to 0.3 read"
    if not python:
        raise DatasetError(
            f"v3.0 is made by LeRobot's own converter; set {VARIABLE} to a Python with lerobot 0.4, or {hint}"
        )
    done = subprocess.run([python, "-c", f"import {MODULE}"], capture_output=True, text=True, env=_environment())
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it does not run"])[-1]
        raise DatasetError(
            f"{VARIABLE}={python} has no converter to v3.0 ({said}); install lerobot 0.4 there, or {hint}"
        )


def convert(folder: Path, final: Path) -> Path:
    """Turns a v2.1 set at `folder` into v3.0 at `final`; returns it. The v2.1 set goes when that is done."""
    work = folder.with_name(f".{final.name}.v3")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(folder, work / NAME)
    command = [os.environ[VARIABLE], "-m", MODULE, f"--repo-id={NAME}", f"--root={work}", "--push-to-hub=false"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode or not (work / NAME / "meta" / "episodes").is_dir():
            said = " ".join(done.stderr.strip().splitlines()[-3:]) or "no v3.0 set was written"
            raise DatasetError(f"LeRobot's converter failed: {said}. The v2.1 set is at {folder}")
        for name in (metadata.MODALITY, metadata.SOURCE):  # the converter leaves them out
            if (folder / name).exists():
                shutil.copy(folder / name, work / NAME / name)
        (work / NAME).rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(folder)
    return final


def _environment() -> dict[str, str]:
    """Returns this program's environment without the paths of its own packages, and without a network."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"HF_HUB_OFFLINE": "1"}
