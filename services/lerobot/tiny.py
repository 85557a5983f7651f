"""Small random checkpoints in the published layout, of every policy type that can be built small without a download."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from services.lerobot.repositories import JSON_FILES, repository_directory
from services.lerobot.types import check_tiny

IMAGE_SIZE = 96  # pixels
BACKBONE_IMAGE, PATCH_SIZE, WIDTH = 32, 8, 32  # of a backbone
_LAYERS = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGES = {"image_size": BACKBONE_IMAGE, "patch_size": PATCH_SIZE}
_QWEN = ("<|endoftext|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_CHAT = (
    "{% for message in messages %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
_QWEN_TEXT = {
    **_LAYERS, "vocab_size": 512, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 0, "eos_token_id": 0,
    "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]},
}  # fmt: skip
_QWEN_VISION = {
    "depth": 2, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_heads": 4, "out_hidden_size": WIDTH,
}  # fmt: skip
_QWEN_IDS = {"vision_start_token_id": 1, "vision_end_token_id": 2, "image_token_id": 3, "video_token_id": 4}
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
        **_CHUNK, "image_resolution": (BACKBONE_IMAGE, BACKBONE_IMAGE), "vlm_num_layers": 2,
        "vlm_dtype": "float32", "use_flash_attn": False, "use_amp": False, "embed_dim": WIDTH,
        "hidden_dim": 32, "state_hidden_dim": 32, "num_heads": 4, "num_layers": 2, "num_inference_timesteps": 2,
        "max_views": 2,
    },
    "multi_task_dit": {
        "horizon": 16, "n_action_steps": 8, "hidden_dim": 32, "num_layers": 1, "num_heads": 4, "timestep_embed_dim": 32,
        "image_resize_shape": (BACKBONE_IMAGE, BACKBONE_IMAGE), "image_crop_shape": None,
        "noise_scheduler_type": "DDIM", "num_inference_steps": 4,
    },
    "smolvla": {
        **_CHUNK, "resize_imgs_with_padding": (BACKBONE_IMAGE, BACKBONE_IMAGE), "num_steps": 2,
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


# --- backbones: model, tokenizer and image processor, in the layout that transformers reads ---------------------


def byte_tokenizer(special: Sequence[str], **settings: Any) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer of bytes: ids 0, 1, … are `special`, the 256 bytes follow."""
    vocabulary = {token: index for index, token in enumerate((*special, *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    tokens.add_special_tokens(list(special))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, **settings)


def write_clip(directory: Path) -> None:
    """Write a CLIP model with its tokenizer (for multi_task_dit)."""
    text = {"vocab_size": 512, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "max_position_embeddings": 77}
    config = transformers.CLIPConfig(text_config={**_LAYERS, **text}, vision_config={**_LAYERS, **_IMAGES})
    transformers.CLIPModel(config).save_pretrained(directory)
    end = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    byte_tokenizer(("<|startoftext|>", "<|endoftext|>"), bos_token="<|startoftext|>", **end).save_pretrained(directory)


def write_bart_tokenizer(directory: Path) -> None:
    """Write a tokenizer with BART's special tokens (for xvla)."""
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    byte_tokenizer(tuple(special.values()), **special).save_pretrained(directory)


def write_smolvlm(directory: Path) -> None:
    """Write SmolVLM's config and processor (for smolvla, whose checkpoints contain its weights)."""
    special = ("<pad>", "<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>")
    text = {
        **_LAYERS, "model_type": "llama", "vocab_size": 512, "num_key_value_heads": 2, "head_dim": 8,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 4,
    }  # fmt: skip
    vision = {**_LAYERS, **_IMAGES, "model_type": "smolvlm_vision"}
    config = transformers.SmolVLMConfig(
        text_config=text, vision_config=vision, image_token_id=2, scale_factor=2, pad_token_id=0
    )
    config.save_pretrained(directory)
    names = dict(zip(("fake_image_token", "image_token", "global_image_token"), special[1:4], strict=True))
    tokens = byte_tokenizer(
        special, pad_token="<pad>", eos_token="<end_of_utterance>", unk_token="<pad>", extra_special_tokens=names
    )
    transformers.SmolVLMProcessor(
        transformers.SmolVLMImageProcessor(), tokens, transformers.SmolVLMVideoProcessor(), image_seq_len=4
    ).save_pretrained(directory)


def write_internvl(directory: Path) -> None:
    """Write an InternVL model with its tokenizer (for evo1)."""
    text = {
        **_LAYERS, "model_type": "qwen2", "vocab_size": 512, "num_key_value_heads": 2, "pad_token_id": 0,
        "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    vision = {**_LAYERS, "model_type": "internvl_vision", **{name: [size, size] for name, size in _IMAGES.items()}}
    tokens = (BACKBONE_IMAGE // PATCH_SIZE // 2) ** 2
    config = transformers.InternVLConfig(
        text_config=text, vision_config=vision, image_token_id=3, image_seq_length=tokens
    )
    transformers.InternVLModel(config).save_pretrained(directory)
    special = ("<pad>", "<img>", "</img>", "<IMG_CONTEXT>")
    byte_tokenizer(special, pad_token="<pad>", eos_token="<pad>", unk_token="<pad>").save_pretrained(directory)


def write_qwen25_vl(directory: Path) -> None:
    """Write a Qwen2.5-VL model with its processor (for eo1)."""
    vision = {**_QWEN_VISION, "patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56}
    config = transformers.Qwen2_5_VLConfig(text_config=_QWEN_TEXT, vision_config=vision, **_QWEN_IDS, dtype="float32")
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(directory)
    images = transformers.Qwen2VLImageProcessor(patch_size=14)
    videos = transformers.Qwen2VLVideoProcessor(patch_size=14)
    processor = transformers.Qwen2_5_VLProcessor(images, _qwen_tokenizer(), videos, chat_template=_QWEN_CHAT)
    processor.save_pretrained(directory)


def write_qwen3_vl(directory: Path) -> None:
    """Write a Qwen3-VL model with its processor (for vla_jepa)."""
    vision = {**_QWEN_VISION, "patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    config = transformers.Qwen3VLConfig(text_config=_QWEN_TEXT, vision_config=vision, **_QWEN_IDS, dtype="float32")
    transformers.Qwen3VLForConditionalGeneration(config).save_pretrained(directory)
    images = transformers.Qwen2VLImageProcessor(patch_size=16, min_pixels=1024, max_pixels=16384)
    videos = transformers.Qwen3VLVideoProcessor(patch_size=16)
    processor = transformers.Qwen3VLProcessor(images, _qwen_tokenizer(), videos, chat_template=_QWEN_CHAT)
    processor.save_pretrained(directory)


def _qwen_tokenizer() -> transformers.PreTrainedTokenizerFast:
    end = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    return byte_tokenizer(_QWEN, chat_template=_QWEN_CHAT, **end)


# Type → (config field, name of the backbone, function that writes it). multi_task_dit requires "clip" in the name.
BACKBONES: dict[str, tuple[tuple[str, ...], str, Callable[[Path], None]]] = {
    "eo1": (("vlm_base",), "tiny/qwen2.5-vl", write_qwen25_vl),
    "evo1": (("vlm_model_name",), "tiny/internvl", write_internvl),
    "multi_task_dit": (("vision_encoder_name", "text_encoder_name"), "tiny/clip", write_clip),
    "smolvla": (("vlm_model_name",), "tiny/smolvlm", write_smolvlm),
    "vla_jepa": (("qwen_model_name",), "tiny/qwen3-vl", write_qwen3_vl),
    "xvla": (("tokenizer_name",), "tiny/bart", write_bart_tokenizer),
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
