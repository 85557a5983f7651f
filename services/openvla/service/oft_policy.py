"""OpenVLA-OFT as a policy of the contract: two cameras and the robot's state in, a chunk of eight actions out."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of, normalise_state, unnormalise
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.decoding.speculative import NO_TOKEN
from services.openvla.service.policy import NonFiniteLogits, check_prompt
from services.openvla.service.resize import resize
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo


class OftPolicy(Policy):
    """Serves one engine. Stateless: a chunk follows from its observation."""

    def __init__(self, engine: ParallelEngine, tokenizer: PromptTokenizer, info: PolicyInfo):
        self._engine, self._info = engine, info
        self._config = engine.model.config
        self._codec = codec_of(self._config)
        self._prompt_ids = lru_cache(maxsize=1024)(tokenizer.prompt_ids)
        self._counts = {"tokens_outside_the_action_range": 0, "scores_not_finite": 0}

    def info(self) -> PolicyInfo:
        """Return the policy's inputs, outputs and versions."""
        return self._info

    def counters(self) -> dict[str, int]:
        """Return counts of errors: tokens outside the action range, answers that are not finite."""
        return dict(self._counts)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk of eight actions, or an error, for each observation."""
        start = time.perf_counter()
        prompts = [check_prompt(self._prompt_ids(observation.instruction)) for observation in observations]
        good = {index: prompt for index, prompt in enumerate(prompts) if not isinstance(prompt, InvalidObservation)}
        chunks: dict[int, ActionChunk | Exception] = {}
        if good:
            pixels = np.stack([self._images(observations[index]) for index in good])
            states = np.stack([self._state(observations[index]) for index in good]) if self._info.needs_state else None
            middle = time.perf_counter()
            answers = self._engine.generate(pixels, list(good.values()), states)
            timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
            for index, answer in zip(good, answers, strict=True):
                chunks[index] = self._chunk(answer, self._key(observations[index]), timings)
        return [p if isinstance(p, InvalidObservation) else chunks[index] for index, p in enumerate(prompts)]

    def _images(self, observation: Observation) -> np.ndarray:
        """Return uint8 [images, S, S, 3]."""
        tower = self._config.towers[0]
        return np.stack([resize(observation.images[camera], tower) for camera in self._info.cameras])

    def _state(self, observation: Observation) -> np.ndarray:
        return normalise_state(observation.state, self._config.proprio_stats[self._key(observation)])

    def _key(self, observation: Observation) -> str:
        return observation.unnorm_key or self._info.unnorm_keys[0]

    def _chunk(self, answer: np.ndarray, key: str, timings: dict[str, float]) -> ActionChunk | NonFiniteLogits:
        is_tokens = answer.dtype == np.int64
        if (answer == NO_TOKEN).any() if is_tokens else not np.isfinite(answer).all():
            self._counts["scores_not_finite"] += 1
            return NonFiniteLogits(
                "the model's answer is NaN or infinite: its weights are damaged, or too large for fp16"
            )
        if is_tokens:
            self._counts["tokens_outside_the_action_range"] += int((~self._codec.is_action(answer)).sum())
        values = self._codec.values(answer) if is_tokens else answer
        return ActionChunk(unnormalise(values, self._config.norm_stats[key]).astype(np.float32), timings)
