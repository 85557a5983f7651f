"""An instruction as the prompt that the network was trained to read, and that as token ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from vla_contract import InvalidObservation

CONTEXT = "<IMG_CONTEXT>"  # the token in whose places the pictures' patches go
# `<image-9>` and `<video-1>` are where Eagle's processor puts pictures in; the others are its tokenizer's own marks.
PLACEHOLDER = re.compile(
    r"<(image|video)-?\d*>|</?(img|box|quad|ref|interval)>|<IMG_CONTEXT>|<\|[^|]*\|>", re.IGNORECASE
)
_BEFORE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n"


class Prompts:
    """Makes token ids [T] of instructions for one robot's pictures.

    encode: text -> ids. views: pictures per observation, of `patches` tokens each. style: "plain", or "upstream": as
    upstream's own clients have it, who send the instruction in a list: `['pick up the cup']`, brackets included.
    """

    def __init__(self, encode: Callable[[str], list[int]], views: int, patches: int, style: str = "plain"):
        self._encode, self._style = encode, style
        seen = (f"<image {view}><img>{CONTEXT * patches}</img>" for view in range(1, views + 1))
        self._before = _BEFORE + "".join(seen)
        self._ids = lru_cache(maxsize=1024)(self._make)
        ids, (context,) = np.array(self._make("go")), encode(CONTEXT)
        self.places = np.flatnonzero(ids == context)  # of the pictures' tokens: the same in every prompt
        if len(self.places) != views * patches:
            raise ValueError(
                f"a prompt of {views} pictures has {len(self.places)} places for patches; expected {views * patches}"
            )

    def ids(self, instruction: str) -> tuple[int, ...]:
        """Returns the token ids. Raises InvalidObservation for text that stands for something else in a prompt."""
        refuse_placeholders(instruction)
        return self._ids(instruction)

    def text(self, instruction: str) -> str:
        """Returns the whole prompt in words."""
        shown = str(np.array([instruction])) if self._style == "upstream" else instruction
        return self._before + shown + _AFTER

    def _make(self, instruction: str) -> tuple[int, ...]:
        return tuple(self._encode(self.text(instruction)))


def refuse_placeholders(instruction: str) -> None:
    """Raises InvalidObservation for text that upstream's processor takes for a picture, or its tokenizer for a mark."""
    if found := PLACEHOLDER.search(instruction):
        raise InvalidObservation(
            f"the instruction holds {found.group()!r}, which stands for something else in the model's prompt; say it "
            "in other words"
        )
