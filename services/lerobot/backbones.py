"""Small random backbones: model, tokenizer and image processor, in the layout that transformers reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

IMAGE_SIZE, PATCH_SIZE, WIDTH = 32, 8, 32
_LAYERS = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
_IMAGES = {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE}
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
    config = transformers.InternVLConfig(
        text_config=text, vision_config=vision, image_token_id=3, image_seq_length=(IMAGE_SIZE // PATCH_SIZE // 2) ** 2
    )
    transformers.InternVLModel(config).save_pretrained(directory)
    special = ("<pad>", "<img>", "</img>", "<IMG_CONTEXT>")
    byte_tokenizer(special, pad_token="<pad>", eos_token="<pad>", unk_token="<pad>").save_pretrained(directory)


def write_qwen25_vl(directory: Path) -> None:
    """Write a Qwen2.5-VL model with its processor (for eo1)."""
    vision = {
        "depth": 2, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_heads": 4, "out_hidden_size": WIDTH,
        "patch_size": 14, "fullatt_block_indexes": [1], "window_size": 56,
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=_QWEN_TEXT, vision_config=vision, **_qwen_ids(), dtype="float32")
    transformers.Qwen2_5_VLForConditionalGeneration(config).save_pretrained(directory)
    transformers.Qwen2_5_VLProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=14), _qwen_tokenizer(),
        transformers.Qwen2VLVideoProcessor(patch_size=14), chat_template=_QWEN_CHAT,
    ).save_pretrained(directory)  # fmt: skip


def write_qwen3_vl(directory: Path) -> None:
    """Write a Qwen3-VL model with its processor (for vla_jepa)."""
    vision = {
        "depth": 2, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_heads": 4, "out_hidden_size": WIDTH,
        "patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
    }  # fmt: skip
    config = transformers.Qwen3VLConfig(text_config=_QWEN_TEXT, vision_config=vision, **_qwen_ids(), dtype="float32")
    transformers.Qwen3VLForConditionalGeneration(config).save_pretrained(directory)
    transformers.Qwen3VLProcessor(
        transformers.Qwen2VLImageProcessor(patch_size=16, min_pixels=1024, max_pixels=16384), _qwen_tokenizer(),
        transformers.Qwen3VLVideoProcessor(patch_size=16), chat_template=_QWEN_CHAT,
    ).save_pretrained(directory)  # fmt: skip


def _qwen_tokenizer() -> transformers.PreTrainedTokenizerFast:
    end = dict.fromkeys(("eos_token", "pad_token", "unk_token"), "<|endoftext|>")
    return byte_tokenizer(_QWEN, chat_template=_QWEN_CHAT, **end)


def _qwen_ids() -> dict[str, int]:
    return {"vision_start_token_id": 1, "vision_end_token_id": 2, "image_token_id": 3, "video_token_id": 4}
