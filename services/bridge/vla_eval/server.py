"""A policy of this lab for vla-eval's evaluator: the protocol of connections to PATH of `services.bridge.server`.

vla-eval 0.8.0 vla_eval/connection.py and runners/sync_runner.py: a hello is answered with a hello, an observation with
one action, taken from the policy's last chunk until it is used up. Images are prepared as the policy's profile
requires, so a policy sees the same images as in an evaluation of the lab.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import ACTION, END, ERROR, HELLO, OBSERVATION, START, Message
from services.bridge.vla_eval.robots import ACTIONS, FULL_ROTATION, SEND_STATE, SEND_WRIST_IMAGE, VlaEvalRobot
from services.bridge.wire import ProtocolError, short
from vla_contract import ContractError, InvalidObservation, PolicyClient, PolicyInfo
from vla_evaluation import benchmark
from vla_evaluation.actions import Actions, PolicyFault, differing
from vla_evaluation.agreement import choose_profile
from vla_evaluation.pictures import images
from vla_evaluation.profiles import Profile

PATH = "/vla-eval"


def check_policy(info: PolicyInfo, robot: VlaEvalRobot) -> None:
    """Raise ValueError if vla-eval's benchmark lacks an input of the policy, or its actions do not fit."""
    if info.needs_privileged:
        raise ValueError(f"policy {info.name!r} needs the simulator's state, which vla-eval's protocol does not send")
    unknown = [camera for camera in info.cameras if camera not in robot.images.values()]
    if unknown:
        available = ", ".join(robot.images.values())
        raise ValueError(f"policy {info.name!r} needs camera {unknown[0]!r}; vla-eval's {robot.name} sends {available}")
    for verb, policy_parts, robot_parts in (
        ("answers actions", info.action, robot.action),
        ("needs a state", info.state, ()),
    ):
        pair = differing(policy_parts, robot_parts or robot.state_parts) if policy_parts else None
        if pair:
            ends = [str(part) if part else "nothing" for part in pair]
            raise ValueError(f"policy {info.name!r} {verb} with {ends[0]} where vla-eval's {robot.name} has {ends[1]}")


class ConnectionEpisodes:
    """One connection's episodes. `info` is the policy's own; `client_left` returns whether the connection is closed."""

    def __init__(self, client: PolicyClient, info: PolicyInfo, robot: VlaEvalRobot, client_left: Callable[[], bool]):
        self.client, self.info, self.robot, self.client_left = client, info, robot, client_left
        self.profile = profile_of(info, robot)
        self._actions = Actions(info.name, info.action, robot.action)
        self._begin({})

    def answer(self, frame: bytes | str) -> bytes | None:
        """Return the answer to a frame, if there is one. Raises ProtocolError for an invalid frame."""
        message = messages.unpack(frame, self.client_left)
        if message.type == HELLO:
            messages.check_version(message.payload)
            return messages.pack(Message(HELLO, self._hello(), message.seq))
        if message.type == START:
            self.end()
            task = message.payload.get("task")
            self._begin(task if isinstance(task, dict) else {})
        elif message.type == END:
            self.end()
        elif message.type == OBSERVATION:
            return messages.pack(Message(*self._act(message.payload), message.seq))
        return None

    def end(self) -> None:
        """End the current episode, if there is one."""
        self._chunk.clear()
        if self.info.stateful and self._step:
            self._step = 0
            self.client.reset(self._session)

    def _begin(self, task: dict[str, Any]) -> None:
        self._session, self._step = f"vla-eval.{uuid.uuid4().hex}", 0
        self._chunk: deque[np.ndarray] = deque()
        self._suite = str(task.get("suite", ""))

    def _hello(self) -> dict[str, Any]:
        cameras = {camera: key for key, camera in self.robot.images.items()}
        flags = {
            SEND_WRIST_IMAGE: "wrist" in [cameras[camera] for camera in self.info.cameras],
            SEND_STATE: bool(self.info.state),
        }
        formats = {"position": (3, "delta_xyz"), "rotation": (3, "axis_angle"), "gripper": (1, "binary_close_positive")}
        spec = {name: {"name": name, "dims": size, "format": form} for name, (size, form) in formats.items()}
        params = {**flags, FULL_ROTATION: True, "env_seed": self.profile.env_seed}
        return messages.hello(
            model_server=self.info.name,
            capabilities={},
            observation_params=params,
            action_spec=spec,
            observation_spec={},
        )

    def _act(self, payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        try:
            if not self._chunk:
                self._chunk.extend(self._ask(payload))
            self._step += 1
            return ACTION, {ACTIONS: self._chunk.popleft()}
        except (ContractError, PolicyFault) as error:  # of this observation; the next may succeed
            return ERROR, {"error": short(str(error), 1000)}

    def _ask(self, payload: dict[str, Any]) -> np.ndarray:
        info = self.info
        observation = self.robot.observation(
            payload, info.cameras, info.needs_state, self._session, min(self._step, 2**31 - 1)
        )
        if self.client_left():
            raise ProtocolError("the client has disconnected")
        protocol = replace(self.profile.protocol(), rotate_180=False)  # vla-eval's benchmark has rotated them
        shown = {camera: images.prepare(image, protocol) for camera, image in observation.images.items()}
        chunk = self.client.act(replace(observation, images=shown, unnorm_key=self._key()))
        count = self.profile.execute or len(chunk.actions)
        actions, fault = self._actions.read(chunk, count)
        if fault is not None:
            raise fault
        return actions

    def _key(self) -> str | None:
        """Return the statistics to request from the policy: those of the client's suite."""
        keys, preferred = self.info.unnorm_keys, [key.format(suite=self._suite) for key in self.profile.unnorm_keys]
        if not keys:
            return None
        matching = [key for key in preferred if key in keys] or list(keys[:1] if len(keys) == 1 else ())
        if not matching:
            raise InvalidObservation(
                f"policy {self.info.name!r} has no statistics for suite {self._suite!r}: {', '.join(keys)}"
            )
        return matching[0]


def profile_of(info: PolicyInfo, robot: VlaEvalRobot) -> Profile:
    """Return the profile that sets image preparation and the executed actions per chunk."""
    definition = benchmark.load(robot.benchmark)
    return definition.profiles[choose_profile(info, definition, None)]
