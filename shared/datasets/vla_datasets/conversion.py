"""Convert data sets: any to LeRobot v2.1, and v2.1 to LeRobot v3.0 with LeRobot's own converter.

The converter belongs to LeRobot's package and needs a separate environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from vla_common.volume import require_space
from vla_datasets import marks, metadata, summary
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.writing import DEFAULT_COLUMNS, Writer

VARIABLE = "VLALAB_LEROBOT_PYTHON"  # a Python that has lerobot 0.4 or newer
MODULE = "lerobot.datasets.v30.convert_dataset_v21_to_v30"
FORMAT = "lerobot-v3.0"
WORK_NAME = "set"  # of the converter's working copy


def recode(dataset: Dataset, directory: Path) -> LeRobotDataset:
    """Write `dataset` into a new directory as LeRobot v2.1, its videos re-encoded with short groups; return it.

    Episodes that are marked as bad are left out; the rest are renumbered.
    """
    require_space(directory, summary.size(dataset.directory))
    if text := marks.leave_out(dataset).left_out:
        print(f"{dataset.name}: {text}")
    first = dataset.episodes[0].index
    columns = dataset.columns(first)
    numbers = [key for key in dataset.column_keys if key in columns and columns[key].dtype != object]
    numbers = [key for key in numbers if key not in DEFAULT_COLUMNS]
    # info.json may list videos that do not exist
    paths = {
        key: (dataset.images_path(episode.index, key) for episode in dataset.episodes) for key in dataset.video_keys
    }
    cameras = [key for key in dataset.video_keys if any(map(os.path.lexists, paths[key]))]
    features = {key: dataset.features[key] for key in dataset.features if key in numbers}
    for key in cameras:
        height, width = dataset.frames(first, key, [0]).shape[1:3]
        features[key] = {"dtype": "video", "shape": [height, width, 3]}
    features = {key: features[key] for key in dataset.features if key in features}
    robot = dataset.info.get("robot_type") or "unknown"
    writer = Writer(directory, robot, dataset.fps, features, dataset.modality, dataset.source)
    for number, episode in enumerate(dataset.episodes):
        summary.progress(number, len(dataset.episodes))
        rows = {key: dataset.columns(episode.index)[key] for key in numbers}
        frames = {key: dataset.frames(episode.index, key) for key in cameras}
        writer.add(rows, frames, episode.tasks[0] if episode.tasks else "")
    return writer.finish()


def require_converter(layout: str | None) -> None:
    """Raise DatasetError if v3.0 is requested and LeRobot's converter is missing."""
    if layout != FORMAT:
        return
    python = os.environ.get(VARIABLE)
    hint = "leave out -v3.0: v2.1 is what the lab, GR00T N1.5 and LeRobot up to 0.3 read"
    if not python:
        raise DatasetError(
            f"LeRobot v3.0 needs LeRobot's own converter: set {VARIABLE} to a Python with lerobot 0.4, or {hint}"
        )
    done = subprocess.run([python, "-c", f"import {MODULE}"], capture_output=True, text=True, env=_environment())
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it does not run"])[-1]
        raise DatasetError(
            f"{VARIABLE}={python} has no converter to v3.0 ({message}); install lerobot 0.4 there, or {hint}"
        )


def convert_to_v3(directory: Path, final: Path) -> Path:
    """Convert a v2.1 set to v3.0 at `final` and remove the v2.1 set; return `final`."""
    work = directory.with_name(f".{final.name}.v3")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(directory, work / WORK_NAME)
    command = [os.environ[VARIABLE], "-m", MODULE, f"--repo-id={WORK_NAME}", f"--root={work}", "--push-to-hub=false"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=_environment())
        if done.returncode or not (work / WORK_NAME / "meta" / "episodes").is_dir():
            message = " ".join(done.stderr.strip().splitlines()[-3:]) or "no v3.0 set was written"
            raise DatasetError(f"LeRobot's converter failed: {message}. The v2.1 set is at {directory}")
        for name in (metadata.MODALITY, metadata.SOURCE):  # the converter leaves them out
            if (directory / name).exists():
                shutil.copy(directory / name, work / WORK_NAME / name)
        (work / WORK_NAME).rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(directory)
    return final


def _environment() -> dict[str, str]:
    """Return this program's environment without the paths of its own packages, and without a network."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return variables | {"HF_HUB_OFFLINE": "1"}
