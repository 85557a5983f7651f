"""What a LeRobot set of Meta-World calls its numbers and pictures: as LeRobot's adapter names what it observes.

The set lerobot/metaworld_mt50 has these names (docs/source/metaworld.mdx of lerobot@7427f318); pictures are upright.
"""

from __future__ import annotations

from typing import Any

FPS, ROBOT = 80, "sawyer"
STATE, ACTION, LANGUAGE = "observation.state", "action", "human.action.task_description"
STATE_NAMES, ACTION_NAMES = ("x", "y", "z", "gripper"), ("x", "y", "z", "gripper")
FIRST = "corner2"  # the camera that policies are trained on


def video_key(camera: str) -> str:
    """Returns what a set calls a camera."""
    return "observation.image" if camera == FIRST else f"observation.images.{camera}"


def features(cameras: tuple[str, ...], size: int) -> dict[str, dict[str, Any]]:
    """Returns the features of a set with those cameras, `size` pixels square."""
    found: dict[str, dict[str, Any]] = {video_key(one): {"dtype": "video", "shape": [size, size, 3]} for one in cameras}
    for name, names in ((STATE, STATE_NAMES), (ACTION, ACTION_NAMES)):
        found[name] = {"dtype": "float32", "shape": [len(names)], "names": {"motors": list(names)}}
    return found


def modality(cameras: tuple[str, ...]) -> dict[str, Any]:
    """Returns GR00T's modality.json for them."""
    numbers = {name: {"start": place, "end": place + 1} for place, name in enumerate(STATE_NAMES)}
    return {
        "state": numbers,
        "action": numbers,
        "video": {video_key(one).rpartition(".")[2]: {"original_key": video_key(one)} for one in cameras},
        "annotation": {LANGUAGE: {"original_key": "task_index"}},
    }
