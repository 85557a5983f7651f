"""Linear layers: plain, packed for a CPU, nf4 or int8, all called as `layer(x)`.

Weights are quantised once, on the device, and never moved or cast afterwards: bitsandbytes keeps
statistics next to the packed numbers, which a later `.to()` would not move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

QUANTS = ("none", "nf4", "fp4", "int8")
BLOCK = 64  # weights of 4 bits that share one scale; with nf4 the scales are quantised again ("double quant")
PACKED_ROWS = 16  # rows of x that a packed weight is laid out for; others work too
INT8_OUTLIER = 6.0  # activations larger than this are multiplied in 16 bit (LLM.int8)


@dataclass(frozen=True)
class Dense:
    """y = x Wᵀ + b with W [out, in], b [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)


@dataclass(frozen=True)
class Packed:
    """The same on a CPU, with W in the order oneDNN computes in.

    F.linear brings W into such an order at every call, which with a few rows of x takes longer than the product.
    """

    weight: Tensor  # opaque
    bias: Tensor | None
    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


@dataclass(frozen=True)
class Bits4:
    """Four bits per weight, normal float (nf4) or float (fp4); computes in the dtype of x."""

    packed: Tensor
    state: Any  # bitsandbytes' QuantState

    def __call__(self, x: Tensor) -> Tensor:
        import bitsandbytes

        return bitsandbytes.matmul_4bit(x, self.packed.t(), quant_state=self.state)

    @property
    def nbytes(self) -> int:
        scales = [self.state.absmax, self.state.state2.absmax] if self.state.nested else [self.state.absmax]
        return sum(tensor.nbytes for tensor in [self.packed, *scales])


@dataclass(frozen=True)
class Int8:
    """Eight bits per weight with a scale per row; rows of x that hold outliers are split off (LLM.int8)."""

    weight: Tensor  # int8 [out, in]
    scale: Tensor  # float32 [out]: the largest magnitude of a row

    def __call__(self, x: Tensor) -> Tensor:
        import bitsandbytes

        state = bitsandbytes.MatmulLtState()
        state.CB, state.SCB = self.weight, self.scale
        state.threshold, state.has_fp16_weights = INT8_OUTLIER, False
        return bitsandbytes.matmul(x, self.weight, state=state)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + self.scale.nbytes


Linear = Dense | Packed | Bits4 | Int8


def plain(weight: Tensor, bias: Tensor | None = None) -> Dense | Packed:
    """Return a layer that is not quantised: packed if it is float32 on a CPU."""
    layer = Dense(weight, bias)
    # oneDNN's operators, which torch.compile uses; a torch without them computes by F.linear
    operators = ("_linear_pointwise", "_reorder_linear_weight")
    packs = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in operators)
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not packs:
        return layer
    return Packed(torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS), bias, layer.nbytes)


def quantiser(quant: str) -> Callable[[Tensor], Linear]:
    """Return the function from a weight [out, in], already on its device, to a layer. Raises ValueError.

    fp4 is the default of transformers' load_in_4bit=True, as in upstream's 4-bit evaluation.
    """
    if quant not in QUANTS:
        raise ValueError(f"quantisation {quant!r} not found; expected one of {', '.join(QUANTS)}")
    if quant == "none":
        return plain
    try:
        from bitsandbytes.functional import int8_vectorwise_quant, quantize_4bit
    except Exception as error:  # with a broken CUDA setup its import raises many kinds
        raise ValueError(
            f"{quant} needs bitsandbytes, whose import failed with {type(error).__name__}: {error}; run in "
            "the openvla image or environment, or set VLALAB_OPENVLA_QUANT=none"
        ) from error

    def pack(weight: Tensor) -> Linear:
        if quant == "int8":
            numbers, scale, _ = int8_vectorwise_quant(weight.to(torch.float16))
            return Int8(numbers, scale)
        double = quant == "nf4"
        return Bits4(*quantize_4bit(weight, blocksize=BLOCK, compress_statistics=double, quant_type=quant))

    return pack
