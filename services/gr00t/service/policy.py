"""The engine as a policy of the contract. Batching does not change actions; noise follows from the seed."""

from __future__ import annotations

import time

import numpy as np

from services.gr00t.model.engine import Engine, Prepared
from services.gr00t.processing import images
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.layout import Layout
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo
from vla_modelkit import noise

INSTRUCTION = "pick up the cup"  # of the canary


class Gr00tPolicy(Policy):
    """Serves one engine.

    Stateless: an action follows from the observation, its session's episode, its step and the seed.
    """

    def __init__(self, engine: Engine, prompts: Prompts, layout: Layout, info: PolicyInfo, seed: int = 0):
        self.engine, self.prompts, self.layout, self.seed = engine, prompts, layout, seed
        self._info, self._config = info, engine.model.config

    def info(self) -> PolicyInfo:
        return self._info

    def example(self, level: int = 0) -> Observation:
        """Return an observation of grey images (level 0 to 255), for the first inference."""
        image = np.full((*self.layout.image_hw, 3), level, np.uint8)
        state = np.zeros(self.layout.state_size, np.float32)
        return Observation(dict.fromkeys(self.layout.embodiment.cameras, image), state, INSTRUCTION, "warm-up", 0)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk, or an InvalidObservation, for every observation."""
        start = time.perf_counter()
        results: list[Prepared | ActionChunk | Exception] = []
        for observation in observations:
            try:
                results.append(self.prepare(observation))
            except InvalidObservation as error:
                results.append(error)
        good = [index for index, row in enumerate(results) if isinstance(row, Prepared)]
        if not good:
            return results
        middle = time.perf_counter()
        head = self._config.head
        seeds = [noise.seed_of(observations[index], self.seed) for index in good]
        rows = [results[index] for index in good]
        actions = self.engine.infer(rows, noise.draw(seeds, head.horizon, head.action_dim))
        timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
        for index, chunk in zip(good, self.layout.decode_actions(actions), strict=True):
            if np.isfinite(chunk).all():
                results[index] = ActionChunk(chunk, timings)
            else:
                results[index] = RuntimeError(
                    "the model's actions are NaN or infinite: its weights are damaged, or too large for fp16"
                )
        return results

    def prepare(self, observation: Observation) -> Prepared:
        """Return the network's inputs of an observation. Raises InvalidObservation."""
        side = self._config.vision["image_size"]
        seen = [images.prepare(observation.images[camera], side) for camera in self.layout.embodiment.cameras]
        state = self.layout.encode_state(observation)
        return Prepared(np.stack(seen), self.prompts.ids(observation.instruction), state)
