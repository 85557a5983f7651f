"""Batches of (image, prompt) to seven action tokens each: greedy, exact, by speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.decoding.drafts import BRANCHES
from services.openvla.decoding.speculative import DRAFT_LENGTH, NO_TOKEN, DecodedRow
from services.openvla.model.llama import TreePositions
from services.openvla.model.openvla import OpenVLA
from vla_modelkit.graphs import CudaGraphs, Eager
from vla_modelkit.threads import use_idle_cores

PROMPT_STEP = 16  # on a GPU prompts are padded to a multiple, so that few shapes are captured
MAX_PROMPT = 160  # tokens of an instruction with its frame; LIBERO's longest has fewer than 50
BATCHES = (1, 2, 4, 8, 16, 32, 64)
RowLogits = list[list[Tensor]] | None  # logits of each row's tokens, if requested


@dataclass(frozen=True)
class Generated:
    """The result of a batch."""

    tokens: np.ndarray  # int64 [B, 7], NO_TOKEN from a row's first non-finite logits on
    decode_passes: int  # after the prefill
    logits: np.ndarray | None = None  # float32 [B, 7, vocab] if requested and no row failed


class BatchEngine:
    """Shapes and threads of a model's batches.

    fixed_shapes  pads batch and prompt to a few sizes, each captured as a CUDA graph; on a CPU nothing is padded

    On a CPU each call computes in as many of torch's threads as cores are idle. Their number can change the logits'
    last bits, as a batch's size can.
    """

    def __init__(self, model: OpenVLA, max_batch: int, fixed_shapes: bool | None):
        if not 1 <= max_batch <= BATCHES[-1]:
            raise ValueError(f"max_batch must be in [1, {BATCHES[-1]}], got {max_batch}")
        self.model, self.max_batch = model, max_batch
        self.device = model.llama.embed.device
        self._threads = torch.get_num_threads()
        self.fixed_shapes = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.runner = CudaGraphs() if self.fixed_shapes and self.device.type == "cuda" else Eager()

    def _check_count(self, prompts: int, images: int) -> None:
        if not 1 <= prompts <= self.max_batch or images != prompts:
            raise ValueError(f"{images} images and {prompts} prompts; expected equally many, 1 to {self.max_batch}")

    def _use_idle_cores(self) -> None:
        if self.device.type == "cpu":
            use_idle_cores(self._threads)

    def _rows(self, count: int) -> int:
        padded = next(size for size in BATCHES if size >= count)
        return min(padded, self.max_batch) if self.fixed_shapes else count

    def _text_width(self, length: int, following: int) -> int:
        """Return the width of a batch whose longest prompt has `length` tokens, with `following` behind it."""
        if length > MAX_PROMPT:
            raise ValueError(f"the prompt has {length} tokens; expected at most {MAX_PROMPT}: shorten the instruction")
        width = length + following
        return -(-width // PROMPT_STEP) * PROMPT_STEP if self.fixed_shapes else width

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


class Engine(BatchEngine):
    """Runs one model. Not thread-safe: one thread loads and uses it. For shapes and threads see `BatchEngine`.

    width: tokens of the draft's chain per decoding pass; 1 with weights whose kernels are fast for one token only
    """

    def __init__(
        self, model: OpenVLA, max_batch: int = 16, width: int = DRAFT_LENGTH, fixed_shapes: bool | None = None
    ):
        super().__init__(model, max_batch, fixed_shapes)
        if not 1 <= width <= DRAFT_LENGTH:
            raise ValueError(f"width must be in [1, {DRAFT_LENGTH}] tokens, got {width}")
        self.width = width
        self._cache = model.llama.new_cache(max_batch, capacity(model.patches))

    @torch.inference_mode()
    def generate(
        self, pixels: np.ndarray, prompts: Sequence[Sequence[int]], draft: np.ndarray | None = None,
        keep_logits: bool = False,
    ) -> Generated:  # fmt: skip
        """Return the greedy action tokens.

        pixels   uint8 [B, S, S, 3], 1 <= B <= max_batch
        prompts  token ids of each row, of any lengths up to MAX_PROMPT
        draft    int64 [B, 1 + branches, 7], the chain first, or None: decode one token after the other
        """
        count = len(prompts)
        self._check_count(count, len(pixels))
        self._use_idle_cores()
        rows = [DecodedRow(None if draft is None else draft[index]) for index in range(count)]
        row_logits: RowLogits = [[] for _ in rows] if keep_logits else None
        lengths = np.array([len(prompt) for prompt in prompts])
        self._prefill(rows, pixels, prompts, lengths, row_logits)
        decode_passes = 0
        while not all(row.done for row in rows):
            self._decode(rows, lengths, row_logits)
            decode_passes += 1
        tokens = np.array([row.result() for row in rows])
        if any(row.failed for row in rows):
            self._cache.clear()  # a slot that holds NaN spoils rows that do not even see it: 0 · NaN is NaN
            return Generated(tokens, decode_passes)
        stacked = np.array([[o.numpy() for o in logits] for logits in row_logits]) if row_logits else None
        return Generated(tokens, decode_passes, stacked)

    def warm_up(self, prompt_lengths: Sequence[int] = (32, 48, 64), drafts: bool = True) -> None:
        """Run every shape that requests will have, so that none of them waits for a capture.

        prompt_lengths: padded lengths, in tokens; longer prompts are captured when they come, until `runner.seal`.
        """
        side = self.model.config.towers[0].image_size
        for rows in sorted({min(size, self.max_batch) for size in BATCHES}) if self.fixed_shapes else [1]:
            draft = np.zeros((rows, 1 + BRANCHES, ACTION_TOKENS), np.int64) if drafts else None
            for length in prompt_lengths if self.fixed_shapes else prompt_lengths[:1]:
                prompts = [[1] * (length - DRAFT_LENGTH)] * rows  # with the chain it fills the padded length exactly
                self.generate(np.zeros((rows, side, side, 3), np.uint8), prompts, draft)

    def _prefill(
        self, rows: Sequence[DecodedRow], pixels: np.ndarray, prompts: Sequence[Sequence[int]], lengths: np.ndarray,
        row_logits: RowLogits,
    ) -> None:  # fmt: skip
        """One pass over images, prompts and the drafts' chains."""
        padded, follow = self._rows(len(rows)), 0 if rows[0].draft is None else DRAFT_LENGTH
        text = self._text_width(int(lengths.max()), follow)
        ids = np.ones((padded, text), np.int64)
        for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            ids[index, : lengths[index]] = prompt
            ids[index, lengths[index] : lengths[index] + follow] = row.chain(follow)
        last = padded_rows(lengths - 1, padded)
        cache = self._cache.rows(padded)

        def step(pixels: Tensor, ids: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.model.prefill(pixels, ids, last, follow + 1, cache)
            return choose(logits), logits

        inputs = (self._to_device(array) for array in (padded_rows(pixels, padded), ids, last))
        selected, logits = self.runner.run(("prefill", padded, text, follow), step, *inputs)
        for index, (row, choices) in enumerate(zip(rows, selected.cpu().numpy(), strict=False)):
            _append_logits(row_logits, index, logits[index, row.accept_prefill(choices)])

    def _decode(self, rows: Sequence[DecodedRow], lengths: np.ndarray, row_logits: RowLogits) -> None:
        padded, width = self._rows(len(rows)), 1 if rows[0].draft is None else self.width
        branches = len(rows[0].draft) - 1 if width > 1 else 0
        extra = branches * (width - 1)
        cached = np.minimum([row.cached for row in rows], DRAFT_LENGTH)
        start = padded_rows(self.model.patches + lengths + cached, padded)
        ids = np.stack([np.concatenate((row.chain(width), row.branches(width, branches))) for row in rows])
        free = self._cache.capacity - extra if self.fixed_shapes else int(start.max()) + width
        cache = self._cache.rows(padded)

        def step(ids: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = self.model.decode(ids, _tree(start, width, branches, free), cache, free + extra)
            logits = self.model.llama.logits(hidden[:, :width])
            return choose(logits), logits, hidden[:, width:]

        inputs = (self._to_device(padded_rows(ids, padded)), self._to_device(start))
        selected, logits, branch_hidden = self.runner.run(("decode", padded, width, branches, free), step, *inputs)
        accepted: list[tuple[int, int]] = []
        for index, (row, choices) in enumerate(zip(rows, selected.cpu().numpy(), strict=False)):
            if row.done:
                continue
            columns, branch = row.accept(choices, branches)
            _append_logits(row_logits, index, logits[index, columns])
            accepted += [(index, branch)] if branch is not None else []
        if not accepted:
            return
        # The logits of accepted branches only: they are few, so the head is not applied to all.
        positions = self._to_device(np.array(accepted).T)
        logits = self.model.llama.logits(branch_hidden[positions[0], positions[1]])
        for (index, _), token, logit in zip(accepted, choose(logits).tolist(), logits, strict=True):
            rows[index].accept_branch(token)
            _append_logits(row_logits, index, logit[None])


def choose(logits: Tensor) -> Tensor:
    """Return the index of the best logit, int64 [...], of logits [..., vocab]; NO_TOKEN where it is not finite.

    argmax treats NaN as the largest value; without this check it would return token 0, a robot's fastest motion.
    """
    best = logits.argmax(-1)
    finite = logits.gather(-1, best[..., None])[..., 0].isfinite()
    return torch.where(finite, best, NO_TOKEN)


def capacity(patches: int) -> int:
    """Return the maximum cache slots of a row: patches, prompt, chain and branches, up to a multiple of 8.

    SDPA's kernels need a mask whose rows are aligned to 8 numbers; others are copied first.
    """
    longest = -(-(MAX_PROMPT + DRAFT_LENGTH) // PROMPT_STEP) * PROMPT_STEP
    return -(-(patches + longest + ACTION_TOKENS + BRANCHES * (DRAFT_LENGTH - 1)) // 8) * 8


def row_bytes(model: OpenVLA) -> int:
    """Estimate the bytes of one more row of a batch: its cache, and its prompt's activations."""
    config, size = model.config.llama, model.llama.embed.element_size()
    slots = capacity(model.patches)
    cache = 2 * config.num_hidden_layers * slots * config.num_key_value_heads * config.head_dim * size
    passing = slots * (4 * config.hidden_size + 4 * config.intermediate_size) * size
    return cache + passing + 2 * ACTION_TOKENS * config.vocab_size * 4


def _tree(start: Tensor, width: int, branches: int, free: int) -> TreePositions:
    """Return the positions of a chain that starts at `start` [B], and of its branches, whose slots start at `free`."""
    chain = start[:, None] + torch.arange(width, device=start.device)
    if not branches:
        return TreePositions(chain, chain, chain)
    siblings = chain[:, 1:].repeat(1, branches)
    slots = free + torch.arange(siblings.shape[1], device=start.device).expand_as(siblings)
    return TreePositions(*(torch.cat((chain, other), dim=1) for other in (siblings, slots, siblings - 1)))


def _append_logits(row_logits: RowLogits, index: int, logits: Tensor) -> None:
    if row_logits is not None:
        row_logits[index].extend(logits.cpu())


def padded_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """Return the array with its first row repeated behind it, up to `rows` rows."""
    missing = rows - len(array)
    return array if not missing else np.concatenate((array, np.repeat(array[:1], missing, axis=0)))
