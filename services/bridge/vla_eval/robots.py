"""Where vla-eval's messages of a robot keep what the contract has a place for.

`LIBERO` is vla_eval/benchmarks/libero/benchmark.py of vla-eval 0.8.0, with vla_eval/specs.py and rotation.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from services.bridge.robots import describe, member, picture, state_of
from vla_contract import InvalidObservation, Observation
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE, Part, in_words, total

IMAGES, SENTENCE, STATE, ACTIONS = "images", "task_description", "states", "actions"
WRIST, TOLD, WHOLE_TURN, ABSOLUTE = "send_wrist_image", "send_state", "quat_no_antipodal", "absolute_action"
SPECS = {  # what a server may say that it answers or needs; "raw" is anything
    "action_spec": {
        "position": ("delta_xyz", "raw"),
        "rotation": ("axis_angle", "raw"),
        "gripper": ("binary_close_positive", "raw"),
    },
    "observation_spec": {"state": ("eef_pos3_axisangle3_gripper2", "raw")},
}


@dataclass(frozen=True)
class Robot:
    """pictures: the wire's key → camera, in the wire's order: a server takes the first as what the benchmark is seen
    by. `action` is what vla-eval's benchmark executes, `benchmark` our module of it, `profile` that loop as ours.
    """

    name: str
    pictures: Mapping[str, str]
    state_parts: tuple[Part, ...]
    action: tuple[Part, ...]
    image_hw: tuple[int, int]
    benchmark: str
    profile: str

    def message(self, observation: Observation, asks: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an observation as vla-eval's benchmark sends it to a server that asks for `asks`."""
        images = {key: observation.images[camera] for key, camera in self.pictures.items() if self.shown(key, asks)}
        message: dict[str, Any] = {IMAGES: images, SENTENCE: observation.instruction}
        if asks.get(TOLD):
            state = np.asarray(observation.state, np.float64)
            message[STATE] = state if asks.get(WHOLE_TURN) else half_turn(state)
        return message

    def shown(self, key: str, asks: Mapping[str, Any]) -> bool:
        """Returns whether a server that asks for `asks` is sent a picture."""
        return key != "wrist" or bool(asks.get(WRIST))

    def actions(self, answer: Mapping[str, Any]) -> np.ndarray:
        """Returns an answer's one action, float32 [1, n], the gripper −1 or 1. Raises ValueError."""
        given, size = answer.get(ACTIONS, answer.get("action")), total(self.action)
        try:
            action = np.asarray(given, np.float32)
        except (ValueError, TypeError):
            action = np.empty(0, np.float32)
        if action.shape != (size,) or not np.isfinite(action).all():
            found = describe(given) if action.shape != (size,) else "not finite"
            raise ValueError(f"the action is {found}; expected {size} numbers: {in_words(self.action)}")
        return np.array([[*action[:-1], -1.0 if action[-1] < 0 else 1.0]], np.float32)

    def observation(
        self, message: Mapping[str, Any], cameras: tuple[str, ...], has_state: bool, session: str, step: int
    ) -> Observation:
        """Returns a client's message as an observation with those cameras, and the state where one is wanted.

        Raises InvalidObservation naming the key that is missing or is something else.
        """
        images = member(message, IMAGES)
        if not isinstance(images, dict):
            raise InvalidObservation(f"{IMAGES!r} is {describe(images)}; expected a map of pictures")
        keys = {camera: key for key, camera in self.pictures.items()}
        found = {camera: picture(keys[camera], member(images, keys[camera])) for camera in cameras}
        state = state_of(message, STATE, self.state_parts) if has_state else None
        sentence = member(message, SENTENCE)
        if type(sentence) is not str:
            raise InvalidObservation(f"{SENTENCE!r} is {describe(sentence)}; expected a text")
        return Observation(found, state, sentence, session, step)


def half_turn(state: np.ndarray) -> np.ndarray:
    """Returns a hand's state with a rotation of at most half a turn, as vla-eval's benchmark tells it unless asked for
    robosuite's own, which goes up to a whole one.
    """
    angle = float(np.linalg.norm(state[3:6]))
    if angle <= math.pi:
        return state
    return np.concatenate([state[:3], state[3:6] * ((angle - 2 * math.pi) / angle), state[6:]])


def misfit(said: Mapping[str, Any]) -> str:
    """Returns what a server's hello says that this robot does not execute or tell; empty where there is nothing."""
    if isinstance(asks := said.get("observation_params", {}), dict) and asks.get(ABSOLUTE):
        return "answers absolute poses, and what is executed here is deltas"
    for spec, part, form, formats in _formats(said):
        if form is not None and form not in formats:
            does = "answers" if spec == "action_spec" else "needs"
            return f"{does} {part} as {form!r:.60}, and what there is here is {formats[0]}"
    return ""


def unstated(said: Mapping[str, Any]) -> str:
    """Returns the formats that a server's hello leaves open, as they are assumed: "position delta_xyz, …"."""
    asks = said.get("observation_params")
    specs = {"action_spec"} | ({"observation_spec"} if isinstance(asks, dict) and asks.get(TOLD) else set())
    open_ones = (one for one in _formats(said) if one[2] in (None, "raw") and one[0] in specs)
    return ", ".join(f"{part} {formats[0]}" for _, part, _, formats in open_ones)


def _formats(said: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, tuple[str, ...]]]:
    """Yields spec, part, the format that a hello states (None: it states none) and the formats that are fine."""
    for spec, parts in SPECS.items():
        stated = said.get(spec)
        for part, formats in parts.items():
            entry = stated.get(part) if isinstance(stated, dict) else None
            yield spec, part, entry.get("format") if isinstance(entry, dict) else None, formats


LIBERO = Robot(
    name="libero",
    pictures=MappingProxyType({"agentview": "agentview", "wrist": "robot0_eye_in_hand"}),
    state_parts=HAND_STATE,
    action=(*OSC_POSE, GRIPPER_CLOSES),
    image_hw=(256, 256),
    benchmark="services.libero.benchmark",
    profile="vla-eval",
)
ROBOTS: Mapping[str, Robot] = MappingProxyType({"libero": LIBERO})
