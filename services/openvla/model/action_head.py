"""The parts that OpenVLA-OFT has besides OpenVLA: an action head, and a projector of the robot's state.

Upstream: prismatic/models/action_heads.py and projectors.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from services.openvla.checkpoint.oft import CHUNK, PARTS, STATE_SIZE, Oft
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.model.linear import Linear, plain
from vla_modelkit.weights import WeightSource

HEAD, PROPRIO = f"{PARTS[0]}.model.", f"{PARTS[1]}."
BLOCKS = 2


@dataclass(frozen=True)
class Norm:
    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.bias.nbytes


@dataclass(frozen=True)
class ActionHead:
    """An MLP with residual blocks of (norm, linear layer)."""

    norm_in: Norm  # 7 hidden
    first: Linear  # 7 hidden -> hidden
    blocks: tuple[tuple[Norm, Linear], ...]
    norm_out: Norm
    last: Linear  # hidden -> 7

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return actions [B, CHUNK, 7], normalised, of hidden states [B, PLACEHOLDERS, hidden]."""
        x = F.relu(self.first(self.norm_in(hidden.reshape(len(hidden), CHUNK, -1))))
        for norm, layer in self.blocks:
            x = x + F.relu(layer(norm(x)))
        return self.last(self.norm_out(x))

    @property
    def nbytes(self) -> int:
        blocks = [part for block in self.blocks for part in block]
        return sum(part.nbytes for part in (self.norm_in, self.first, *blocks, self.norm_out, self.last))


def oft_shapes(oft: Oft, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the tensors of the parts, each name with its part's in front."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:1]

    if oft.l1_head:
        add(HEAD + "layer_norm1", ACTION_TOKENS * hidden)
        add(HEAD + "fc1", hidden, ACTION_TOKENS * hidden)
        for index in range(BLOCKS):
            add(f"{HEAD}mlp_resnet_blocks.{index}.ffn.0", hidden)
            add(f"{HEAD}mlp_resnet_blocks.{index}.ffn.1", hidden, hidden)
        add(HEAD + "layer_norm2", hidden)
        add(HEAD + "fc2", ACTION_TOKENS, hidden)
    if oft.proprio:
        add(PROPRIO + "fc1", hidden, STATE_SIZE)
        add(PROPRIO + "fc2", hidden, hidden)
    return shapes


def load_parts(oft: Oft, source: WeightSource, like: Tensor) -> tuple[tuple[Linear, ...] | None, ActionHead | None]:
    """Return the projector of the state and the head, None if the model has none, on the device of `like`."""

    def read(name: str) -> tuple[Tensor, Tensor]:
        return tuple(source.read(f"{name}.{kind}").to(like.device, like.dtype) for kind in ("weight", "bias"))

    proprio = tuple(plain(*read(f"{PROPRIO}fc{index}")) for index in (1, 2)) if oft.proprio else None
    if not oft.l1_head:
        return proprio, None
    blocks = [f"{HEAD}mlp_resnet_blocks.{index}.ffn." for index in range(BLOCKS)]
    head = ActionHead(
        Norm(*read(HEAD + "layer_norm1")),
        plain(*read(HEAD + "fc1")),
        tuple((Norm(*read(block + "0")), plain(*read(block + "1"))) for block in blocks),
        Norm(*read(HEAD + "layer_norm2")),
        plain(*read(HEAD + "fc2")),
    )
    return proprio, head
