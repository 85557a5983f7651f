"""A tiny policy service for tests: a deterministic wave of small movements, no model, no pictures unless asked.

`python tests/libero/scripted_policy.py --port 0 [--chunk 4] [--camera agentview] [--delay-ms 5] [--oracle] …`
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT),
    *(str(ROOT / "shared" / name) for name in ("common", "contract", "evaluation", "fast_libero")),
]

import numpy as np  # noqa: E402

from services.libero.oracle.policy import OraclePolicy  # noqa: E402
from vla_contract import ActionChunk, InvalidObservation, Policy, PolicyInfo, serve  # noqa: E402
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE  # noqa: E402

HELD_AT = 3  # steps
GRIPPERS = {"libero": GRIPPER_CLOSES, "openvla": GRIPPER_OPENS}


class WavePolicy(Policy):
    """Action t depends on the instruction and t alone, so equal episodes get equal actions however they are asked."""

    def __init__(self, options):
        self.options = options

    def info(self) -> PolicyInfo:
        o = self.options
        return PolicyInfo(
            name=o.name,
            cameras=tuple(o.camera),
            state=HAND_STATE if o.state else (),
            horizon=o.chunk,
            max_batch=8,
            suites=tuple(o.suite),
            action=(*OSC_POSE, GRIPPERS[o.convention]),
        )

    def act(self, observations):
        time.sleep(self.options.delay_ms / 1e3)
        return [self.answer(o) for o in observations]

    def answer(self, observation):
        o = self.options
        seen = "".join(hashlib.sha256(image.tobytes()).hexdigest() for image in observation.images.values())
        chunk = self.chunk(observation.instruction + (seen if o.looks else ""), observation.step)
        if self.is_bad(observation):
            if o.bad == "500":
                return RuntimeError("the network's scores are not numbers")
            if o.bad == "422":
                return InvalidObservation("this instruction is too long for me")
            chunk.actions[:, 6] = 1.6
        return chunk

    def is_bad(self, observation) -> bool:
        """Whether this is one of the episodes that --bad-episode names."""
        o = self.options
        return observation.step >= o.bad_at and any(is_of(observation, episode) for episode in o.bad_episode)

    def chunk(self, instruction: str, step: int) -> ActionChunk:
        return ActionChunk(np.stack([self.action(instruction, step + k) for k in range(self.options.chunk)]))

    def action(self, instruction: str, step: int) -> np.ndarray:
        seed = hashlib.sha256(instruction.encode()).digest()[0]
        phase = step / 4 + seed + np.arange(7)
        action = (self.options.scale * np.sin(phase)).astype(np.float32)
        action[6] = 1.0 if step // 5 % 2 else -1.0
        if step == self.options.nan_at:
            action[0] = np.nan
        return action


def numbered(answer: int, length: int) -> np.ndarray:
    """Return a chunk [T, 7] whose movements tell whence they are: action 2 of answer 3 is 3.02; the gripper closes."""
    chunk = np.tile(answer + np.arange(length)[:, None] / 100, (1, 7)).astype(np.float32)
    chunk[:, 6] = 1.0
    return chunk


def is_of(observation, episode: int | str) -> bool:
    """Whether an observation is of that episode: sessions are run.task.episode.attempt.token."""
    return observation.session.split(".")[-3:-2] == [str(episode)]


def gated(policy: Policy, gate: Path) -> Policy:
    """Return a policy that gives no answer past some steps of the episodes that `gate` names, as long as it does."""
    act = policy.act

    def wait_and_act(observations):
        while any(o.step >= HELD_AT and is_of(o, held) for o in observations for held in named(gate)):
            time.sleep(0.01)
        return act(observations)

    policy.act = wait_and_act
    return policy


def named(gate: Path) -> list[str]:
    try:
        return gate.read_text().split()
    except FileNotFoundError:  # a test takes it away while this looks
        return []


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--name", default="wave")
    parser.add_argument("--chunk", type=int, default=4)
    parser.add_argument("--camera", action="append", default=[])
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--state", action="store_true")
    parser.add_argument("--looks", action="store_true", help="actions depend on the images too")
    parser.add_argument("--convention", choices=GRIPPERS, default="libero")
    parser.add_argument("--scale", type=float, default=0.4)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--nan-at", type=int, default=-1)
    parser.add_argument("--bad", choices=("gripper", "500", "422"), default="gripper")
    parser.add_argument("--bad-episode", type=int, action="append", default=[])
    parser.add_argument("--bad-at", type=int, default=5)
    parser.add_argument("--token")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--gate", type=Path, default=Path("none"))
    options = parser.parse_args()
    policy = OraclePolicy() if options.oracle else WavePolicy(options)
    serve(gated(policy, options.gate), port=options.port, token=options.token, max_wait_ms=0)


if __name__ == "__main__":
    main()
