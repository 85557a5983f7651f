"""Batches of (picture, prompt) to seven action tokens each: greedy, exact, with guesses verified along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.openvla.decoding import GUESSES, NO_TOKEN, Row
from services.openvla.drafts import SIDES
from services.openvla.graphs import Called, Captured
from services.openvla.llama import Window
from services.openvla.model import OpenVLA
from services.openvla.statistics import ACTION_TOKENS

PROMPT_STEP = 16  # on a GPU prompts are padded to a multiple, so that few shapes are captured
MAX_PROMPT = 160  # tokens of an instruction with its frame; LIBERO's longest has fewer than 50
BATCHES = (1, 2, 4, 8, 16, 32, 64)
Kept = list[list[Tensor]] | None  # scores of each row's tokens, where they are asked for


@dataclass(frozen=True)
class Generated:
    """What came out.

    tokens int64 [B, 7], NO_TOKEN from where a row's scores were no numbers; decode_passes after the pass over the
    prompts; scores float32 [B, 7, vocab] where asked for and no row failed.
    """

    tokens: np.ndarray
    decode_passes: int
    scores: np.ndarray | None = None


class Engine:
    """Runs one model. Not thread-safe: one thread loads and uses it.

    width         tokens in line per decoding pass where guesses are verified; 1 with weights whose kernels are fast for
                  one token only
    fixed_shapes  pads batch and prompt to a few sizes, each captured as a CUDA graph; on a CPU nothing is padded
    """

    def __init__(self, model: OpenVLA, max_batch: int = 16, width: int = GUESSES, fixed_shapes: bool | None = None):
        if not 1 <= max_batch <= BATCHES[-1]:
            raise ValueError(f"max_batch is {max_batch}; expected 1 to {BATCHES[-1]}")
        if not 1 <= width <= GUESSES:
            raise ValueError(f"width is {width}; expected 1 to {GUESSES} tokens")
        self.model, self.max_batch, self.width = model, max_batch, width
        self.device = model.llama.embed.device
        self.fixed_shapes = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.runner = Captured() if self.fixed_shapes and self.device.type == "cuda" else Called()
        self._cache = model.llama.new_cache(max_batch, capacity(model.patches))

    @torch.inference_mode()
    def generate(
        self,
        pixels: np.ndarray,
        prompts: Sequence[Sequence[int]],
        guesses: np.ndarray | None = None,
        keep_scores: bool = False,
    ) -> Generated:
        """Returns the greedy action tokens.

        pixels   uint8 [B, S, S, 3], 1 <= B <= max_batch
        prompts  token ids of each row, of any lengths up to MAX_PROMPT
        guesses  int64 [B, 1 + sides, 7], the likeliest first, or None: read one token after the other
        """
        count = len(prompts)
        if not 1 <= count <= self.max_batch or len(pixels) != count:
            raise ValueError(
                f"{len(pixels)} pictures and {count} prompts; expected as many of both, 1 to {self.max_batch}"
            )
        rows = [Row(None if guesses is None else guesses[index]) for index in range(count)]
        kept: Kept = [[] for _ in rows] if keep_scores else None
        lengths = np.array([len(prompt) for prompt in prompts])
        self._read_prompts(rows, pixels, prompts, lengths, kept)
        decode_passes = 0
        while not all(row.done for row in rows):
            self._read_windows(rows, lengths, kept)
            decode_passes += 1
        tokens = np.array([row.result() for row in rows])
        if any(row.failed for row in rows):
            self._cache.clear()  # a slot that holds NaN spoils rows that do not even see it: 0 · NaN is NaN
            return Generated(tokens, decode_passes)
        return Generated(tokens, decode_passes, np.array([[o.numpy() for o in one] for one in kept]) if kept else None)

    def warm_up(self, prompt_lengths: Sequence[int] = (32, 48, 64), drafts: bool = True) -> None:
        """Runs every shape that requests will have, so that none of them waits for a capture.

        prompt_lengths: padded lengths, in tokens; longer prompts are captured when they come.
        """
        side = self.model.config.towers[0].image_size
        for rows in sorted({min(size, self.max_batch) for size in BATCHES}) if self.fixed_shapes else [1]:
            guesses = np.zeros((rows, 1 + SIDES, ACTION_TOKENS), np.int64) if drafts else None
            for length in prompt_lengths if self.fixed_shapes else prompt_lengths[:1]:
                prompts = [[1] * (length - GUESSES)] * rows  # with the guesses it fills the padded length exactly
                self.generate(np.zeros((rows, side, side, 3), np.uint8), prompts, guesses)

    def _read_prompts(
        self, rows: Sequence[Row], pixels: np.ndarray, prompts: Sequence[Sequence[int]], lengths: np.ndarray, kept: Kept
    ) -> None:
        """One pass over pictures, prompts and main guesses."""
        padded, follow = self._rows(len(rows)), 0 if rows[0].guesses is None else GUESSES
        text = self._text_width(int(lengths.max()) + follow)
        ids = np.ones((padded, text), np.int64)
        for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            ids[index, : lengths[index]] = prompt
            ids[index, lengths[index] : lengths[index] + follow] = row.line(follow)
        last = _filled_up(lengths - 1, padded)
        cache = self._cache.rows(padded)

        def step(pixels: Tensor, ids: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.model.prompt_pass(pixels, ids, last, follow + 1, cache)
            return choose(scores), scores

        inputs = (self._to_device(one) for one in (_filled_up(pixels, padded), ids, last))
        chosen, scores = self.runner.run(("prompts", padded, text, follow), step, *inputs)
        for index, (row, choices) in enumerate(zip(rows, chosen.cpu().numpy(), strict=False)):
            _keep(kept, index, scores[index, row.take_prompt(choices)])

    def _read_windows(self, rows: Sequence[Row], lengths: np.ndarray, kept: Kept) -> None:
        """One pass over the next tokens of every row."""
        padded, guessed = self._rows(len(rows)), rows[0].guesses is not None
        width = self.width if guessed else 1
        sides = len(rows[0].guesses) - 1 if width > 1 else 0
        extra = sides * (width - 1)
        read = np.minimum([row.read for row in rows], GUESSES)
        start = _filled_up(self.model.patches + lengths + read, padded)
        ids = np.stack([np.concatenate((row.line(width), row.sides(width, sides))) for row in rows])
        free = self._cache.capacity - extra if self.fixed_shapes else int(start.max()) + width
        cache = self._cache.rows(padded)

        def step(ids: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = self.model.window_pass(ids, _window(start, width, sides, free), cache, free + extra)
            scores = self.model.llama.logits(hidden[:, :width])
            return choose(scores), scores, hidden[:, width:]

        inputs = (self._to_device(_filled_up(ids, padded)), self._to_device(start))
        chosen, scores, beside = self.runner.run(("window", padded, width, sides, free), step, *inputs)
        wanted: list[tuple[int, int]] = []
        for index, (row, choices) in enumerate(zip(rows, chosen.cpu().numpy(), strict=False)):
            if row.done:
                continue
            columns, side = row.take(choices, sides)
            _keep(kept, index, scores[index, columns])
            wanted += [(index, side)] if side is not None else []
        if wanted:
            self._take_sides(rows, beside, wanted, kept)

    def _take_sides(self, rows: Sequence[Row], beside: Tensor, wanted: Sequence[tuple[int, int]], kept: Kept) -> None:
        """Scores the side guesses that turned out right; few are, so the head is not computed for all of them."""
        where = self._to_device(np.array(wanted).T)
        scores = self.model.llama.logits(beside[where[0], where[1]])
        for (index, _), token, score in zip(wanted, choose(scores).tolist(), scores, strict=True):
            rows[index].take_side(token)
            _keep(kept, index, score[None])

    def _rows(self, count: int) -> int:
        return min(_at_least(count), self.max_batch) if self.fixed_shapes else count

    def _text_width(self, length: int) -> int:
        if length > MAX_PROMPT + GUESSES:
            raise ValueError(f"the prompt has {length} tokens; at most {MAX_PROMPT} fit: shorten the instruction")
        return -(-length // PROMPT_STEP) * PROMPT_STEP if self.fixed_shapes else length

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


def choose(scores: Tensor) -> Tensor:
    """Returns the place of the best score int64 [...] of scores [..., vocab], NO_TOKEN where that is no finite number.

    argmax takes NaN for the largest of all and answers token 0, which would be a robot's fastest motion.
    """
    best = scores.argmax(-1)
    finite = scores.gather(-1, best[..., None])[..., 0].isfinite()
    return torch.where(finite, best, NO_TOKEN)


def capacity(patches: int) -> int:
    """Returns how many cache slots a row needs at most: patches, prompt, tokens in line and side guesses."""
    longest = -(-(MAX_PROMPT + GUESSES) // PROMPT_STEP) * PROMPT_STEP
    return patches + longest + ACTION_TOKENS + SIDES * (GUESSES - 1)


def row_bytes(model: OpenVLA) -> int:
    """Returns about how many bytes one more row of a batch takes: its cache, and its prompt on the way through."""
    config, size = model.config.llama, model.llama.embed.element_size()
    slots = capacity(model.patches)
    cache = 2 * config.num_hidden_layers * slots * config.num_key_value_heads * config.head_dim * size
    passing = slots * (4 * config.hidden_size + 4 * config.intermediate_size) * size
    return cache + passing + 2 * ACTION_TOKENS * config.vocab_size * 4


def _window(start: Tensor, width: int, sides: int, free: int) -> Window:
    """Returns where tokens in line from `start` [B] on and side guesses beside them stand; `free` slots on are free."""
    line = start[:, None] + torch.arange(width, device=start.device)
    if not sides:
        return Window(line, line, line)
    beside = line[:, 1:].repeat(1, sides)
    slots = free + torch.arange(beside.shape[1], device=start.device).expand_as(beside)
    return Window(*(torch.cat(pair, dim=1) for pair in ((line, beside), (line, slots), (line, beside - 1))))


def _keep(kept: Kept, index: int, scores: Tensor) -> None:
    if kept is not None:
        kept[index].extend(scores.cpu())


def _at_least(count: int) -> int:
    return next(size for size in BATCHES if size >= count)


def _filled_up(array: np.ndarray, rows: int) -> np.ndarray:
    """Returns the array with its first row repeated behind it, up to `rows` rows."""
    missing = rows - len(array)
    return array if not missing else np.concatenate((array, np.repeat(array[:1], missing, axis=0)))
