"""The engine as a policy of the contract: observations in, un-normalised actions out, a draft per session."""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import ActionCodec, ActionTable
from services.openvla.decoding.drafts import Drafter
from services.openvla.decoding.engine import MAX_PROMPT, Engine
from services.openvla.decoding.speculative import NO_TOKEN
from services.openvla.service.info import CAMERA
from services.openvla.service.resize import resize
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo


class NonFiniteLogits(RuntimeError):
    """The model's logits are NaN or infinite, so there is no action."""


def check_prompt(ids: list[int]) -> list[int] | InvalidObservation:
    """Return a prompt's token ids, or the error of one that is too long."""
    if len(ids) <= MAX_PROMPT:
        return ids
    return InvalidObservation(
        f"the instruction has {len(ids)} tokens with its prompt; expected at most {MAX_PROMPT}: shorten it"
    )


class OpenVLAPolicy(Policy):
    """Serves one engine. Image, instruction and statistics make the answer; drafts change its time.

    In 16-bit formats drafts may change an answer as well: passes of another width round differently, and where the two
    best tokens are close the other one wins.
    """

    def __init__(
        self, engine: Engine, tokenizer: PromptTokenizer, codec: ActionCodec, info: PolicyInfo, drafts: bool = True
    ):
        self._engine, self._info = engine, info
        self._config: ModelConfig = engine.model.config
        self._prompt_ids = lru_cache(maxsize=1024)(tokenizer.prompt_ids)
        self._tables = {key: ActionTable(codec, stats) for key, stats in self._config.norm_stats.items()}
        self._drafter = Drafter(codec) if drafts else None
        self._codec, self._counts = codec, {"tokens_outside_the_action_range": 0, "scores_not_finite": 0}

    def info(self) -> PolicyInfo:
        """Return the policy's inputs, outputs and versions."""
        return self._info

    def reset(self, session: str) -> None:
        """Forget a session's last action."""
        if self._drafter is not None:
            self._drafter.forget(session)

    def counters(self) -> dict[str, int]:
        """Return counts of errors: tokens outside the action range, answers without finite logits."""
        return dict(self._counts)

    def settle(self) -> None:
        """Compute the next drafts, while the simulators execute the actions."""
        if self._drafter is not None:
            self._drafter.settle()

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Return a chunk of one action, or an error, for each observation."""
        start = time.perf_counter()
        prepared = [self._prepare(observation) for observation in observations]
        good = [index for index, result in enumerate(prepared) if not isinstance(result, Exception)]
        if not good:
            return prepared
        pixels = np.stack([prepared[index][0] for index in good])
        prompts = [prepared[index][1] for index in good]
        sessions = [observations[index].session for index in good]
        draft = (
            np.stack([self._drafter.propose(session) for session in sessions]) if self._drafter is not None else None
        )
        middle = time.perf_counter()
        tokens = self._engine.generate(pixels, prompts, draft).tokens
        timings = {"prepare": (middle - start) * 1e3, "model": (time.perf_counter() - middle) * 1e3}
        for index, session, row in zip(good, sessions, tokens, strict=True):
            prepared[index] = self._answer(row, session, observations[index].unnorm_key, timings)
        return prepared

    def _answer(
        self, tokens: np.ndarray, session: str, key: str | None, timings: dict[str, float]
    ) -> ActionChunk | NonFiniteLogits:
        if NO_TOKEN in tokens:
            self._counts["scores_not_finite"] += 1
            return NonFiniteLogits(
                "the model's logits are NaN or infinite: its weights are damaged, or too large for fp16"
            )
        self._counts["tokens_outside_the_action_range"] += int((~self._codec.is_action(tokens)).sum())
        if self._drafter is not None:
            self._drafter.observe(session, tokens)
        return ActionChunk(self._action(tokens, key), timings)

    def _prepare(self, observation: Observation) -> tuple[np.ndarray, list[int]] | InvalidObservation:
        ids = check_prompt(self._prompt_ids(observation.instruction))
        if isinstance(ids, InvalidObservation):
            return ids
        return resize(observation.images[CAMERA], self._config.towers[0]), ids

    def _action(self, tokens: np.ndarray, key: str | None) -> np.ndarray:
        """Return float32 [1, 7]."""
        return self._tables[key or self._info.unnorm_keys[0]].action(tokens.tolist())[None]
