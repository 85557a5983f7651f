"""Robots of published checkpoints: which benchmark camera an image key is, and what states and actions mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lerobot.configs import PreTrainedConfig
from lerobot.utils.constants import OBS_STATE

from services.lerobot.types import ABSOLUTE_POSES
from vla_contract import Part
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import ALOHA_JOINTS, GRIPPER_CLOSES, HAND_STATE, OSC_POSE, PUSHT_ACTION, PUSHT_STATE
from vla_modelkit.checkpoint import CheckpointError

PREFIX = "observation.images."
EMPTY_CAMERA = f"{PREFIX}empty_camera_"  # LeRobot itself fills these, with black
SINGLE_IMAGE = "observation.image"  # of data sets with one camera


@dataclass(frozen=True)
class Robot:
    """cameras: the last part of an image key → camera of the benchmark."""

    name: str
    state: tuple[Part, ...]
    action: tuple[Part, ...]
    cameras: Mapping[str, str]


_FRONT, _WRIST = "agentview", "robot0_eye_in_hand"
_LIBERO_CAMERAS = {
    "image": _FRONT, "agentview": _FRONT, "camera1": _FRONT,
    "image2": _WRIST, "wrist_image": _WRIST, "eye_in_hand": _WRIST, "camera2": _WRIST,
}  # fmt: skip
LIBERO = Robot("libero", HAND_STATE, (*OSC_POSE, GRIPPER_CLOSES), MappingProxyType(_LIBERO_CAMERAS))
PUSHT = Robot("pusht", PUSHT_STATE, PUSHT_ACTION, MappingProxyType({"image": "top"}))
ALOHA = Robot("aloha", ALOHA_JOINTS, ALOHA_JOINTS, MappingProxyType({"top": "top"}))
ROBOTS = {robot.name: robot for robot in (LIBERO, PUSHT, ALOHA)}
_BY_SIZES = {(8, 7): LIBERO, (0, 7): LIBERO, (2, 2): PUSHT, (14, 14): ALOHA}  # sizes of state and action


def robot_of(config: PreTrainedConfig, name: str = "") -> Robot:
    """Return robot `name`, or the one whose sizes the checkpoint has. Raises CheckpointError."""
    sizes = (state_size(config), config.action_feature.shape[0])
    if name and name not in ROBOTS:
        raise CheckpointError(f"robot {name!r} not found{did_you_mean(name, ROBOTS)}")
    robot = ROBOTS[name] if name else _BY_SIZES.get(sizes)
    if robot is None:
        names = ("state", sizes[0]), ("action", sizes[1])
        state, action = (
            (Part(part, size, "1", "as in the checkpoint's data set"),) if size else () for part, size in names
        )
        robot = Robot("unknown", state, action, MappingProxyType({}))
    if config.type in ABSOLUTE_POSES and robot is LIBERO:
        raise CheckpointError(
            f"policy type {config.type!r} answers absolute poses; LIBERO's benchmark here executes position deltas"
        )
    expected = tuple(sum(part.size for part in parts) for parts in (robot.state, robot.action))
    if sizes[1] != expected[1] or sizes[0] not in (0, expected[0]):
        raise CheckpointError(f"robot {robot.name} has {expected} numbers of state and action, the checkpoint {sizes}")
    return robot


def state_size(config: PreTrainedConfig) -> int:
    """Return how many numbers of robot state the checkpoint takes; 0: none."""
    feature = config.robot_state_feature
    return feature.shape[0] if feature and OBS_STATE in config.input_features else 0


def camera_of(config: PreTrainedConfig, robot: Robot, given: Mapping[str, str]) -> dict[str, str]:
    """Return image key → camera of the benchmark, in the checkpoint's order. `given` precedes the robot's table.

    Raises CheckpointError for an image key without a camera, and for a given key that the checkpoint has not.
    """
    names = {
        key: key.removeprefix(PREFIX) if key != SINGLE_IMAGE else "image"
        for key in config.image_features
        if not key.startswith(EMPTY_CAMERA)
    }
    if unknown := sorted(given.keys() - set(names.values())):
        raise CheckpointError(
            f"VLALAB_LEROBOT_CAMERAS names {', '.join(unknown)}; the checkpoint's images are "
            f"{', '.join(names.values())}"
        )
    table = {**robot.cameras, **given}
    if missing := sorted(name for name in names.values() if name not in table):
        raise CheckpointError(
            f"the checkpoint's images {', '.join(missing)} belong to no camera of {robot.name}; set "
            f"VLALAB_LEROBOT_CAMERAS={missing[0]}=CAMERA"
        )
    cameras = {key: table[name] for key, name in names.items()}
    if len(set(cameras.values())) < len(cameras):
        pairs = ", ".join(f"{name}={table[name]}" for name in names.values())
        raise CheckpointError(f"two images of the checkpoint are one camera ({pairs}); set VLALAB_LEROBOT_CAMERAS")
    return cameras
