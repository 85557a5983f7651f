"""Small random checkpoints in the published layout, of every policy type that needs no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

IMAGE_SIZE = 96  # pixels
_CONVOLUTIONAL = {"pretrained_backbone_weights": None, "vision_backbone": "resnet18"}
SETTINGS: dict[str, dict[str, Any]] = {
    "act": {
        **_CONVOLUTIONAL, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128, "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1, "chunk_size": 16, "n_action_steps": 8,
    },
    "diffusion": {
        **_CONVOLUTIONAL, "use_group_norm": True, "down_dims": (32, 64), "diffusion_step_embed_dim": 32, "horizon": 16,
        "n_action_steps": 8, "num_inference_steps": 4, "noise_scheduler_type": "DDIM",
        "use_separate_rgb_encoder_per_camera": True,
    },
    "vqbet": {
        **_CONVOLUTIONAL, "crop_shape": (84, 84), "gpt_n_layer": 1, "gpt_n_head": 2, "gpt_hidden_dim": 64,
        "gpt_input_dim": 64, "gpt_output_dim": 64, "vqvae_enc_hidden_dim": 32, "vqvae_embedding_dim": 32,
        "use_group_norm": True,
    },
    "tdmpc": {"latent_dim": 16, "mlp_dim": 32, "n_gaussian_samples": 32, "n_pi_samples": 8, "n_elites": 8},
}  # fmt: skip
ONE_CAMERA = frozenset({"vqbet", "tdmpc"})


def write(directory: Path, kind: str = "act", seed: int = 0, state: int = 8, action: int = 7, **settings: Any) -> Path:
    """Write a random checkpoint of type `kind` for LIBERO's robot. `settings` replace those of SETTINGS."""
    if kind not in SETTINGS:
        raise ValueError(f"no tiny checkpoint of type {kind!r}; choose {', '.join(SETTINGS)}")
    torch.manual_seed(seed)
    names = ("image",) if kind in ONE_CAMERA else ("image", "image2")
    image = PolicyFeature(FeatureType.VISUAL, (3, IMAGE_SIZE, IMAGE_SIZE))
    inputs = {f"observation.images.{name}": image for name in names}
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (state,))
    config = make_policy_config(
        kind, device="cpu", push_to_hub=False, input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (action,))}, **{**SETTINGS[kind], **settings},
    )  # fmt: skip
    policy = get_policy_class(kind)(config)
    for parameter in policy.parameters():  # a fresh head answers nearly nothing
        if parameter.ndim > 1:
            parameter.data.mul_(1.5)
    statistics = {key: statistics_of(feature.shape, seed) for key, feature in inputs.items()}
    statistics["action"] = statistics_of((action,), seed + 1)
    policy.save_pretrained(directory)
    for pipeline in make_pre_post_processors(config, dataset_stats=statistics):
        pipeline.save_pretrained(directory)
    return directory


def statistics_of(shape: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    """Return made-up statistics of a feature: [n] of numbers, [3, 1, 1] of images."""
    size = (shape[0],) if len(shape) == 1 else (shape[0], 1, 1)
    spread = 0.2 + 0.3 * torch.rand(size, generator=torch.Generator().manual_seed(seed))
    mean = torch.full(size, 0.5 if len(shape) > 1 else 0.0)
    low, high = mean - 2 * spread, mean + 2 * spread
    return {"mean": mean, "std": spread, "min": low, "max": high, "q01": low, "q99": high, "q10": low, "q90": high}
