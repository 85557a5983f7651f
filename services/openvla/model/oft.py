"""OpenVLA-OFT: one pass over images, state and prompt gives a whole chunk of actions.

Behind the prompt stand 56 placeholders, one for each number of 8 actions, whose embeddings are zeros; their positions
tell them apart. Every token attends to every other (upstream: prismatic/extern/hf/modeling_prismatic.py and the
attention of its fork of transformers). The hidden state of a token is the answer for the next one, as in training with
a shift by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from services.openvla.checkpoint.oft import CHUNK
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.model.action_head import ActionHead, load_parts
from services.openvla.model.linear import Linear
from services.openvla.model.openvla import OpenVLA
from services.openvla.model.vision import module_bytes, project
from vla_modelkit.weights import WeightSource

PLACEHOLDERS = CHUNK * ACTION_TOKENS
FOLLOWING = PLACEHOLDERS + 1  # tokens behind a prompt: the placeholders, and the end of the sequence
END = 2  # token </s>


@dataclass(frozen=True)
class OpenVLAOFT:
    """OpenVLA's parts, with a head (None: action tokens) and a projector of the state (None: no state)."""

    base: OpenVLA
    images: int
    proprio: tuple[Linear, ...] | None
    head: ActionHead | None

    @property
    def prefix(self) -> int:
        """Tokens between a prompt's first and second: patches of all images, and the state."""
        return self.images * self.base.patches + (self.proprio is not None)

    def predict(self, pixels: Tensor, ids: Tensor, lengths: Tensor, state: Tensor | None, padded: bool) -> Tensor:
        """Return normalised actions float32 [B, CHUNK, 7]; without a head logits [B, PLACEHOLDERS, vocab].

        pixels   uint8 [B, images, S, S, 3]
        ids      int64 [B, L]: a prompt, FOLLOWING tokens, and anything behind them
        lengths  int64 [B]: of the prompts
        state    float32 [B, 8], normalised
        padded   whether a row has tokens behind its FOLLOWING
        """
        hidden = self.hidden(self.embeddings(pixels, ids, lengths, state), lengths, padded)
        if self.head is None:
            return self.base.llama.head(hidden).float()
        return self.head(hidden).float()

    def embeddings(self, pixels: Tensor, ids: Tensor, lengths: Tensor, state: Tensor | None) -> Tensor:
        """Return the language model's input [B, 1 + prefix + L - 1, hidden]."""
        column = torch.arange(ids.shape[1], device=ids.device)
        behind = column - lengths[:, None]
        text = self.base.llama.embed[ids].masked_fill(((behind >= 0) & (behind < PLACEHOLDERS))[..., None], 0.0)
        seen = self.base.vision(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        parts = [text[:, :1], seen, text[:, 1:]]
        if self.proprio is not None:
            assert state is not None
            parts.insert(2, project(state.to(text.dtype)[:, None], self.proprio))
        return torch.cat(parts, dim=1)

    def hidden(self, x: Tensor, lengths: Tensor, padded: bool) -> Tensor:
        """Return the hidden states [B, PLACEHOLDERS, hidden] that predict the placeholders of embeddings x."""
        visible = None
        if padded:
            end = self.prefix + lengths + FOLLOWING
            visible = (torch.arange(x.shape[1], device=x.device) < end[:, None])[:, None, None]
        answers = self.prefix + lengths[:, None] - 1 + torch.arange(PLACEHOLDERS, device=x.device)
        return self.base.llama.parallel(x, answers, visible)

    def memory(self) -> dict[str, int]:
        further = sum(layer.nbytes for layer in self.proprio or ())
        further += module_bytes(self.head) if self.head is not None else 0
        return {**self.base.memory(), "action head and state": further}


def load_oft(base: OpenVLA, source: WeightSource, images: int) -> OpenVLAOFT:
    """Return the model with the parts of `source` on the device and in the dtype of `base`."""
    assert base.config.oft is not None
    return OpenVLAOFT(base, images, *load_parts(base.config.oft, source, base.llama.embed))
