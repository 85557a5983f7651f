"""The smoke test of OpenVLA's environment; images/common/selftest.py runs it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from images.common.selftest import expect

MODULES = ("torchvision", "timm", "transformers", "tokenizers", "accelerate", "sentencepiece", "json_numpy", "PIL")


def check_four_bits() -> str:
    """Check that bitsandbytes loads its library and packs a matrix into four bits and back."""
    import bitsandbytes
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(device)
    packed, state = quantize_4bit(weights, quant_type="nf4")
    error = float((dequantize_4bit(packed, state) - weights).abs().mean())
    expect(packed.numel() == weights.numel() // 2, f"64 × 64 numbers took {packed.numel()} bytes, expected 2048")
    expect(0 < error < 0.2, f"four bits change the weights by {error:.3f} on average, expected about 0.07")
    return f"bitsandbytes {bitsandbytes.__version__} on {device}, mean error {error:.3f}"


def check_inference() -> str:
    """Check one inference with a tiny random checkpoint: loading, image, prompt, tokens, action."""
    with tempfile.TemporaryDirectory() as directory:
        os.environ["VLALAB_VOLUME"] = directory
        import numpy as np

        from services.openvla.checkpoints import CheckpointSettings, get
        from services.openvla.service.loading import load_policy
        from services.openvla.service.settings import ModelSettings
        from vla_contract import Observation

        checkpoint = Path(directory) / "checkpoints" / "openvla-tiny"
        get(CheckpointSettings(tiny=True, suite="libero_goal"), checkpoint)
        policy = load_policy(ModelSettings(checkpoint=str(checkpoint), max_batch=1))
        info = policy.info()
        image = np.random.RandomState(0).randint(0, 256, (224, 224, 3), np.uint8)
        chunk = policy.act([Observation({info.cameras[0]: image}, None, "open the drawer", "selftest", 0)])[0]
        if isinstance(chunk, Exception):
            raise chunk
    expect(chunk.actions.shape == (1, 7), f"the action's shape is {chunk.actions.shape}, expected (1, 7)")
    return f"action of {checkpoint.name}, {info.details.get('attention', '')} on {info.device}"


DEPENDENCIES = {"4 bits": check_four_bits}
SERVICES = {"inference": check_inference}
