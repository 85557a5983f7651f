"""The engines as policies of the contract: observations in, un-normalised actions out."""

from __future__ import annotations

import time
from abc import abstractmethod
from functools import lru_cache

import numpy as np
from PIL import Image

from services.openvla.checkpoint.config import Tower
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import ActionTable, codec_of, normalise_state, unnormalise
from services.openvla.decoding.drafts import Drafter
from services.openvla.decoding.engine import MAX_PROMPT, Engine
from services.openvla.decoding.parallel import ParallelEngine
from services.openvla.decoding.speculative import NO_TOKEN
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo


class NonFiniteLogits(RuntimeError):
    """The model's logits are NaN or infinite, so there is no action."""


def resize(image: np.ndarray, tower: Tower) -> np.ndarray:
    """Return uint8 [S, S, 3] of uint8 [H, W, 3], as upstream's processor does (Pillow, antialiased).

    The aspect ratio is not kept ("resize-naive"). LIBERO's own path (rotation, JPEG, Lanczos3, centre crop) is the
    evaluator's: it sends what the model sees, and an image of the right size is not changed here.
    """
    size = (tower.image_size, tower.image_size)
    if image.shape[:2] == size:
        return image
    return np.asarray(Image.fromarray(image).resize(size, resample=Image.Resampling[tower.interpolation.upper()]))


class EnginePolicy(Policy):
    """What both policies have in common: prompts, info, and counts of answers without an action."""

    def __init__(self, engine: Engine | ParallelEngine, tokenizer: PromptTokenizer, info: PolicyInfo):
        self._engine, self._info, self._config = engine, info, engine.model.config
        self._codec = codec_of(self._config)
        self._prompt_ids = lru_cache(maxsize=1024)(tokenizer.prompt_ids)
        self._counts = {"tokens_outside_the_action_range": 0, "scores_not_finite": 0}

    def info(self) -> PolicyInfo:
        return self._info

    def counters(self) -> dict[str, int]:
        """Return counts of errors: tokens outside the action range, answers that are not finite."""
        return dict(self._counts)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk, or an error, for each observation."""
        start = time.perf_counter()
        prompts: list[list[int]] = []
        results: list[ActionChunk | Exception | None] = []
        for observation in observations:
            ids = self._prompt_ids(observation.instruction)
            if len(ids) <= MAX_PROMPT:
                prompts.append(ids)
                results.append(None)
            else:
                results.append(
                    InvalidObservation(
                        f"the instruction has {len(ids)} tokens with its prompt; expected at most {MAX_PROMPT}: "
                        "shorten it"
                    )
                )
        places = [place for place, error in enumerate(results) if error is None]
        if places:
            answers = self._act([observations[place] for place in places], prompts, start)
            for place, answer in zip(places, answers, strict=True):
                results[place] = answer
        return results

    @abstractmethod
    def _act(
        self, observations: list[Observation], prompts: list[list[int]], start: float
    ) -> list[ActionChunk | NonFiniteLogits]:
        """Return the answer to each observation and its prompt. start: of the call, for the timings."""

    def _key(self, observation: Observation) -> str:
        return observation.unnorm_key or self._info.unnorm_keys[0]

    def _not_finite(self) -> NonFiniteLogits:
        self._counts["scores_not_finite"] += 1
        return NonFiniteLogits("the model's logits are NaN or infinite: its weights are damaged, or too large for fp16")

    def _count_outside(self, tokens: np.ndarray) -> None:
        self._counts["tokens_outside_the_action_range"] += int((~self._codec.is_action(tokens)).sum())


class OpenVLAPolicy(EnginePolicy):
    """OpenVLA: one action per observation. Image, instruction and statistics make it; drafts change its time.

    In 16-bit formats drafts may change an answer as well: passes of another width round differently, and where the two
    best tokens are close the other one wins.
    """

    def __init__(self, engine: Engine, tokenizer: PromptTokenizer, info: PolicyInfo, drafts: bool = True):
        super().__init__(engine, tokenizer, info)
        self._tables = {key: ActionTable(self._codec, stats) for key, stats in self._config.norm_stats.items()}
        self._drafter = Drafter(self._codec) if drafts else None

    def reset(self, session: str) -> None:
        if self._drafter is not None:
            self._drafter.forget(session)

    def settle(self) -> None:
        if self._drafter is not None:
            self._drafter.settle()

    def _act(
        self, observations: list[Observation], prompts: list[list[int]], start: float
    ) -> list[ActionChunk | NonFiniteLogits]:
        (camera,), tower, draft = self._info.cameras, self._config.towers[0], None
        pixels = np.stack([resize(observation.images[camera], tower) for observation in observations])
        if self._drafter is not None:
            draft = np.stack([self._drafter.propose(observation.session) for observation in observations])
        middle = time.perf_counter()
        tokens = self._engine.generate(pixels, prompts, draft).tokens
        timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
        rows = zip(observations, tokens, strict=True)
        return [self._answer(row, observation.session, self._key(observation), timings) for observation, row in rows]

    def _answer(
        self, tokens: np.ndarray, session: str, key: str, timings: dict[str, float]
    ) -> ActionChunk | NonFiniteLogits:
        if NO_TOKEN in tokens:
            return self._not_finite()
        self._count_outside(tokens)
        if self._drafter is not None:
            self._drafter.observe(session, tokens)
        return ActionChunk(self._tables[key].action(tokens.tolist())[None], timings)


class OftPolicy(EnginePolicy):
    """OpenVLA-OFT: two cameras and the robot's state in, a chunk of eight actions out."""

    def _act(
        self, observations: list[Observation], prompts: list[list[int]], start: float
    ) -> list[ActionChunk | NonFiniteLogits]:
        tower, stats, states = self._config.towers[0], self._config.proprio_stats, None
        pixels = np.stack([[resize(each.images[name], tower) for name in self._info.cameras] for each in observations])
        if self._info.needs_state:
            states = np.stack([normalise_state(each.state, stats[self._key(each)]) for each in observations])
        middle = time.perf_counter()
        answers = self._engine.generate(pixels, prompts, states)
        timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
        chunks: list[ActionChunk | NonFiniteLogits] = []
        for observation, values in zip(observations, answers, strict=True):
            is_tokens = values.dtype == np.int64
            if (values == NO_TOKEN).any() if is_tokens else not np.isfinite(values).all():
                chunks.append(self._not_finite())
                continue
            if is_tokens:
                self._count_outside(values)
                values = self._codec.values(values)
            actions = unnormalise(values, self._config.norm_stats[self._key(observation)])
            chunks.append(ActionChunk(actions.astype(np.float32), timings))
        return chunks
