"""Small random checkpoints in the published layout, of every policy type that can be built small without a download."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

from services.lerobot import backbones
from services.lerobot.repositories import JSON_FILES, repository_directory
from services.lerobot.types import check_tiny

IMAGE_SIZE = 96  # pixels
_CONVOLUTIONAL = {"pretrained_backbone_weights": None, "vision_backbone": "resnet18"}
_CHUNK = {"chunk_size": 16, "n_action_steps": 8}
_FLORENCE = {
    "vision_config": {
        "embed_dim": [16, 16, 16, 32], "num_heads": [2, 2, 2, 4], "num_groups": [2, 2, 2, 4], "depths": [1, 1, 1, 1],
        "projection_dim": 32, "window_size": 3,
    },
    "text_config": {
        "model_type": "bart", "vocab_size": 512, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "act": {
        **_CONVOLUTIONAL, **_CHUNK, "dim_model": 64, "n_heads": 4, "dim_feedforward": 128, "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
    },
    "diffusion": {
        **_CONVOLUTIONAL, "use_group_norm": True, "down_dims": (32, 64), "diffusion_step_embed_dim": 32, "horizon": 16,
        "n_action_steps": 8, "num_inference_steps": 4, "noise_scheduler_type": "DDIM",
        "use_separate_rgb_encoder_per_camera": True,
    },
    "eo1": {**_CHUNK, "dtype": "float32", "image_min_pixels": 3136, "image_max_pixels": 6272, "num_denoise_steps": 2},
    "evo1": {
        **_CHUNK, "image_resolution": (backbones.IMAGE_SIZE, backbones.IMAGE_SIZE), "vlm_num_layers": 2,
        "vlm_dtype": "float32", "use_flash_attn": False, "use_amp": False, "embed_dim": backbones.WIDTH,
        "hidden_dim": 32, "state_hidden_dim": 32, "num_heads": 4, "num_layers": 2, "num_inference_timesteps": 2,
        "max_views": 2,
    },
    "multi_task_dit": {
        "horizon": 16, "n_action_steps": 8, "hidden_dim": 32, "num_layers": 1, "num_heads": 4, "timestep_embed_dim": 32,
        "image_resize_shape": (backbones.IMAGE_SIZE, backbones.IMAGE_SIZE), "image_crop_shape": None,
        "noise_scheduler_type": "DDIM", "num_inference_steps": 4,
    },
    "smolvla": {
        **_CHUNK, "resize_imgs_with_padding": (backbones.IMAGE_SIZE, backbones.IMAGE_SIZE), "num_steps": 2,
        "num_vlm_layers": 2,
    },
    "tdmpc": {"latent_dim": 16, "mlp_dim": 32, "n_gaussian_samples": 32, "n_pi_samples": 8, "n_elites": 8},
    "vla_jepa": {
        "chunk_size": 8, "n_action_steps": 8, "enable_world_model": False, "torch_dtype": "float32",
        "action_hidden_size": 32, "action_num_layers": 2, "action_num_heads": 4, "action_attention_head_dim": 8,
        "num_inference_timesteps": 2, "num_embodied_action_tokens_per_instruction": 4,
        "num_action_tokens_per_timestep": 2,
    },
    "vqbet": {
        **_CONVOLUTIONAL, "crop_shape": (84, 84), "gpt_n_layer": 1, "gpt_n_head": 2, "gpt_hidden_dim": 64,
        "gpt_input_dim": 64, "gpt_output_dim": 64, "vqvae_enc_hidden_dim": 32, "vqvae_embedding_dim": 32,
        "use_group_norm": True,
    },
    "xvla": {
        **_CHUNK, "florence_config": _FLORENCE, "hidden_size": 32, "depth": 1, "num_heads": 4, "num_domains": 2,
        "len_soft_prompts": 4, "num_denoising_steps": 2, "action_mode": "ee6d", "tokenizer_max_length": 32,
    },
}  # fmt: skip
# Type → (config field, name of the backbone, function that writes it). multi_task_dit requires "clip" in the name.
BACKBONES: dict[str, tuple[tuple[str, ...], str, Callable[[Path], None]]] = {
    "eo1": (("vlm_base",), "tiny/qwen2.5-vl", backbones.write_qwen25_vl),
    "evo1": (("vlm_model_name",), "tiny/internvl", backbones.write_internvl),
    "multi_task_dit": (("vision_encoder_name", "text_encoder_name"), "tiny/clip", backbones.write_clip),
    "smolvla": (("vlm_model_name",), "tiny/smolvlm", backbones.write_smolvlm),
    "vla_jepa": (("qwen_model_name",), "tiny/qwen3-vl", backbones.write_qwen3_vl),
    "xvla": (("tokenizer_name",), "tiny/bart", backbones.write_bart_tokenizer),
}
ONE_CAMERA = frozenset({"vqbet", "tdmpc"})


def write(
    directory: Path, kind: str = "act", seed: int = 0, state: int = 8, action: int | None = None, **settings: Any
) -> Path:
    """Write a random checkpoint of type `kind` for LIBERO's robot. `settings` replace those of SETTINGS.

    Raises ValueError for a type that cannot be built small, with the reason.
    """
    check_tiny(kind)
    torch.manual_seed(seed)
    action = action or (20 if kind == "xvla" else 7)
    names = ("image",) if kind in ONE_CAMERA else ("image", "image2")
    image = PolicyFeature(FeatureType.VISUAL, (3, IMAGE_SIZE, IMAGE_SIZE))
    # tdmpc of LeRobot 0.6 looks its image up under this key, whatever the config names
    inputs = {"observation.image" if kind == "tdmpc" else f"observation.images.{name}": image for name in names}
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (state,))
    settings = {**SETTINGS[kind], **settings}
    if kind in BACKBONES:
        fields, name, write_backbone = BACKBONES[kind]
        backbone = repository_directory(directory, name)
        write_backbone(backbone)
        settings |= dict.fromkeys(fields, str(backbone))
    config = make_policy_config(
        kind, device="cpu", push_to_hub=False, input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (action,))}, **settings,
    )  # fmt: skip
    policy = get_policy_class(kind)(config)
    # fresh heads are small and some are zero: the actions would hardly depend on the observation
    for parameter in policy.parameters():
        if parameter.ndim > 1 and not parameter.any():
            parameter.data.normal_(std=0.1)
        elif parameter.ndim == 2:
            parameter.data.mul_(1.5)
    statistics = {key: statistics_of(feature.shape, seed) for key, feature in inputs.items()}
    statistics["action"] = statistics_of((action,), seed + 1)
    policy.save_pretrained(directory)
    for pipeline in make_pre_post_processors(config, dataset_stats=statistics):
        pipeline.save_pretrained(directory)
    if kind in BACKBONES:
        for path in (directory / file for file in JSON_FILES):
            path.write_text(path.read_text().replace(json.dumps(str(backbone)), json.dumps(name)))
    return directory


def statistics_of(shape: tuple[int, ...], seed: int) -> dict[str, torch.Tensor]:
    """Return made-up statistics of a feature: [n] of numbers, [3, 1, 1] of images."""
    size = (shape[0],) if len(shape) == 1 else (shape[0], 1, 1)
    spread = 0.2 + 0.3 * torch.rand(size, generator=torch.Generator().manual_seed(seed))
    mean = torch.full(size, 0.5 if len(shape) > 1 else 0.0)
    low, high = mean - 2 * spread, mean + 2 * spread
    return {"mean": mean, "std": spread, "min": low, "max": high, "q01": low, "q99": high, "q10": low, "q90": high}
