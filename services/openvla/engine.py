"""Batches of (picture, prompt) to seven action tokens each: greedy, exact, with guesses verified along the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.openvla.actions import ACTION_TOKENS
from services.openvla.drafts import accepted
from services.openvla.graphs import Called, Captured
from services.openvla.model import OpenVLA

GUESSES = ACTION_TOKENS - 1  # the last token needs no verifying pass
PROMPT_STEP = 16  # on a GPU prompts are padded to a multiple, so that few shapes are captured
MAX_PROMPT = 160  # tokens of an instruction with its frame; LIBERO's longest has fewer than 50
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Generated:
    """What came out. tokens int64 [B, 7]; `decode_passes` after the pass over the prompts; scores float32 [B, 7, V]."""

    tokens: np.ndarray
    decode_passes: int
    scores: np.ndarray | None = None


class Engine:
    """Runs one model. Not thread-safe: one thread loads and uses it.

    window        positions read per decoding pass: 1, or 7 - 1 where guesses are verified; quantised weights are cheap
                  for one position only
    fixed_shapes  pads batch and prompt to a few sizes, each captured as a CUDA graph; on a CPU nothing is padded
    """

    def __init__(self, model: OpenVLA, max_batch: int = 16, window: int = GUESSES, fixed_shapes: bool | None = None):
        if not 1 <= max_batch <= BATCHES[-1]:
            raise ValueError(f"max_batch is {max_batch}; expected 1 to {BATCHES[-1]}")
        if not 1 <= window <= GUESSES:
            raise ValueError(f"window is {window}; expected 1 to {GUESSES} positions")
        self.model, self.max_batch, self.window = model, max_batch, window
        self.device = model.llama.embed.device
        self.fixed_shapes = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self.runner = Captured() if self.fixed_shapes and self.device.type == "cuda" else Called()
        self._cache = model.llama.new_cache(_at_least(max_batch), capacity(model.patches))
        self.passes = 0  # all passes so far, over prompts and windows

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
        guesses  int64 [B, 7], one per row, or None: do not verify, read one token after the other
        """
        count = len(prompts)
        if not 1 <= count <= self.max_batch or len(pixels) != count:
            raise ValueError(
                f"{len(pixels)} pictures and {count} prompts; expected as many of both, 1 to {self.max_batch}"
            )
        tokens = np.zeros((count, ACTION_TOKENS), np.int64)
        known = np.zeros(count, np.int64)
        kept = [[] for _ in range(count)] if keep_scores else None
        lengths = np.array([len(prompt) for prompt in prompts])
        chosen, scores = self._read_prompts(pixels, prompts, lengths, guesses)
        self._take(tokens, known, chosen, scores, guesses, kept)
        decode_passes = 0
        while (known < ACTION_TOKENS).any():
            chosen, scores = self._read_windows(tokens, known, lengths, guesses)
            self._take(tokens, known, chosen, scores, guesses, kept)
            decode_passes += 1
        self.passes += 1 + decode_passes
        return Generated(tokens, decode_passes, np.array(kept) if keep_scores else None)

    def warm_up(self, batches: Sequence[int] | None = None, prompt_lengths: Sequence[int] = (32, 48)) -> None:
        """Runs every shape that requests will have, so that none of them waits for a capture."""
        side = self.model.config.towers[0].image_size
        batches = batches or ([b for b in BATCHES if b <= _at_least(self.max_batch)] if self.fixed_shapes else [1])
        for batch in batches:
            rows = min(batch, self.max_batch)
            for length in prompt_lengths if self.fixed_shapes else prompt_lengths[:1]:
                text = length - GUESSES  # with the guesses it fills the padded length exactly
                for guesses in (None, np.zeros((rows, ACTION_TOKENS), np.int64)):
                    pixels = np.zeros((rows, side, side, 3), np.uint8)
                    self.generate(pixels, [[1] * text] * rows, guesses)

    def _read_prompts(self, pixels, prompts, lengths, guesses) -> tuple[np.ndarray, Tensor]:
        rows, follow = self._rows(len(prompts)), 0 if guesses is None else GUESSES
        width = self._text_width(int(lengths.max()) + follow)
        ids = np.ones((rows, width), np.int64)
        for row, prompt in enumerate(prompts):
            ids[row, : lengths[row]] = prompt
            if follow:
                ids[row, lengths[row] : lengths[row] + follow] = guesses[row, :follow]
        last = np.full(rows, lengths[0] - 1)
        last[: len(prompts)] = lengths - 1
        cache = self._cache.rows(rows)

        def step(pixels: Tensor, ids: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.model.prompt_pass(pixels, ids, last, follow + 1, cache)
            return scores.argmax(-1), scores

        inputs = (self._to_device(_padded(pixels, rows)), self._to_device(ids), self._to_device(last))
        chosen, scores = self.runner.run(("prompts", rows, width, follow), step, *inputs)
        return chosen.cpu().numpy()[: len(prompts)], scores

    def _read_windows(self, tokens, known, lengths, guesses) -> tuple[np.ndarray, Tensor]:
        count = len(tokens)
        rows, width = self._rows(count), 1 if guesses is None else self.window
        ids, start = np.ones((rows, width), np.int64), np.zeros(rows, np.int64)
        for row in range(count):
            at = min(known[row], ACTION_TOKENS) - 1  # of the last known token, which no pass has read yet
            line = np.concatenate((tokens[row, : at + 1], guesses[row, at + 1 :] if width > 1 else []))
            line = line[at : at + width]
            ids[row, : len(line)] = line
            start[row] = self.model.patches + lengths[row] + at
        filled = self._cache.capacity if self.fixed_shapes else int(start[:count].max()) + width
        cache = self._cache.rows(rows)

        def step(ids: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
            scores = self.model.window_pass(ids, start, cache, filled)
            return scores.argmax(-1), scores

        inputs = (self._to_device(ids), self._to_device(start))
        chosen, scores = self.runner.run(("window", rows, width, filled), step, *inputs)
        return chosen.cpu().numpy()[:count], scores

    def _take(self, tokens, known, chosen, scores, guesses, kept) -> None:
        """Writes what stands of the choices [B, n] behind what is known of each row."""
        for row in range(len(tokens)):
            at, left = known[row], ACTION_TOKENS - known[row]
            if not left:
                continue
            usable = chosen[row, : min(chosen.shape[1], left)]
            stands = 1 if guesses is None else accepted(guesses[row, at : at + len(usable) - 1], usable)
            tokens[row, at : at + stands] = usable[:stands]
            known[row] += stands
            if kept is not None:
                kept[row].extend(scores[row, :stands].cpu().numpy())

    def _rows(self, count: int) -> int:
        return _at_least(count) if self.fixed_shapes else count

    def _text_width(self, length: int) -> int:
        if length > MAX_PROMPT + GUESSES:
            raise ValueError(f"the prompt has {length} tokens; at most {MAX_PROMPT} fit: shorten the instruction")
        return -(-length // PROMPT_STEP) * PROMPT_STEP if self.fixed_shapes else length

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, non_blocking=True)


def capacity(patches: int) -> int:
    """Returns how many cache slots a row needs at most."""
    longest = -(-(MAX_PROMPT + GUESSES) // PROMPT_STEP) * PROMPT_STEP
    return patches + longest + ACTION_TOKENS


def _at_least(count: int) -> int:
    return next(size for size in BATCHES if size >= count)


def _padded(pixels: np.ndarray, rows: int) -> np.ndarray:
    missing = rows - len(pixels)
    return pixels if not missing else np.concatenate((pixels, np.repeat(pixels[:1], missing, axis=0)))
