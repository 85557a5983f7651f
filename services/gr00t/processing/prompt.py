"""Build the network's prompt for an instruction, and its token ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from vla_contract import InvalidObservation

CONTEXT = "<IMG_CONTEXT>"  # placeholder token of an image patch
# `<image-9>` and `<video-1>` are placeholders of Eagle's processor; the others are its tokenizer's special tokens.
PLACEHOLDER = re.compile(
    r"<(image|video)-?\d*>|</?(img|box|quad|ref|interval)>|<IMG_CONTEXT>|<\|[^|]*\|>", re.IGNORECASE
)
_BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n"


class Prompts:
    """Converts instructions to token ids [T] for one robot's images.

    encode: text -> ids. views: images per observation, of `patches` tokens each. style: "plain", or "upstream": as
    upstream's own clients have it, who send the instruction in a list: `['pick up the cup']`, brackets included.
    """

    def __init__(self, encode: Callable[[str], list[int]], views: int, patches: int, style: str = "plain"):
        self._encode, self._style = encode, style
        seen = (f"<image {view}><img>{CONTEXT * patches}</img>" for view in range(1, views + 1))
        self._before = _BEFORE + "".join(seen)
        self._ids = lru_cache(maxsize=1024)(self._make)
        ids, (context,) = np.array(self._make("go")), encode(CONTEXT)
        self.image_positions = np.flatnonzero(ids == context)  # of the images' tokens: the same in every prompt
        if len(self.image_positions) != views * patches:
            raise ValueError(
                f"a prompt of {views} images has {len(self.image_positions)} patch tokens; expected {views * patches}"
            )

    def ids(self, instruction: str) -> tuple[int, ...]:
        """Return the token ids. Raises InvalidObservation for text with placeholders or special tokens."""
        if match := PLACEHOLDER.search(instruction):
            raise InvalidObservation(
                f"the instruction contains {match.group()!r}, which is a special token of the model's prompt; rephrase "
                "it"
            )
        return self._ids(instruction)

    def text(self, instruction: str) -> str:
        quoted = str(np.array([instruction])) if self._style == "upstream" else instruction
        return self._before + quoted + _AFTER

    def _make(self, instruction: str) -> tuple[int, ...]:
        return tuple(self._encode(self.text(instruction)))
