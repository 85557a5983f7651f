"""A policy of this lab for vla-eval's evaluator: what is said on a connection to PATH of `services.bridge.server`.

vla-eval 0.8.0 vla_eval/connection.py and runners/sync_runner.py: a hello is answered with a hello, an observation with
one action, which is of the policy's last chunk while that lasts. Its pictures are prepared as the policy's profile
has it, so that a policy sees what it sees in an evaluation here.
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
from services.bridge.vla_eval.robots import ACTIONS, TOLD, WHOLE_TURN, WRIST, Robot
from services.bridge.wire import NotTheirs, short
from vla_contract import ContractError, InvalidObservation, PolicyClient, PolicyInfo
from vla_evaluation import benchmark
from vla_evaluation.actions import Actions, PolicyFault, differing
from vla_evaluation.agreement import choose_profile
from vla_evaluation.pictures import images
from vla_evaluation.profiles import Profile

PATH = "/vla-eval"


def check_policy(info: PolicyInfo, robot: Robot) -> None:
    """Raises ValueError for a policy that vla-eval's benchmark cannot feed, or whose actions do not fit."""
    if info.needs_privileged:
        raise ValueError(
            f"policy {info.name!r} needs the simulator's state, which vla-eval's protocol has no place for"
        )
    unknown = [camera for camera in info.cameras if camera not in robot.pictures.values()]
    if unknown:
        known = ", ".join(robot.pictures.values())
        raise ValueError(f"policy {info.name!r} needs camera {unknown[0]!r}; vla-eval's {robot.name} sends {known}")
    for what, theirs, ours in (("answers actions", info.action, robot.action), ("needs a state", info.state, ())):
        pair = differing(theirs, ours or robot.state_parts) if theirs else None
        if pair:
            ends = [str(part) if part else "nothing" for part in pair]
            raise ValueError(f"policy {info.name!r} {what} with {ends[0]} where vla-eval's {robot.name} has {ends[1]}")


class Episodes:
    """One connection's episodes. `info` is the policy's own; `client_left` returns whether the connection is closed."""

    def __init__(self, client: PolicyClient, info: PolicyInfo, robot: Robot, client_left: Callable[[], bool]):
        self.client, self.info, self.robot, self.client_left = client, info, robot, client_left
        self.profile = profile_of(info, robot)
        self._actions = Actions(info.name, info.action, robot.action)
        self._begin({})

    def answer(self, frame: bytes | str) -> bytes | None:
        """Returns the answer to a frame, None where there is none. Raises NotTheirs for a frame that is no message."""
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
        """Ends the episode, if one has begun."""
        self._chunk.clear()
        if self.info.stateful and self._step:
            self._step = 0
            self.client.reset(self._session)

    def _begin(self, task: dict[str, Any]) -> None:
        self._session, self._step = f"vla-eval.{uuid.uuid4().hex}", 0
        self._chunk: deque[np.ndarray] = deque()
        self._suite = str(task.get("suite", ""))

    def _hello(self) -> dict[str, Any]:
        cameras = {camera: key for key, camera in self.robot.pictures.items()}
        asks = {WRIST: "wrist" in [cameras[camera] for camera in self.info.cameras], TOLD: bool(self.info.state)}
        formats = {"position": (3, "delta_xyz"), "rotation": (3, "axis_angle"), "gripper": (1, "binary_close_positive")}
        spec = {name: {"name": name, "dims": size, "format": form} for name, (size, form) in formats.items()}
        params = {**asks, WHOLE_TURN: True, "env_seed": self.profile.env_seed}
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
        except (ContractError, PolicyFault) as error:  # this observation's; the next may be another
            return ERROR, {"error": short(str(error), 1000)}

    def _ask(self, payload: dict[str, Any]) -> np.ndarray:
        info = self.info
        told = self.robot.observation(
            payload, info.cameras, info.needs_state, self._session, min(self._step, 2**31 - 1)
        )
        if self.client_left():
            raise NotTheirs("the client has left")
        turned = replace(self.profile.protocol(), rotate_180=False)  # their benchmark has done that
        shown = {camera: images.prepare(image, turned) for camera, image in told.images.items()}
        chunk = self.client.act(replace(told, images=shown, unnorm_key=self._key()))
        count = self.profile.execute or len(chunk.actions)
        actions, fault = self._actions.read(chunk, count)
        if fault is not None:
            raise fault
        return actions

    def _key(self) -> str | None:
        """Returns the statistics to ask the policy for: those of the suite that the client has named."""
        keys, wanted = self.info.unnorm_keys, [key.format(suite=self._suite) for key in self.profile.unnorm_keys]
        if not keys:
            return None
        found = [key for key in wanted if key in keys] or list(keys[:1] if len(keys) == 1 else ())
        if not found:
            raise InvalidObservation(
                f"policy {self.info.name!r} has no statistics for suite {self._suite!r}: {', '.join(keys)}"
            )
        return found[0]


def profile_of(info: PolicyInfo, robot: Robot) -> Profile:
    """Returns the profile whose pictures a policy is shown, and as much of whose chunks is executed."""
    known = benchmark.load(robot.benchmark)
    return known.profiles[choose_profile(info, known, None)]
