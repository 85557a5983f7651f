"""The parts that OpenVLA-OFT has besides OpenVLA: an action head, and a projector of the robot's state.

Upstream: prismatic/models/action_heads.py and projectors.py, whose names of tensors are those of the modules here.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.openvla.checkpoint.oft import CHUNK, PARTS, STATE_SIZE, Oft
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.model.linear import Linear, plain
from services.openvla.model.vision import pack_linears
from vla_modelkit.weights import WeightSource

HEAD, PROPRIO = f"{PARTS[0]}.model.", f"{PARTS[1]}."
BLOCKS = 2


class ActionHead(nn.Module):
    """An MLP with residual blocks of (norm, linear layer)."""

    def __init__(self, hidden: int):
        super().__init__()
        wide = ACTION_TOKENS * hidden
        self.layer_norm1, self.fc1 = nn.LayerNorm(wide), nn.Linear(wide, hidden)
        self.mlp_resnet_blocks = nn.ModuleList(
            nn.ModuleDict({"ffn": nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.ReLU())})
            for _ in range(BLOCKS)
        )
        self.layer_norm2, self.fc2 = nn.LayerNorm(hidden), nn.Linear(hidden, ACTION_TOKENS)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return actions [B, CHUNK, 7], normalised, of hidden states [B, PLACEHOLDERS, hidden]."""
        x = F.relu(self.fc1(self.layer_norm1(hidden.reshape(len(hidden), CHUNK, -1))))
        for block in self.mlp_resnet_blocks:
            x = x + block["ffn"](x)
        return self.fc2(self.layer_norm2(x))


def oft_shapes(oft: Oft, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of the tensors of the parts, each name with its part's in front."""
    with torch.device("meta"):
        proprio = nn.ModuleDict({"fc1": nn.Linear(STATE_SIZE, hidden), "fc2": nn.Linear(hidden, hidden)})
        parts = {HEAD: ActionHead(hidden)} if oft.l1_head else {}
        parts |= {PROPRIO: proprio} if oft.proprio else {}
    return {
        prefix + name: tuple(value.shape) for prefix, part in parts.items() for name, value in part.state_dict().items()
    }


def load_parts(oft: Oft, source: WeightSource, like: Tensor) -> tuple[tuple[Linear, ...] | None, ActionHead | None]:
    """Return the projector of the state and the head, None if the model has none.

    like: the embeddings [vocab, hidden], for device, dtype and size.
    """

    def read(name: str) -> Tensor:
        return source.read(name).to(like.device, like.dtype)

    proprio, head = None, None
    if oft.proprio:
        layers = [PROPRIO + name for name in ("fc1", "fc2")]
        proprio = tuple(plain(read(f"{layer}.weight"), read(f"{layer}.bias")) for layer in layers)
    if oft.l1_head:
        with torch.device("meta"):
            head = ActionHead(like.shape[1])
        head.load_state_dict({name: read(HEAD + name) for name in head.state_dict()}, assign=True)
        pack_linears(head.requires_grad_(False))
    return proprio, head
