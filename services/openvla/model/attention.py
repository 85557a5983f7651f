"""The attentions that the language model needs: over a prompt (torch's SDPA or flash-attn), and under a mask.

q [B, S, heads, D], k and v [B, S, kv heads, D] -> [B, S, heads, D].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vla_modelkit.builds import flash_obstacle

CHOICES = ("auto", "sdpa", "flash")
AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]  # its __name__ is in `/v1/info`


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention by torch's scaled_dot_product_attention: on a GPU its own FlashAttention-2 kernel."""
    q, k, v = (head.transpose(1, 2) for head in _same_heads(q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention by the flash-attn package: 16-bit numbers on a GPU only."""
    from flash_attn import flash_attn_func

    return flash_attn_func(q, k, v, causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """Return attention of queries [B, N, heads, D] over tokens [B, S, kv heads, D], before and behind them.

    visible: bool [B, 1, N or 1, S], None: all. No choice of kernels here: flash-attn takes no mask, and of a decoding
    pass this is microseconds.
    """
    q, k, v = (head.transpose(1, 2) for head in _same_heads(q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2)


def choose(requested: str, device: torch.device, dtype: torch.dtype) -> tuple[AttentionFunction, str]:
    """Return the attention and the reason, for `PolicyInfo`. Raises ValueError if "flash" is not available."""
    if requested not in CHOICES:
        raise ValueError(f"attention {requested!r} not found; expected one of {', '.join(CHOICES)}")
    if requested == "sdpa":
        return sdpa, "requested"
    reason = flash_obstacle(device, dtype)
    if reason is None:
        return flash, "flash-attn is installed" if requested == "auto" else "requested"
    if requested == "flash":
        raise ValueError(f"attention 'flash' is not available: {reason}; set VLALAB_OPENVLA_ATTENTION=sdpa (or auto)")
    return sdpa, f"instead of flash: {reason}"


def _same_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = (tensor.repeat_interleave(groups, dim=2) for tensor in (k, v))
    return q, k, v
