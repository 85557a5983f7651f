"""What a LeRobot set of Meta-World calls its numbers and pictures: as LeRobot's adapter names what it observes.

The set lerobot/metaworld_mt50 has these names (docs/source/metaworld.mdx of lerobot@7427f318); pictures are upright.
"""

from __future__ import annotations

from typing import Any

from vla_datasets import metadata

FPS, ROBOT = 80, "sawyer"
STATE, ACTION, LANGUAGE = "observation.state", "action", "human.action.task_description"
STATE_NAMES, ACTION_NAMES = ("x", "y", "z", "gripper"), ("x", "y", "z", "gripper")
FIRST = "corner2"  # the camera that policies are trained on


def video_key(camera: str) -> str:
    """Returns what a set calls a camera."""
    return "observation.image" if camera == FIRST else f"observation.images.{camera}"


def features(cameras: tuple[str, ...], size: int) -> dict[str, dict[str, Any]]:
    """Returns the features of a set with those cameras, `size` pixels square."""
    numbers = {STATE: STATE_NAMES, ACTION: ACTION_NAMES}
    return metadata.features([video_key(camera) for camera in cameras], size, numbers)


def modality(cameras: tuple[str, ...]) -> dict[str, Any]:
    """Returns GR00T's modality.json for them."""
    numbers = {name: {"start": place, "end": place + 1} for place, name in enumerate(STATE_NAMES)}
    return {
        "state": numbers,
        "action": numbers,
        "video": {video_key(camera).rpartition(".")[2]: {"original_key": video_key(camera)} for camera in cameras},
        "annotation": {LANGUAGE: {"original_key": "task_index"}},
    }
