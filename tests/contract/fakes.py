"""Small real policies, named after what they do, and an observation to send them."""

import sys
import threading
import time

import numpy as np

from vla_contract import ActionChunk, Observation, Policy, PolicyInfo, UnknownSession
from vla_contract.protocol.parts import GRIPPER_CLOSES, HAND_STATE, OSC_POSE

PARTS = (*OSC_POSE, GRIPPER_CLOSES)  # seven numbers
STATE = HAND_STATE  # eight


def picture(seed: int = 0, height: int = 16, width: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def observe(session: str = "s", step: int = 0, **changes) -> Observation:
    fields = {"images": {"agentview": picture()}, "state": None, "instruction": "pick up the bowl"}
    return Observation(**{**fields, "session": session, "step": step, **changes})


def chunk_of(value: float, steps: int = 1, size: int = 7) -> ActionChunk:
    return ActionChunk(np.full((steps, size), value, np.float32))


class EchoPolicy(Policy):
    """Answers with the step's number in every action dimension; remembers the sizes of its batches."""

    def __init__(self, **info):
        self._info = PolicyInfo(**{"name": "echo", "action": PARTS, "cameras": ("agentview",), "max_batch": 16, **info})
        self.batches: list[list[Observation]] = []
        self.resets: list[str] = []
        self.threads: set[int] = set()

    def info(self):
        self.threads.add(threading.get_ident())
        return self._info

    def reset(self, session):
        self.threads.add(threading.get_ident())
        self.resets.append(session)

    def act(self, observations):
        self.threads.add(threading.get_ident())
        self.batches.append(list(observations))
        return [self.answer(observation) for observation in observations]

    def answer(self, observation):
        return chunk_of(observation.step, self._info.horizon, self._info.action_size)


class ForgetfulPolicy(EchoPolicy):
    """Keeps nothing of what it was shown."""

    def act(self, observations):
        chunks = super().act(observations)
        self.batches.clear()
        return chunks


class SlowPolicy(EchoPolicy):
    """Takes its time for every batch, whatever its size."""

    def __init__(self, seconds: float, **info):
        super().__init__(**info)
        self.seconds = seconds

    def act(self, observations):
        print(f"step {observations[0].step} begins", file=sys.stderr, flush=True)
        time.sleep(self.seconds)
        return super().act(observations)


class GatedPolicy(EchoPolicy):
    """Answers only once `gate` is set; `entered` says that it has begun."""

    def __init__(self, **info):
        super().__init__(**info)
        self.gate, self.entered = threading.Event(), threading.Event()

    def act(self, observations):
        if observations[0].session != "warm-up":
            self.entered.set()
            assert self.gate.wait(20)
        return super().act(observations)


class PickyPolicy(EchoPolicy):
    """Raises for a whole batch as soon as one instruction is 'bad'."""

    def answer(self, observation):
        if observation.instruction == "bad":
            raise RuntimeError("secret path /srv/weights")
        return super().answer(observation)


class PerRequestPolicy(EchoPolicy):
    """Puts whatever `results` holds for an instruction in the place of the chunk."""

    def __init__(self, results: dict, **info):
        super().__init__(**info)
        self.results = results

    def answer(self, observation):
        return self.results.get(observation.instruction) or super().answer(observation)


class CountingPolicy(EchoPolicy):
    """Keeps a counter per session: its answer is how often it was asked, so a request done twice shows."""

    def __init__(self, **info):
        super().__init__(**{"name": "counting", "stateful": True, **info})
        self.counts: dict[str, int] = {}

    def reset(self, session):
        super().reset(session)
        self.counts.pop(session, None)

    def answer(self, observation):
        if observation.step == 0:
            self.counts[observation.session] = 0
        if observation.session not in self.counts:
            raise UnknownSession(f"session {observation.session!r} is unknown to the policy")
        self.counts[observation.session] += 1
        return chunk_of(self.counts[observation.session])


class DyingPolicy(EchoPolicy):
    """Answers until it is told to die; from then on every inference fails, as on a GPU that has met an error."""

    def __init__(self, words="CUDA error: device-side assert triggered", **info):
        super().__init__(**info)
        self.words, self.dead = words, False

    def answer(self, observation):
        self.dead = self.dead or observation.instruction == "die"
        if self.dead:
            raise RuntimeError(self.words)
        if observation.instruction == "bad":
            raise RuntimeError("this one cannot be computed")
        return super().answer(observation)


class BrokenLoader:
    """Fails to load, after a while."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def __call__(self):
        time.sleep(self.seconds)
        raise RuntimeError("weights.safetensors is 3 bytes long;\nexpected 15 GB")


def until(condition, timeout_s=10.0):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
