"""Names of states, actions and images in a LeRobot set of Meta-World, as in LeRobot's adapter.

The set lerobot/metaworld_mt50 has these names (docs/source/metaworld.mdx of lerobot@7427f318); images are upright.
"""

from __future__ import annotations

from typing import Any

from vla_datasets import metadata

FPS, ROBOT = 80, "sawyer"
STATE, ACTION, LANGUAGE = "observation.state", "action", "human.action.task_description"
STATE_NAMES, ACTION_NAMES = ("x", "y", "z", "gripper"), ("x", "y", "z", "gripper")
FIRST = "corner2"  # the camera that policies are trained on


def video_key(camera: str) -> str:
    """Return the key of a camera's video in a set."""
    return "observation.image" if camera == FIRST else f"observation.images.{camera}"


def features(cameras: tuple[str, ...], size: int) -> dict[str, dict[str, Any]]:
    """Return the features of a set with those cameras at `size` × `size` pixels."""
    numbers = {STATE: STATE_NAMES, ACTION: ACTION_NAMES}
    return metadata.features([video_key(camera) for camera in cameras], size, numbers)


def modality(cameras: tuple[str, ...]) -> dict[str, Any]:
    """Return GR00T's modality.json for a set with those cameras."""
    numbers = {name: {"start": index, "end": index + 1} for index, name in enumerate(STATE_NAMES)}
    return {
        "state": numbers,
        "action": numbers,
        "video": {video_key(camera).rpartition(".")[2]: {"original_key": video_key(camera)} for camera in cameras},
        "annotation": {LANGUAGE: {"original_key": "task_index"}},
    }
