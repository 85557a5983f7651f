"""Small real policies, named after what they do."""

import threading
import time

import numpy as np

from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE

WRIST = "robot0_eye_in_hand"
KEYS = ("bridge_orig", "libero_goal")
OPENVLA = (*OSC_POSE, GRIPPER_OPENS)


class SeeingPolicy(Policy):
    """Answers with what it saw: mean red, green, blue, height and width / 1000, length of the text / 1000, and 0.75."""

    def __init__(self, **info):
        given = {"name": "seeing", "cameras": ("agentview",), "action": OPENVLA, "unnorm_keys": KEYS}
        self._info = PolicyInfo(**{**given, **info})
        self.asked: list[Observation] = []
        self.resets: list[str] = []

    def info(self):
        return self._info

    def reset(self, session):
        self.resets.append(session)

    def act(self, observations):
        self.asked += observations
        return [self.answer(observation) for observation in observations]

    def answer(self, observation):
        image = next(iter(observation.images.values()), np.zeros((1, 1, 3), np.uint8))
        height, width = image.shape[:2]
        seen = [*image.mean(axis=(0, 1)) / 255, height / 1e3, width / 1e3, len(observation.instruction) / 1e3, 0.75]
        rows = np.tile(np.array(seen, np.float32), (self._info.horizon, 1))
        return ActionChunk(rows, {"vision": 1.5})


class FarPolicy(SeeingPolicy):
    """Asks for more than a full step: -1.6 of one, and 7.25 of another."""

    def answer(self, observation):
        action = np.array([0.3, -1.6, 0.05, 0.2, 7.25, -0.1, 1.0], np.float32)
        return ActionChunk(np.tile(action, (self._info.horizon, 1)))


class HandPolicy(SeeingPolicy):
    """Needs both of LIBERO's cameras and the hand's state: answers with where the hand is, and the wrist's colours."""

    def __init__(self, **info):
        given = {"name": "hand", "cameras": ("agentview", WRIST), "state": HAND_STATE, "unnorm_keys": ()}
        super().__init__(**{**given, "image_hw": (64, 64), **info})

    def answer(self, observation):
        colours = observation.images[WRIST].mean(axis=(0, 1)) / 255
        return ActionChunk(np.array([[*observation.state[:3], *colours, 1.0]], np.float32))


class SlowPolicy(SeeingPolicy):
    """Takes its time for every answer but the warm-up's."""

    def __init__(self, seconds: float, **info):
        super().__init__(**info)
        self.seconds = seconds

    def answer(self, observation):
        if observation.session != "warm-up":
            time.sleep(self.seconds)
        return super().answer(observation)


class PickyPolicy(SeeingPolicy):
    """Breaks down at one instruction."""

    def answer(self, observation):
        if observation.instruction == "break":
            raise RuntimeError("secret path /srv/weights")
        return super().answer(observation)


class GatedLoader:
    """Loads a policy as soon as `gate` is set."""

    def __init__(self, policy: SeeingPolicy):
        self.policy, self.gate = policy, threading.Event()

    def __call__(self):
        self.gate.wait(30)
        return self.policy


def broken_loader():
    """Fails to load."""
    raise RuntimeError("weights.safetensors is 3 bytes long; expected 15 GB")


class WaitingPolicy(SeeingPolicy):
    """Drives LIBERO's arm, and waits before the given episode of those that it is asked in until `gate` is set."""

    def __init__(self, episode: int):
        super().__init__(name="waiting", unnorm_keys=(), action=(*OSC_POSE, GRIPPER_CLOSES))
        self.episode, self.begun, self.gate = episode, 0, threading.Event()

    def answer(self, observation):
        self.begun += observation.step == 0 and observation.session != "warm-up"
        if self.begun > self.episode:
            self.gate.wait(300)
        return super().answer(observation)
