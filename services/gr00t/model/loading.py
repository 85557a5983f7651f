"""Load weights into the network by name; names and shapes are checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from accelerate import init_empty_weights

from services.gr00t.checkpoint.config import ModelConfig
from services.gr00t.model.gr00t import UNUSED, Gr00t
from vla_modelkit.weights import WeightSource, check_names


def shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Return name -> shape of every tensor of the network."""
    return {name: tuple(parameter.shape) for name, parameter in _empty(config, "sdpa").named_parameters()}


def load_model(
    config: ModelConfig, source: WeightSource, device: torch.device, dtype: torch.dtype, attention: str
) -> Gr00t:
    """Return the network with a checkpoint's weights. attention: its name in transformers.

    Raises CheckpointError if names or shapes differ from those of config.json.
    """
    model = _empty(config, attention)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    check_names({name: shape for name, shape in source.shapes().items() if not name.startswith(UNUSED)}, expected)
    model.load_state_dict({name: source.read(name).to(device, dtype) for name in expected}, assign=True)
    return model.to(device).eval().requires_grad_(False)  # moves what is computed and not loaded: rotary frequencies


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the size of the weights in bytes."""
    return sum(torch.Size(shape).numel() for shape in shapes(config).values()) * dtype.itemsize


def row_bytes(config: ModelConfig, tokens: int, views: int, dtype: torch.dtype) -> int:
    """Estimate the bytes that one more observation of a batch needs: a layer's activations in the larger backbone part.

    tokens: of its prompt, image tokens included.
    """
    sizes = [(views * config.patches, config.vision), (tokens, config.text)]
    numbers = (count * 4 * (part["hidden_size"] + part["intermediate_size"]) for count, part in sizes)
    return int(max(numbers) * dtype.itemsize)


def _empty(config: ModelConfig, attention: str) -> Gr00t:
    with init_empty_weights(include_buffers=False):
        return Gr00t(config, attention)
