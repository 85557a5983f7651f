"""LIBERO's HDF5 files, and openvla's regenerated ones: read as a LeRobot set with the same names, and written.

A file per task: data/demo_i/{actions, states, rewards, dones, obs/{agentview_rgb, eye_in_hand_rgb, ee_pos, ee_ori,
gripper_states, joint_states, …}}, with the instruction in data's attribute problem_info.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from vla_common.regular_files import require_regular
from vla_datasets import libero, metadata, statistics, videos
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.metadata import Episode
from vla_datasets.writing import DraftWriter, EpisodeSlot

LAYOUT = "LIBERO HDF5"
# create_dataset.py of Lifelong-Robot-Learning/LIBERO, dataset_states_to_obs.py of ARISE-Initiative/robomimic
_FLAGS = "--demo-file FILE --use-camera-obs"
MAKE_OBSERVATIONS = (
    f"it is a raw recording of robosuite. Play it back with LIBERO's `python scripts/create_dataset.py {_FLAGS}`, or "
    "another task's with robomimic's dataset_states_to_obs.py, and name the file that this writes"
)
PARTS = ("ee_pos", "ee_ori", "gripper_states")  # of the state; ee_ori is an axis-angle
SUFFIXES = (".hdf5", ".h5")
TAG = "libero-v1"  # LIBERO's create_dataset.py at 8f1084e3
DESCRIPTION = "readme.json"  # what made the set, next to its files


@contextmanager
def opened(path: Path):
    """Open a file for reading. Raises DatasetError."""
    try:
        require_regular(path)
        with h5py.File(path, "r") as file:
            yield file
    except DatasetError:
        raise
    except (OSError, KeyError, RuntimeError, AttributeError) as error:
        raise metadata.unreadable(path, error, "LIBERO's HDF5") from error


def require_inside(file: h5py.File, path: Path) -> None:
    """Raise DatasetError for data in another file, and for an array larger than MAX_ARRAY_BYTES.

    An HDF5 file can link to other files, keep array data in them, and declare terabytes in a few bytes.
    """

    def problem(name: str, link: object) -> str | None:
        entry = file[name] if isinstance(link, h5py.HardLink) else None
        is_array = isinstance(entry, h5py.Dataset)
        if isinstance(link, h5py.ExternalLink) or (is_array and (entry.external or entry.is_virtual)):
            return f"{name} is in another file; copy it into this one"
        if is_array and entry.nbytes > metadata.MAX_ARRAY_BYTES:
            size = f"{entry.nbytes:,} bytes; expected at most {metadata.MAX_ARRAY_BYTES:,}"
            return f"{name} has {size}: check where the file comes from"
        return None

    if text := file.visititems_links(problem):
        raise DatasetError(f"{path}: {text}")


class LiberoFiles(Dataset):
    """The files of a directory, or one file."""

    source = None

    def __init__(self, directory: str | Path):
        self.directory = Path(directory).expanduser().absolute()
        paths = files(self.directory)
        if not paths:
            raise DatasetError(f"{self.directory} has no file that ends in {' or '.join(SUFFIXES)}")
        self._demos, self.episodes, self.tasks = [], [], {}
        for path in paths:
            with opened(path) as file:
                require_inside(file, path)
                if "data" not in file:
                    names = ", ".join(file) or "nothing"
                    raise DatasetError(f"{path} has no group 'data'; expected LIBERO's data/demo_0/…, found {names}")
                data = file["data"]
                text = instruction(data, path)
                demos = [name for name in data if name.startswith("demo_")]
                for name in sorted(demos, key=lambda name: int(name[5:]) if name[5:].isdigit() else -1):
                    if "actions" not in data[name]:
                        raise DatasetError(f"{path}: {name} has no actions; expected data/{name}/actions")
                    if "obs" not in data[name]:
                        raise DatasetError(f"{path}: {name} has no observations (obs); {MAKE_OBSERVATIONS}")
                    self.episodes.append(Episode(len(self.episodes), (text,), len(data[name]["actions"])))
                    self._demos.append((path, name))
            if text not in self.tasks.values():
                self.tasks[len(self.tasks)] = text
        if not self.episodes:
            raise DatasetError(f"{self.directory} holds no demonstrations; expected data/demo_0, … in {paths[0].name}")
        self._listed = tuple(self.episodes)
        self._task_numbers = {text: number for number, text in self.tasks.items()}

    @cached_property
    def _cameras(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The cameras of the first episode with rows: name in LeRobot sets -> (name in the file, shape of an image)."""
        path, demo = next((self._demos[episode.index] for episode in self._listed if episode.length), self._demos[0])
        shapes = {}
        with opened(path) as file:
            for key, array in file["data"][demo]["obs"].items():
                if key.endswith("_rgb"):
                    with suppress(DatasetError):  # not images; --check reports it
                        shapes[key] = decode(array, [0] if len(array) else [], f"{path}: {demo}/obs/{key}").shape[1:]
        simulators = {key: camera for camera, (_, key) in libero.CAMERAS.items()}
        named = {key: simulators.get(key, key.removesuffix("_rgb")) for key in shapes}
        order = sorted(shapes, key=lambda key: [*libero.CAMERAS, named[key]].index(named[key]))
        return {libero.video_key(named[key]): (key, shapes[key]) for key in order}

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        cameras = {
            key: {"dtype": "video", "shape": [*shape], "names": None} for key, (_, shape) in self._cameras.items()
        }
        return cameras | libero.features((), 0)

    @property
    def info(self) -> dict[str, Any]:
        info = {"codebase_version": LAYOUT, "robot_type": libero.ROBOT, "fps": libero.FPS, "features": self.features}
        return info | {"total_episodes": len(self.episodes), "total_frames": len(self), "total_tasks": len(self.tasks)}

    @property
    def modality(self) -> dict[str, Any]:
        """GR00T's modality.json as it would be."""
        cameras = {libero.video_key(camera): camera for camera in libero.CAMERAS}
        return libero.modality(tuple(cameras.get(key, key.rpartition(".")[2]) for key in self._cameras))

    def columns(self, episode_index: int) -> dict[str, np.ndarray]:
        """Return observation.state [T, 8], action [T, 7] with the gripper 0 closed and 1 open, and LeRobot's own."""
        path, demo = self._demos[episode_index]
        length, (text, *_) = self._listed[episode_index].length, self._listed[episode_index].tasks
        with opened(path) as file:
            group = file["data"][demo]
            missing = [part for part in PARTS if part not in group["obs"]]
            if missing:
                raise DatasetError(f"{path}: {demo}/obs has no {', '.join(missing)}; the state of LIBERO's arm")
            state = np.concatenate([group["obs"][part][:] for part in PARTS], axis=1).astype(np.float32)
            actions = np.asarray(group["actions"][:], np.float32)
        if actions.shape != (length, 7) or state.shape != (length, 8):
            shapes = f"actions {list(actions.shape)}, state {list(state.shape)}"
            raise DatasetError(f"{path}: {demo} has {shapes}; expected [{length}, 7] and [{length}, 8], a Panda's")
        steps = np.arange(length)
        defaults = {"timestamp": (steps / libero.FPS).astype(np.float32), "frame_index": steps}
        defaults |= {
            "episode_index": np.full(length, episode_index),
            "task_index": np.full(length, self._task_numbers[text]),
        }
        return {libero.STATE: state, libero.ACTION: libero.gripper_opens(actions), **defaults}

    def frames(self, episode_index: int, video_key: str, indices: Sequence[int] | None = None) -> np.ndarray:
        """Return uint8 [n, H, W, 3], turned by 180° as in LeRobot sets: those frames of an episode, all by default."""
        if video_key not in self._cameras:
            raise videos.missing_images(video_key, self.name, self.video_keys)
        path, demo = self._demos[episode_index]
        with opened(path) as file:
            name = self._cameras[video_key][0]
            if name not in file["data"][demo]["obs"]:
                raise DatasetError(f"{path}: {demo} has no obs/{name}; {self._demos[0][1]} has")
            array = file["data"][demo]["obs"][name]
            rows = range(len(array)) if indices is None else [int(index) for index in indices]
            odd = [index for index in rows if not 0 <= index < len(array)]
            if odd:
                raise DatasetError(f"{path}: {demo} has {len(array)} images; image {odd[0]} does not exist")
            images = decode(array, rows, f"{path}: {demo}/obs/{name}")
            is_opengl_order = file["data"].attrs.get("macros_image_convention", "opengl") == "opengl"
        return np.ascontiguousarray(images[:, ::-1, ::-1] if is_opengl_order else images)

    def images_path(self, episode_index: int, video_key: str) -> Path:
        return self._demos[episode_index][0]

    @cache  # noqa: B019  a program opens few sets, each for as long as it runs
    def statistics(self) -> statistics.Statistics:
        return statistics.of_episodes(self.columns(episode.index) for episode in self.episodes)


def files(directory: Path) -> list[Path]:
    """Return the HDF5 files of a directory, or the file itself."""
    if directory.is_file():
        return [directory] if directory.suffix in SUFFIXES else []
    return sorted(path for path in directory.glob("*") if path.suffix in SUFFIXES and not path.name.startswith("."))


def decode(array: h5py.Dataset, rows: Sequence[int], label: str) -> np.ndarray:
    """Return uint8 [n, H, W, 3]: those rows of an array of images.

    It may hold PNG or JPEG files (bytes of variable or of padded length), or grey, RGB or RGBA images, channels first
    or last, uint8 or floats from 0 to 1. Raises DatasetError for anything else.
    """
    values = array[:] if rows == range(len(array)) else [array[row] for row in rows]
    is_encoded = array.ndim == 1 or (array.ndim == 2 and array.dtype == np.uint8)
    if is_encoded:
        images = [
            videos.decode_image(np.asarray(value).tobytes(), f"{label}, row {row}")
            for row, value in zip(rows, values, strict=True)
        ]
        if len({value.shape for value in images}) > 1:
            raise DatasetError(f"{label} holds images of different sizes; expected one size")
        return np.stack(images) if images else np.zeros((0, 0, 0, 3), np.uint8)
    stored = f"{label} is {array.dtype} {list(array.shape)}"
    values = np.asarray(values, array.dtype).reshape(len(rows), *array.shape[1:])
    if values.ndim == 3:
        values = values[..., None]
    elif values.ndim == 4 and values.shape[1] in (1, 3) and values.shape[-1] not in (1, 3, 4):
        values = values.transpose(0, 2, 3, 1)
    if values.ndim != 4 or values.shape[-1] not in (1, 3, 4):
        raise DatasetError(f"{stored}; expected images, uint8 [T, height, width, 3]")
    if values.dtype.kind == "f":
        if not np.all((values >= 0) & (values <= 1)):
            raise DatasetError(f"{stored} with values outside 0 to 1; expected images, uint8 [T, height, width, 3]")
        values = np.round(255 * values).astype(np.uint8)
    if values.dtype != np.uint8:
        raise DatasetError(f"{stored}; expected images, uint8 [T, height, width, 3]")
    return np.repeat(values, 3, axis=-1) if values.shape[-1] == 1 else values[..., :3]


def instruction(data: h5py.Group, path: Path) -> str:
    """Return the instruction of a file's demonstrations, from its attributes or else its name."""
    try:
        text = json.loads(data.attrs["problem_info"])["language_instruction"]
        text = (" ".join(text) if isinstance(text, list) else str(text)).strip()
    except (KeyError, ValueError, TypeError):
        text = ""
    return text or re.sub(r"^.*SCENE\d+_", "", path.stem.removesuffix("_demo")).replace("_", " ").lower()


class DemoWriter(DraftWriter):
    """Writes a directory of LIBERO's files: one per task, each demonstration whole or absent until it is finished.

    task_attributes: the attributes of a task's file by the file's name: problem_info and what else LIBERO writes there.
    """

    PIECE = "hdf5"

    def __init__(
        self,
        directory: str | Path,
        task_attributes: Mapping[str, Mapping[str, Any]],
        source: Mapping[str, Any] | None = None,
        resume: bool = False,
    ):
        super().__init__(directory, source, resume)
        self.task_attributes = task_attributes

    def write(self, position: EpisodeSlot, columns: Mapping[str, np.ndarray], images: Mapping[str, np.ndarray]) -> None:
        """Write one demonstration: arrays by their name in it, as "obs/ee_pos"; images as OpenGL renders them."""
        with metadata.replacing(self.piece(position.episode)) as partial, h5py.File(partial, "w") as file:
            demo = file.create_group("demo")
            demo.attrs.update({"num_samples": len(columns["actions"]), "file": position.file})
            if "states" in columns:
                demo.attrs["init_state"] = columns["states"][0]
            for name, values in columns.items():
                demo.create_dataset(name, data=values)
            for name, values in images.items():  # an image is read alone
                demo.create_dataset(f"obs/{name}", data=values, chunks=(1, *values.shape[1:]))

    def finish(self) -> LiberoFiles:
        """Put each task's demonstrations into its file and give the set its name; return it."""
        numbers = sorted(self.written())
        if not numbers:
            raise DatasetError(f"{self.draft} has no demonstrations; expected at least one")
        for path in self.draft.glob("*.hdf5"):  # of an interrupted finish
            path.unlink()
        for number in numbers:
            with opened(self.piece(number)) as file:
                name, steps = str(file["demo"].attrs["file"]), int(file["demo"].attrs["num_samples"])
                with h5py.File(self.draft / name, "a") as output:
                    data = output.require_group("data")
                    count, total = int(data.attrs.get("num_demos", 0)), int(data.attrs.get("total", 0))
                    file.copy("demo", data, f"demo_{count}")
                    attributes = {"num_demos": count + 1, "total": total + steps, "tag": TAG}
                    attributes |= {**self.task_attributes[name], "macros_image_convention": "opengl"}
                    for key, value in attributes.items():
                        data.attrs[key] = value if isinstance(value, (int, str)) else json.dumps(value)
        if self.source is not None:
            metadata.write_json(self.draft / DESCRIPTION, self.source)
        self.publish()
        return LiberoFiles(self.directory)
