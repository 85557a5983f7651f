"""vla-eval's messages of an observation and an action: keys, flags and formats.

`LIBERO` is vla_eval/benchmarks/libero/benchmark.py of vla-eval 0.8.0, with vla_eval/specs.py and rotation.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from services.bridge.robots import Robot, describe, images_of, member, state_of, text_of
from vla_contract import InvalidObservation, Observation, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE, format_parts, total

IMAGES, TASK_DESCRIPTION, STATE, ACTIONS = "images", "task_description", "states", "actions"
# Parameters that a server sets for vla-eval's benchmark.
WRIST_IMAGE, SEND_STATE, FULL_ROTATION = "send_wrist_image", "send_state", "quat_no_antipodal"
ABSOLUTE_ACTION = "absolute_action"
FORMATS = {  # that a server may state of a part; "raw" is any
    "action_spec": {"position": "delta_xyz", "rotation": "axis_angle", "gripper": "binary_close_positive"},
    "observation_spec": {"state": "eef_pos3_axisangle3_gripper2"},
}
BENCHMARK = "services.libero.benchmark"  # whose profiles the robot has
# A server takes the first image as the benchmark's main camera.
LIBERO = Robot(
    name="libero",
    project="vla-eval",
    images=MappingProxyType({"agentview": "agentview", "wrist": "robot0_eye_in_hand"}),
    state_parts=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    image_hw=(256, 256),
    profile="vla-eval",
)


def sent_images(robot: Robot, params: Mapping[str, Any]) -> dict[str, str]:
    """Return wire key -> camera of the images that are sent to a server with these `params`."""
    return {key: camera for key, camera in robot.images.items() if key != "wrist" or params.get(WRIST_IMAGE)}


def message(robot: Robot, observation: Observation, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation as vla-eval's benchmark sends it to a server with these `params`."""
    images = {key: observation.images[camera] for key, camera in sent_images(robot, params).items()}
    sent: dict[str, Any] = {IMAGES: images, TASK_DESCRIPTION: observation.instruction}
    if params.get(SEND_STATE):
        state = np.asarray(observation.state, np.float64)
        angle = float(np.linalg.norm(state[3:6]))
        if angle > math.pi and not params.get(FULL_ROTATION):  # robosuite's goes up to a full turn
            state[3:6] *= (angle - 2 * math.pi) / angle
        sent[STATE] = state
    return sent


def read_actions(robot: Robot, answer: Mapping[str, Any]) -> np.ndarray:
    """Return the action of an answer, float32 [1, n], the gripper −1 or 1. Raises ValueError."""
    value, size = answer.get(ACTIONS, answer.get("action")), total(robot.action)
    try:
        action = np.asarray(value, np.float32)
    except (ValueError, TypeError):
        action = np.empty(0, np.float32)
    if action.shape != (size,) or not np.isfinite(action).all():
        actual = describe(value) if action.shape != (size,) else "not finite"
        raise ValueError(f"the action is {actual}; expected {size} numbers: {format_parts(robot.action)}")
    return np.array([[*action[:-1], -1.0 if action[-1] < 0 else 1.0]], np.float32)


def read_observation(
    robot: Robot, message: Mapping[str, Any], info: PolicyInfo, session: str, step: int
) -> Observation:
    """Return a client's message as an observation for a policy.

    Raises InvalidObservation naming the key that is missing or invalid.
    """
    entries = member(message, IMAGES)
    if not isinstance(entries, dict):
        raise InvalidObservation(f"{IMAGES!r} is {describe(entries)}; expected a map of images")
    state = state_of(message, STATE, robot.state_parts) if info.needs_state else None
    return Observation(images_of(entries, robot, info), state, text_of(message, TASK_DESCRIPTION), session, step)


def parameters(hello: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a server's hello."""
    params = hello.get("observation_params")
    return params if isinstance(params, dict) else {}


def find_mismatch(hello: Mapping[str, Any]) -> str:
    """Return the requirement of a server's hello that this robot does not meet; empty if it meets all."""
    if parameters(hello).get(ABSOLUTE_ACTION):
        return "answers absolute poses; this robot executes deltas"
    for spec, part, stated, ours in _formats(hello):
        if stated not in (None, "raw", ours):
            does = "answers" if spec == "action_spec" else "needs"
            return f"{does} {part} as {stated!r:.60}; this robot has {ours}"
    return ""


def assumed_formats(hello: Mapping[str, Any]) -> str:
    """Return the formats that a server's hello does not state and that are assumed: "position delta_xyz, …"."""
    specs = FORMATS if parameters(hello).get(SEND_STATE) else ("action_spec",)
    unstated = [
        (part, ours) for spec, part, stated, ours in _formats(hello) if stated in (None, "raw") and spec in specs
    ]
    return ", ".join(f"{part} {ours}" for part, ours in unstated)


def _formats(hello: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, str]]:
    """Yield spec, part, the format that a hello states (None if none) and this robot's."""
    for spec, parts in FORMATS.items():
        stated = hello.get(spec)
        for part, ours in parts.items():
            entry = stated.get(part) if isinstance(stated, dict) else None
            yield spec, part, entry.get("format") if isinstance(entry, dict) else None, ours
