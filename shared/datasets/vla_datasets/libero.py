"""LIBERO's conventions as data: the names of its LeRobot sets and of its HDF5 files.

The LeRobot layout is IPEC-COMMUNITY's libero_*_no_noops sets, read by GR00T with examples/Libero/modality.json
(Isaac-GR00T at 4af2b622): images rotated by 180°, the gripper 0 closed and 1 open. The HDF5 layout is LIBERO's own
(Lifelong-Robot-Learning/LIBERO at 8f1084e3), which openvla's regenerated files keep: images as OpenGL renders them,
the gripper -1 open and 1 closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_datasets import metadata
from vla_datasets.metadata import ACTION as ACTION
from vla_datasets.metadata import STATE as STATE

FPS, ROBOT = 20, "panda"
CAMERAS = {  # the simulator's camera -> its name in LeRobot sets, in HDF5 files
    "agentview": ("observation.images.image", "agentview_rgb"),
    "robot0_eye_in_hand": ("observation.images.wrist_image", "eye_in_hand_rgb"),
}
_HAND = ("x", "y", "z", "roll", "pitch", "yaw")  # "roll, pitch, yaw" are an axis-angle; the names are the sets'
STATE_NAMES, ACTION_NAMES = (*_HAND, "gripper", "gripper"), (*_HAND, "gripper")
LANGUAGE = "human.action.task_description"


def video_key(camera: str) -> str:
    """Return a camera's name in LeRobot sets."""
    return CAMERAS[camera][0] if camera in CAMERAS else f"observation.images.{camera}"


def hdf5_key(camera: str) -> str:
    """Return a camera's name in HDF5 files."""
    return CAMERAS[camera][1] if camera in CAMERAS else f"{camera}_rgb"


def features(cameras: tuple[str, ...], size: int) -> dict[str, dict[str, Any]]:
    """Return the features of a LeRobot set with those cameras, `size` pixels square."""
    numbers = {STATE: STATE_NAMES, ACTION: ACTION_NAMES}
    return metadata.features([video_key(camera) for camera in cameras], size, numbers)


def modality(cameras: tuple[str, ...]) -> dict[str, Any]:
    """Return GR00T's modality.json for these cameras."""
    hand = {name: {"start": index, "end": index + 1} for index, name in enumerate(_HAND)}
    prefix = "observation.images."
    return {
        "state": hand | {"gripper": {"start": 6, "end": 8}},
        "action": hand | {"gripper": {"start": 6, "end": 7}},
        "video": {video_key(camera).removeprefix(prefix): {"original_key": video_key(camera)} for camera in cameras},
        "annotation": {LANGUAGE: {"original_key": "task_index"}},
    }


def gripper_opens(actions: np.ndarray) -> np.ndarray:
    """Convert actions [T, 7] from gripper -1 open, 1 closed to 0 closed, 1 open, as openvla's loader does.

    The oracle also commands 0 (keep the opening, on the way to a drawer's handle), which becomes 0.5.
    """
    return np.concatenate([actions[:, :-1], (1 - np.clip(actions[:, -1:], -1, 1)) / 2], axis=1)
