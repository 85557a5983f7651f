"""Small real data sets: parquet, H.264 and HDF5 in a few rows, made in a moment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np

from vla_datasets import libero, metadata
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.tables import pq as parquet
from vla_datasets.writing import Writer

CAMERAS = ("agentview", "robot0_eye_in_hand")
LENGTHS = (12, 9, 10)
LINKED = ("cache", "copy", "disk")
TASKS = ("open the drawer", "push the plate", "open the drawer")


def pictures(length: int, size: int = 32, seed: int = 0) -> np.ndarray:
    """Return uint8 [T, size, size, 3]: a square that wanders, so that every frame is unlike the others."""
    shown = np.full((length, size, size, 3), 40, np.uint8)
    for step in range(length):
        at = (3 * step + seed) % (size - 8)
        shown[step, at : at + 8, (2 * step) % (size - 8) :][:, :8] = (200, 20 * (step % 12), 90)
    return shown


def numbers(length: int, seed: int) -> dict[str, np.ndarray]:
    """Returns state [T, 8] and action [T, 7], the gripper 0 closed and 1 open."""
    random = np.random.default_rng(seed)
    action = random.uniform(-1, 1, (length, 7)).astype(np.float32)
    action[:, 6] = action[:, 6] > 0
    return {libero.STATE: random.normal(size=(length, 8)).astype(np.float32), libero.ACTION: action}


def lerobot(
    directory: Path, size: int = 32, cameras: tuple[str, ...] = CAMERAS, layout: type[Writer] = Writer
) -> LeRobotDataset:
    """Writes a LIBERO set of three episodes and returns it."""
    features, modality = libero.features(cameras, size), libero.modality(cameras)
    writer = layout(directory, libero.ROBOT, libero.FPS, features, modality)
    for seed, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        videos = {libero.video_key(one): pictures(length, size, seed + 5 * i) for i, one in enumerate(cameras)}
        writer.add(numbers(length, seed), videos, task)
    return writer.finish()


def hdf5(directory: Path, size: int = 32) -> Path:
    """Writes the same episodes as openvla's regenerated LIBERO files hold them."""
    directory.mkdir(parents=True, exist_ok=True)
    for task in dict.fromkeys(TASKS):
        with h5py.File(directory / f"{task.replace(' ', '_')}_demo.hdf5", "w") as file:
            data = file.create_group("data")
            data.attrs["problem_info"] = json.dumps({"language_instruction": task})
            for place, seed in enumerate(seed for seed, one in enumerate(TASKS) if one == task):
                columns = numbers(LENGTHS[seed], seed)
                parts = np.split(columns[libero.STATE], (3, 6), 1)
                demo = data.create_group(f"demo_{place}")
                demo["actions"] = gripper_closes(columns[libero.ACTION]).astype(np.float64)
                demo["obs/ee_pos"], demo["obs/ee_ori"], demo["obs/gripper_states"] = parts
                for i, camera in enumerate(CAMERAS):
                    images = pictures(LENGTHS[seed], size, seed + 5 * i)
                    demo[f"obs/{libero.hdf5_key(camera)}"] = images[:, ::-1, ::-1]
    return directory


def linked(source: Path, layout: str, root: Path) -> Path:
    """Return a data set whose files are links to those of `source`, as `layout` says.

    cache   Hugging Face's: snapshots/REVISION/ links, relative, to blobs/SHA
    copy    as `cp -rs` makes it: every file an absolute link
    disk    data/ and each chunk of videos/ are links to directories elsewhere
    """
    if layout == "copy":
        subprocess.run(["cp", "-rs", source, root / "copied"], check=True)
        return root / "copied"
    if layout == "disk":
        directory = Path(shutil.copytree(source, root / "here"))
        for path in (directory / "data", *(directory / "videos").glob("*")):
            shutil.move(path, root / "disk" / path.name)
            path.symlink_to(root / "disk" / path.name)
        return directory
    directory = root / "datasets--someone--linked" / "snapshots" / "0a1b2c"
    blobs = root / "datasets--someone--linked" / "blobs"
    blobs.mkdir(parents=True)
    for path in sorted(one for one in source.rglob("*") if one.is_file()):
        blob = shutil.copy(path, blobs / hashlib.sha256(str(path).encode()).hexdigest())
        link = directory / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return directory


def without_rows(directory: Path, index: int = 1) -> Path:
    """Make an episode of a data set, or a demonstration of each HDF5 file, one without rows; return the data set."""
    for path in directory.glob("*.hdf5"):
        with h5py.File(path, "r+") as file:
            demo = list(file["data"].values())[-1]
            for name in ("actions", *(f"obs/{key}" for key in demo["obs"])):
                values = demo[name][:0]
                del demo[name]
                demo[name] = values
    if (directory / metadata.EPISODES).exists():
        path = directory / metadata.EPISODES
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[index]["length"] = 0
        metadata.write_lines(path, rows)
        table = LeRobotDataset(directory).data_path(index)
        parquet.write_table(parquet.read_table(table).slice(0, 0), table)
        LeRobotDataset(directory).write_statistics()
    return directory


def gripper_closes(actions: np.ndarray) -> np.ndarray:
    """Returns [T, 7] with the gripper -1 open and 1 closed, for 0 closed and 1 open."""
    return np.concatenate([actions[:, :-1], 1 - 2 * actions[:, -1:]], axis=1)
