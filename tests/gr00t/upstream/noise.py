"""The noise of our own generator handed to upstream's action head, which draws from torch's global one."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode


class GivenNoise(TorchFunctionMode):
    """While it is entered, the one `torch.randn` of upstream's action head returns `noise`.

    Raises RuntimeError where another shape is asked for: then this is not the loop it is made for.
    """

    def __init__(self, noise: torch.Tensor):
        super().__init__()
        self._noise = noise
        self.taken = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is not torch.randn:
            return function(*args, **kwargs)
        size = tuple(kwargs.get("size", args[0] if args else ()))
        if size != tuple(self._noise.shape):
            raise RuntimeError(f"upstream draws noise of shape {size}; expected {tuple(self._noise.shape)}")
        self.taken += 1
        return self._noise.to(device=kwargs.get("device"), dtype=kwargs.get("dtype"))
