"""Batches of (images, prompt, state) to a chunk of actions each, in one pass: OpenVLA-OFT."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.openvla.checkpoint.oft import CHUNK, STATE_SIZE
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.decoding.engine import BATCHES, MAX_PROMPT, PROMPT_STEP, BatchEngine, choose, padded_rows
from services.openvla.model.oft import END, FOLLOWING, PLACEHOLDERS, OpenVLAOFT


class ParallelEngine(BatchEngine):
    """Runs one model. Not thread-safe: one thread loads and uses it. For shapes and threads see `BatchEngine`."""

    def __init__(self, model: OpenVLAOFT, max_batch: int = 16, fixed_shapes: bool | None = None):
        super().__init__(model.base, max_batch, fixed_shapes)
        self.oft = model

    def generate(
        self, pixels: np.ndarray, prompts: Sequence[Sequence[int]], states: np.ndarray | None = None
    ) -> np.ndarray:
        """Return normalised actions float32 [B, 8, 7]; of a model without a head tokens int64, NO_TOKEN where a logit
        is not finite.

        pixels   uint8 [B, images, S, S, 3], 1 <= B <= max_batch
        prompts  token ids of each row, of any lengths up to MAX_PROMPT
        states   [B, 8], normalised, if the model has a projector of the state
        """
        count = len(prompts)
        self._check_count(count, len(pixels))
        self._use_idle_cores()
        lengths = np.array([len(prompt) for prompt in prompts])
        rows, text = self._rows(count), self._text_width(int(lengths.max()), FOLLOWING)
        if self.fixed_shapes:  # SDPA's kernels need a mask whose rows are aligned to 8 numbers
            text += -(self.oft.prefix + text) % 8
        ids = np.full((count, text), END, np.int64)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        padded = bool((lengths + FOLLOWING < text).any()) or self.fixed_shapes
        # A model without a projector ignores the state.
        states = np.zeros((count, STATE_SIZE)) if states is None else states

        def step(pixels: Tensor, ids: Tensor, lengths: Tensor, states: Tensor) -> tuple[Tensor]:
            answer = self.oft.predict(pixels, ids, lengths, states, padded)
            return (answer if self.oft.head is not None else choose(answer).unflatten(1, (CHUNK, ACTION_TOKENS)),)

        arrays = (pixels, ids, lengths, states.astype(np.float32))
        inputs = (self._to_device(padded_rows(array, rows)) for array in arrays)
        with torch.inference_mode():
            (answer,) = self.runner.run(("parallel", rows, text), step, *inputs)
        return np.asarray(answer[:count].cpu())

    def warm_up(self, prompt_lengths: Sequence[int] = (32, 48, 64)) -> None:
        """Run every shape that requests will have, so that none of them waits for a capture.

        prompt_lengths: padded lengths, in tokens; longer prompts are captured when they come.
        """
        side = self.model.config.towers[0].image_size
        for rows in sorted({min(size, self.max_batch) for size in BATCHES}) if self.fixed_shapes else [1]:
            pixels = np.zeros((rows, self.oft.images, side, side, 3), np.uint8)
            for length in prompt_lengths if self.fixed_shapes else prompt_lengths[:1]:
                self.generate(pixels, [[1] * length] * rows)


def capacity(patches: int, images: int) -> int:
    """Return the maximum tokens of a row: patches of all images, the state, prompt, placeholders and end."""
    longest = -(-(MAX_PROMPT + FOLLOWING) // PROMPT_STEP) * PROMPT_STEP
    return -(-(images * patches + 1 + longest) // 8) * 8


def row_bytes(model: OpenVLAOFT) -> int:
    """Estimate the bytes of one more row of a batch: its activations."""
    config, size = model.base.config.llama, model.base.llama.embed.element_size()
    passing = capacity(model.base.patches, model.images) * (4 * config.hidden_size + 4 * config.intermediate_size)
    return int(passing * size) + (0 if model.head is not None else PLACEHOLDERS * config.vocab_size * 4)
