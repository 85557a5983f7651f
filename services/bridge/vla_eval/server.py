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

from services.bridge.robots import Robot
from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import ACTION, END, ERROR, HELLO, OBSERVATION, START, Message
from services.bridge.vla_eval.robots import (
    ACTIONS,
    BENCHMARK,
    FORMATS,
    FULL_ROTATION,
    SEND_STATE,
    WRIST_IMAGE,
    read_observation,
)
from services.bridge.wire import ProtocolError, short
from vla_contract import ContractError, InvalidObservation, PolicyClient, PolicyInfo
from vla_evaluation import benchmark
from vla_evaluation.actions import Actions, PolicyFault
from vla_evaluation.agreement import choose_profile
from vla_evaluation.pictures import images

PATH = "/vla-eval"


class ConnectionEpisodes:
    """One connection's episodes. `info` is the policy's own; `client_left` returns whether the connection is closed."""

    def __init__(self, client: PolicyClient, info: PolicyInfo, robot: Robot, client_left: Callable[[], bool]):
        self.client, self.info, self.robot, self.client_left = client, info, robot, client_left
        definition = benchmark.load(BENCHMARK)  # its profile sets images, and the executed actions of a chunk
        self.profile = definition.profiles[choose_profile(info, definition, None)]
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
        sizes = {"position": 3, "rotation": 3, "gripper": 1}
        params = {
            WRIST_IMAGE: self.robot.images["wrist"] in self.info.cameras,
            SEND_STATE: bool(self.info.state),
            FULL_ROTATION: True,
            "env_seed": self.profile.env_seed,
        }
        spec = {
            part: {"name": part, "dims": sizes[part], "format": form} for part, form in FORMATS["action_spec"].items()
        }
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
        observation = read_observation(self.robot, payload, self.info, self._session, min(self._step, 2**31 - 1))
        if self.client_left():
            raise ProtocolError("the client has disconnected")
        protocol = replace(self.profile.protocol(), rotate_180=False)  # vla-eval's benchmark has rotated them
        shown = {camera: images.prepare(image, protocol) for camera, image in observation.images.items()}
        keys, suite = self.info.unnorm_keys, self._suite  # statistics to request: those of the client's suite
        preferred = [key.format(suite=suite) for key in self.profile.unnorm_keys]
        key = next((key for key in preferred if key in keys), keys[0] if len(keys) == 1 else None)
        if keys and key is None:
            problem = f"policy {self.info.name!r} has no statistics for suite {suite!r}"
            raise InvalidObservation(f"{problem}: {', '.join(keys)}")
        chunk = self.client.act(replace(observation, images=shown, unnorm_key=key))
        actions, fault = self._actions.read(chunk, self.profile.execute or len(chunk.actions))
        if fault is not None:
            raise fault
        return actions
