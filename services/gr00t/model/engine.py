"""Batches of observations to action chunks: one pass over images, prompt, and the flow's Euler steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.gr00t.model.gr00t import Gr00t
from vla_modelkit.graphs import CudaGraphs, Eager

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_STEP = 32  # tokens: on a GPU prompts are padded to a multiple, so that few shapes are captured
TEXT_TOKENS = 64  # of an instruction for which passes are captured; LIBERO's longest has fewer than 30


@dataclass(frozen=True)
class Prepared:
    """Network inputs of one observation.

    images uint8 [V, S, S, 3]; ids of the prompt; state float32 [n], n at most the network's.
    """

    pictures: np.ndarray
    ids: Sequence[int]
    state: np.ndarray


class Engine:
    """Runs one network for one robot. Not thread-safe: one thread loads and uses it.

    robot         index of its encoders and decoder
    image_positions  indices of the image tokens in every prompt
    steps         Euler steps
    fixed_shapes  pads batch and prompt to a few sizes, each captured as a CUDA graph in `warm_up`; on a CPU a batch is
                  padded to its longest prompt
    """

    def __init__(
        self, model: Gr00t, robot: int, image_positions: np.ndarray, steps: int, max_batch: int = 16,
        fixed_shapes: bool | None = None,
    ):  # fmt: skip
        if not 1 <= max_batch <= BATCHES[-1]:
            raise ValueError(f"max_batch must be in [1, {BATCHES[-1]}], got {max_batch}")
        self.model, self.robot, self.max_batch = model, robot, max_batch
        self.device = model.action_head.vlln.weight.device
        self.fixed_shapes = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.runner = CudaGraphs() if self.fixed_shapes and self.device.type == "cuda" else Eager()
        self._eager, self._captured = Eager(), set()
        self._image_positions = torch.as_tensor(image_positions, device=self.device)
        with torch.inference_mode():
            self._moments = model.action_head.moments(steps)

    @torch.inference_mode()
    def infer(self, rows: Sequence[Prepared], noise: Tensor) -> np.ndarray:
        """Return normalised actions, float32 [B, H, A]. noise: float32 [B, H, A]; 1 <= B <= max_batch."""
        if not 1 <= len(rows) <= self.max_batch:
            raise ValueError(f"{len(rows)} observations; expected 1 to {self.max_batch}")
        count, text = self._shape(rows)
        lengths = np.array([len(row.ids) for row in rows])
        ids = np.zeros((len(rows), text), np.int64)
        for index, row in enumerate(rows):
            ids[index, : lengths[index]] = row.ids
        masked = self.fixed_shapes or bool((lengths < text).any())  # else no row is padded
        images = _padded(np.stack([row.pictures for row in rows]), count)
        state = np.zeros((count, self.model.config.head.state_dim), np.float32)
        for index, row in enumerate(rows):
            state[index, : len(row.state)] = row.state
        noise = torch.cat((noise, noise[:1].expand(count - len(rows), -1, -1)))
        inputs = [images, _padded(ids, count), *([_padded(lengths, count)] if masked else []), state, noise]
        tensors = [torch.as_tensor(array).to(self.device, non_blocking=True) for array in inputs]

        def step(images: Tensor, ids: Tensor, *more: Tensor) -> tuple[Tensor]:
            lengths, (state, noise) = (more[0], more[1:]) if masked else (None, more)
            return (self.model(images, ids, lengths, self._image_positions, state, noise, self.robot, self._moments),)

        runner = self.runner if (count, text) in self._captured else self._eager
        return runner.run((count, text), step, *tensors)[0][: len(rows)].cpu().numpy()

    def warm_up(self, prompt: Sequence[int]) -> None:
        """Run, and on a GPU capture, every shape of usual requests. prompt: ids of a short one."""
        side, head = self.model.config.vision["image_size"], self.model.config.head
        views = len(self._image_positions) // self.model.config.patches
        longest = len(prompt) + TEXT_TOKENS
        sizes = [size for size in BATCHES if size < self.max_batch] + [self.max_batch]
        for count in sizes if self.fixed_shapes else [1]:
            for length in range(len(prompt), longest, PROMPT_STEP) if self.fixed_shapes else [len(prompt)]:
                ids = [*prompt, *[prompt[-1]] * (length - len(prompt))]
                row = Prepared(np.zeros((views, side, side, 3), np.uint8), ids, np.zeros(head.state_dim, np.float32))
                self._captured.add(self._shape([row] * count))
                self.infer([row] * count, torch.zeros(count, head.horizon, head.action_dim))

    def _shape(self, rows: Sequence[Prepared]) -> tuple[int, int]:
        """Return the padded size of a batch: rows, tokens."""
        longest = max(len(row.ids) for row in rows)
        if not self.fixed_shapes:
            return len(rows), longest
        count = next(size for size in (*BATCHES, self.max_batch) if size >= len(rows))
        return min(count, self.max_batch), -(-longest // PROMPT_STEP) * PROMPT_STEP


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    """Return `count` rows: `rows`, padded with copies of the first."""
    return np.concatenate((rows, np.repeat(rows[:1], count - len(rows), axis=0)))
