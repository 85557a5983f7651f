"""Llama-2 as tensor functions: static KV cache, rotary positions, prefill and decode.

Rows of a batch may have prompts of different lengths: they are padded on the right, which causal attention ignores,
and every later token is written at its row's own position. So a cache slot is visible to a query if and only if the
slot's number is not larger than the query's position; branches of a draft tree are the one exception (`TreePositions`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from services.openvla.checkpoint.config import LlamaConfig
from services.openvla.model import attention
from services.openvla.model.linear import Linear, plain, quantiser
from vla_modelkit.weights import WeightSource

PREFIX = "language_model.model."
HEAD = "language_model.lm_head.weight"


@dataclass(frozen=True)
class Block:
    """One layer: q, k and v are one matrix, gate and up another."""

    norm_in: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 kv heads) * head_dim
    out: Linear
    norm_mlp: Tensor
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear


@dataclass(frozen=True)
class KVCache:
    """Keys and values [layers, B, capacity, kv heads, head_dim] of the tokens so far."""

    keys: Tensor
    values: Tensor

    @property
    def capacity(self) -> int:
        return self.keys.shape[2]

    def rows(self, count: int) -> KVCache:
        return KVCache(self.keys[:, :count], self.values[:, :count])

    def clear(self) -> None:
        """Fill every slot with zeros, in place: captured passes use these tensors."""
        self.keys.zero_()
        self.values.zero_()


@dataclass(frozen=True)
class TreePositions:
    """Positions of a decoding pass's tokens, int64 [B, N] each, for the tree attention of speculative decoding.

    A token sees the cache up to `sees`, and itself: for one of the chain that is its own position. A branch's token
    has the same position as the chain's, but its keys and values are in a separate slot.
    """

    positions: Tensor
    slots: Tensor
    sees: Tensor

    def visible(self, filled: int) -> Tensor:
        """Return bool [B, 1, N, filled]."""
        every = torch.arange(filled, device=self.slots.device)
        return ((every <= self.sees[..., None]) | (every == self.slots[..., None]))[:, None]


@dataclass(frozen=True)
class Llama:
    """The language model. `cos` and `sin` [positions, head_dim]; the sine's first half carries rotation's minus."""

    config: LlamaConfig
    embed: Tensor  # [vocab, hidden]
    blocks: tuple[Block, ...]
    norm: Tensor
    head: Linear  # hidden -> vocab
    cos: Tensor
    sin: Tensor
    attention: attention.AttentionFunction

    def prefill(self, x: Tensor, cache: KVCache) -> Tensor:
        """Return hidden states [B, S, hidden] of embeddings x [B, S, hidden] at positions 0 … S-1; fills the cache."""
        length = x.shape[1]
        cos, sin = self.cos[None, :length, None], self.sin[None, :length, None]
        for layer, block in enumerate(self.blocks):
            q, k, v = self._qkv(block, x, cos, sin)
            cache.keys[layer, :, :length] = k
            cache.values[layer, :, :length] = v
            x = self._rest(block, x, self.attention(q, k, v))
        return x

    def decode(self, x: Tensor, tree: TreePositions, cache: KVCache, filled: int) -> Tensor:
        """Return hidden states [B, N, hidden] of embeddings x [B, N, hidden], attending to the first `filled` slots."""
        rows = torch.arange(x.shape[0], device=x.device)[:, None]
        cos, sin = self.cos[tree.positions][:, :, None], self.sin[tree.positions][:, :, None]
        visible = tree.visible(filled)
        for layer, block in enumerate(self.blocks):
            q, k, v = self._qkv(block, x, cos, sin)
            keys, values = cache.keys[layer], cache.values[layer]
            keys[rows, tree.slots] = k
            values[rows, tree.slots] = v
            x = self._rest(block, x, attention.masked(q, keys[:, :filled], values[:, :filled], visible))
        return x

    def parallel(self, x: Tensor, answers: Tensor, visible: Tensor | None) -> Tensor:
        """Return normalised hidden states [B, N, hidden] at positions `answers` [B, N] of embeddings x [B, S, hidden].

        Every token attends to all that are visible (bool [B, 1, 1, S], None: all), also to later ones; nothing is
        cached. The last layer is computed for the answers alone.
        """
        length, rows = x.shape[1], torch.arange(x.shape[0], device=x.device)[:, None]
        cos, sin = self.cos[None, :length, None], self.sin[None, :length, None]
        for layer, block in enumerate(self.blocks, start=1):
            q, k, v = self._qkv(block, x, cos, sin)
            if layer == len(self.blocks):
                q, x = q[rows, answers], x[rows, answers]
            x = self._rest(block, x, attention.masked(q, k, v, visible))
        return rms_norm(x, self.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [..., vocab] of hidden states [..., hidden]."""
        return self.head(rms_norm(hidden, self.norm, self.config.rms_norm_eps)).float()

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        shape = (len(self.blocks), rows, capacity, self.config.num_key_value_heads, self.config.head_dim)
        keys, values = (torch.zeros(shape, dtype=self.embed.dtype, device=self.embed.device) for _ in range(2))
        return KVCache(keys, values)

    def _qkv(self, block: Block, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv = self.config.num_attention_heads, self.config.num_key_value_heads
        qkv = block.qkv(rms_norm(x, block.norm_in, self.config.rms_norm_eps))
        qkv = qkv.view(*x.shape[:2], heads + 2 * kv, self.config.head_dim)
        qk, v = qkv.split((heads + kv, kv), dim=2)
        q, k = rotate(qk, cos, sin).split((heads, kv), dim=2)
        return q, k, v

    def _rest(self, block: Block, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + block.out(mixed.flatten(2))
        gate, up = block.gate_up(rms_norm(x, block.norm_mlp, self.config.rms_norm_eps)).chunk(2, dim=-1)
        return x + block.down(F.silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x over its root mean square, computed in float32 and rounded to x's dtype before the weight."""
    if x.dtype == torch.float32:
        return x * x.square().sum(-1, keepdim=True).mul_(1 / x.shape[-1]).add_(eps).rsqrt_() * weight
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    scale = length.square_().mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(x, scale).to(x.dtype) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x [B, S, heads, D] turned by its position: pairs are (i, i + D/2), as in transformers' checkpoints."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, swapped, sin)


def rotary_table(config: LlamaConfig, length: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (cos, signed sin) [length, head_dim] of positions 0 … length - 1, computed in float32."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float()
    frequencies = 1.0 / (config.rope_theta ** (steps / config.head_dim))
    angles = torch.outer(torch.arange(length).float(), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype),
        torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype),
    )


def llama_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, wide = config.hidden_size, config.intermediate_size
    kv = config.num_key_value_heads * config.head_dim
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide),
    }  # fmt: skip
    shapes = {
        f"{PREFIX}layers.{index}.{name}.weight": shape
        for index in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    table = (config.vocab_size, hidden)
    return shapes | {f"{PREFIX}embed_tokens.weight": table, f"{PREFIX}norm.weight": (hidden,), HEAD: table}


def load_llama(
    config: LlamaConfig,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    capacity: int,
    attention_kernel: attention.AttentionFunction,
    quant: str = "none",
) -> Llama:
    """Return the model with its weights on `device`.

    Quantised: the blocks' matrices; embeddings, norms and head stay plain.
    """
    pack = quantiser(quant)

    def read(*names: str) -> Tensor:
        return torch.cat([source.read(PREFIX + f"{name}.weight").to(device=device, dtype=dtype) for name in names])

    blocks = []
    for index in range(config.num_hidden_layers):
        at = f"layers.{index}."
        blocks.append(
            Block(
                norm_in=read(at + "input_layernorm"),
                qkv=pack(read(*(f"{at}self_attn.{letter}_proj" for letter in "qkv"))),
                out=pack(read(at + "self_attn.o_proj")),
                norm_mlp=read(at + "post_attention_layernorm"),
                gate_up=pack(read(at + "mlp.gate_proj", at + "mlp.up_proj")),
                down=pack(read(at + "mlp.down_proj")),
            )
        )
    head = plain(source.read(HEAD).to(device=device, dtype=dtype))
    cos, sin = rotary_table(config, capacity, dtype, device)
    return Llama(config, read("embed_tokens"), tuple(blocks), read("norm"), head, cos, sin, attention_kernel)
