"""`python -m services.seeker --port 8011` serves a policy that moves a pointer straight to its goal."""

import argparse

import numpy as np

from vla_common import entrypoint
from vla_contract import ActionChunk, Policy, PolicyInfo, serve
from vla_contract.protocol.parts import GRIPPER_OPENS, Part

CLOSE_M = 0.02  # nearer than that it closes


class Seeker(Policy):
    """Answers two actions at a time; asks for a picture and does not look at it. speed: m/s."""

    def __init__(self, speed):
        self.speed = speed

    def info(self):
        return PolicyInfo(
            "seeker",
            cameras=("overhead",),
            action=(Part("velocity", 2, "m/s", "table frame", -1, 1), GRIPPER_OPENS),
            state=(Part("pointer", 2, "m", "table frame"), Part("goal", 2, "m", "table frame")),
            horizon=2,
            max_batch=4,
        )

    def act(self, observations):
        return [ActionChunk(np.tile(answer(observation.state, self.speed), (2, 1))) for observation in observations]


def answer(state, speed):
    """Returns one action, float32 [3], for a state [4]."""
    way = state[2:] - state[:2]
    near = np.linalg.norm(way) < CLOSE_M
    velocity = np.zeros(2) if near else way / np.abs(way).max() * min(speed, 5 * np.abs(way).max())
    return np.array([*velocity, 0.0 if near else 1.0], np.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--speed", type=float, default=0.5)
    asked = parser.parse_args()
    serve(lambda: Seeker(asked.speed), host=asked.host, port=asked.port)


if __name__ == "__main__":
    entrypoint.run(main)
