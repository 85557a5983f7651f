"""A small random checkpoint in the published format, for tests, demonstrations and benchmarks.

The loaders that read the 7B model read it, upstream's own among them. Weights come from numpy's RandomState, whose
numbers never change between versions. Embeddings, queries and keys are scaled up: otherwise attention is flat, and
every image and every prompt leads to the same action. Rows of the head that are no action tokens are scaled down: a
trained model answers in action tokens only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from services.openvla.checkpoint.config import LlamaConfig, ModelConfig, Tower, load_config
from services.openvla.checkpoint.oft import PARTS, Oft
from services.openvla.checkpoint.published import REMOTE_CODE, SUITES, check_remote_code
from services.openvla.model.llama import HEAD
from services.openvla.model.openvla import model_shapes
from vla_modelkit.checkpoint import INDEX
from vla_modelkit.weights import WeightSource

SCALED_UP = ("embed_tokens", "q_proj", "k_proj")  # names of what is scaled up
GAIN = 4.0
OTHER_TOKENS_GAIN = 0.25
AUTO_MAP = {
    "AutoConfig": "configuration_prismatic.OpenVLAConfig",
    "AutoModelForVision2Seq": "modeling_prismatic.OpenVLAForActionPrediction",
}
PROCESSOR_MAP = {
    "AutoImageProcessor": "processing_prismatic.PrismaticImageProcessor",
    "AutoProcessor": "processing_prismatic.PrismaticProcessor",
}


@dataclass(frozen=True)
class TinySpec:
    """Shape of a random checkpoint.

    The towers are real timm architectures. Patches are 14 and 16 pixels wide, so `image_size` must hold equally many of
    both: 64 gives 4 × 4. oft: the parts of OpenVLA-OFT that it has besides.
    """

    timm_ids: tuple[str, str] = ("vit_small_patch14_reg4_dinov2", "vit_tiny_patch16_224")
    image_size: int = 64
    hidden_size: int = 128
    intermediate_size: int = 352
    layers: int = 3
    heads: int = 4
    shards: int = 2
    seed: int = 0
    suites: tuple[str, ...] = SUITES
    oft: Oft | None = None

    def text_config(self) -> dict[str, Any]:
        return {
            "model_type": "llama", "vocab_size": 32064, "pad_token_id": 32000, "torch_dtype": "bfloat16",
            "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.heads,
        }  # fmt: skip

    def model_config(self) -> ModelConfig:
        text = self.text_config()
        llama = LlamaConfig(**{name: text[name] for name in LlamaConfig.__dataclass_fields__ if name in text})
        towers = tuple(
            Tower(timm_id, self.image_size, None, SEEN_MEANS[i], SEEN_STDS[i], "bicubic")
            for i, timm_id in enumerate(self.timm_ids)
        )
        stats = statistics(self.suites, self.oft)
        action, proprio = (
            {k: value[part] for k, value in stats.items() if part in value} for part in ("action", "proprio")
        )
        return ModelConfig(towers, llama, 64, 256, action, oft=self.oft, proprio_stats=proprio)


MEANS = ((0.485, 0.456, 0.406), (0.5, 0.5, 0.5))
STDS = ((0.229, 0.224, 0.225), (0.5, 0.5, 0.5))
# tvf_normalize_params of the published checkpoints: the same values rounded to bfloat16.
SEEN_MEANS = ((0.484375, 0.455078125, 0.40625), (0.5, 0.5, 0.5))
SEEN_STDS = ((0.228515625, 0.2236328125, 0.224609375), (0.5, 0.5, 0.5))
# One real SigLIP tower, with its attention pool and without a class token.
SIGLIP = TinySpec(timm_ids=("vit_small_patch14_reg4_dinov2", "vit_base_patch16_siglip_224"))
# As many patches as the 7B model has, and a language model that takes most of the time as it does there.
MID = TinySpec(
    timm_ids=("vit_small_patch14_reg4_dinov2", "vit_small_patch14_dinov2"), image_size=224,
    hidden_size=768, intermediate_size=2048, layers=12, heads=12,
)  # fmt: skip
# The 7B model's shape. Benchmarks create its weights on the device; they are not written to disk.
FULL = TinySpec(
    timm_ids=("vit_large_patch14_reg4_dinov2", "vit_so400m_patch14_siglip_224"), image_size=224,
    hidden_size=4096, intermediate_size=11008, layers=32, heads=32,
)  # fmt: skip
SPECS: Mapping[str, TinySpec] = {"tiny": TinySpec(), "siglip": SIGLIP, "mid": MID, "full": FULL}


def statistics(suites: tuple[str, ...], oft: Oft | None = None) -> dict[str, Any]:
    """Return dataset_statistics.json: made-up ranges under the keys of LIBERO's fine-tuned checkpoints.

    oft: with the state's ranges too, which all data sets of OpenVLA-OFT have.
    """
    action = {
        "q01": [-0.6, -0.8, -0.9, -0.1, -0.15, -0.2, 0.0], "q99": [0.9, 0.8, 0.9, 0.1, 0.15, 0.2, 1.0],
        "mask": [True] * 6 + [False],
    }  # fmt: skip
    proprio = {
        "q01": [-0.4, -0.3, 0.9, 2.4, -1.0, -0.4, 0.0, -0.04], "q99": [0.1, 0.3, 1.3, 3.6, 1.0, 0.4, 0.04, 0.0],
    }  # fmt: skip
    further = {"proprio": proprio} if oft else {}
    return {f"{suite}_no_noops": {"action": dict(action), **further, "num_transitions": 0} for suite in suites}


def write(
    directory: Path, spec: TinySpec = SPECS["tiny"], remote_code: Path | None = None, source: WeightSource | None = None
) -> Path:
    """Write a checkpoint and return its directory. Weights are from `source`, else random with the spec's seed.

    remote_code: a directory with upstream's configuration, modeling and processing_prismatic.py; copied next to the
    weights, so that transformers' AutoModel can load the checkpoint too. Raises ValueError if a file is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", _config(spec))
    _write_json(directory / "preprocessor_config.json", _preprocessor(spec))
    _write_json(directory / "dataset_statistics.json", statistics(spec.suites, spec.oft))
    write_tokenizer(directory)
    if remote_code is not None:
        check_remote_code(remote_code)
        for name in REMOTE_CODE:
            shutil.copyfile(remote_code / name, directory / name)
    config = replace(load_config(directory), oft=spec.oft)
    state = tensors(config, spec.seed) if source is None else {n: source.read(n) for n in source.shapes()}
    for part in PARTS if spec.oft else ():  # in files of their own, named as distributed training saves them
        names = [name for name in state if name.startswith(f"{part}.")]
        if names:
            stored = {f"module.{name.removeprefix(f'{part}.')}": state.pop(name) for name in names}
            torch.save(stored, directory / f"{part}--150000_checkpoint.pt")
    names = sorted(state)
    weight_map: dict[str, str] = {}
    for index in range(spec.shards):
        file = f"model-{index + 1:05d}-of-{spec.shards:05d}.safetensors"
        shard = names[len(names) * index // spec.shards : len(names) * (index + 1) // spec.shards]
        save_file({name: state[name] for name in shard}, str(directory / file), metadata={"format": "pt"})
        (directory / file).chmod(0o644)  # safetensors creates files that only their owner can read
        weight_map |= dict.fromkeys(shard, file)
    size = sum(value.numel() * value.element_size() for value in state.values())
    _write_json(directory / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})
    return directory


def tensors(config: ModelConfig, seed: int) -> dict[str, torch.Tensor]:
    """Return name -> bf16 tensor of a whole random model."""
    rng = np.random.RandomState(seed)
    state = {name: _random(name, shape, rng) for name, shape in model_shapes(config).items()}
    first, end = config.action_vocab_size - config.n_action_bins, config.action_vocab_size
    state[HEAD][:first] *= OTHER_TOKENS_GAIN
    state[HEAD][end:] *= OTHER_TOKENS_GAIN
    return state


def _random(name: str, shape: tuple[int, ...], rng: np.random.RandomState) -> torch.Tensor:
    noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    if ("norm" in name and name.endswith("weight")) or name.endswith("ffn.0.weight"):
        value = 1.0 + 0.1 * noise
    elif name.endswith("scale_factor"):  # LayerScale
        value = 0.5 + 0.1 * noise
    elif name.endswith("bias") or len(shape) == 1:
        value = 0.02 * noise
    elif any(part in name for part in ("pos_embed", "cls_token", "reg_token", "latent")) or "embed_tokens" in name:
        value = 0.1 * noise
    else:
        value = noise * fan_in**-0.5
    return (value * (GAIN if any(part in name for part in SCALED_UP) else 1.0)).to(torch.bfloat16)


def _config(spec: TinySpec) -> dict[str, Any]:
    return {
        "architectures": ["OpenVLAForActionPrediction"], "auto_map": AUTO_MAP, "model_type": "openvla",
        "arch_specifier": "no-align+fused-gelu-mlp", "hf_llm_id": "meta-llama/Llama-2-7b-hf",
        "image_resize_strategy": "resize-naive", "image_sizes": [spec.image_size] * 2,
        "llm_backbone_id": "llama2-7b-pure", "llm_max_length": 2048, "n_action_bins": 256,
        "norm_stats": statistics(spec.suites), "output_projector_states": False, "pad_to_multiple_of": 64,
        "pad_token_id": 32000, "text_config": spec.text_config(), "timm_model_ids": list(spec.timm_ids),
        "timm_override_act_layers": [None, None], "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
        "use_fused_vision_backbone": True, "vision_backbone_id": "dinosiglip-vit-so-224px",
    }  # fmt: skip


def _preprocessor(spec: TinySpec) -> dict[str, Any]:
    square = [spec.image_size] * 2
    resize = {"antialias": True, "interpolation": 3, "max_size": None, "size": square}
    seen = zip(SEEN_MEANS, SEEN_STDS, strict=True)
    return {
        "auto_map": PROCESSOR_MAP, "image_processor_type": "PrismaticImageProcessor",
        "processor_class": "PrismaticProcessor", "image_resize_strategy": "resize-naive",
        "use_fused_vision_backbone": True, "input_sizes": [[3, spec.image_size, spec.image_size]] * 2,
        "interpolations": ["bicubic", "bicubic"], "means": [list(values) for values in MEANS],
        "stds": [list(values) for values in STDS], "tvf_crop_params": [{"output_size": square}] * 2,
        "tvf_do_letterbox": False, "tvf_letterbox_fill": None, "tvf_resize_params": [resize] * 2,
        "tvf_normalize_params": [{"inplace": False, "mean": list(mean), "std": list(std)} for mean, std in seen],
    }  # fmt: skip


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


# --- the tokenizer ------------------------------------------------------------------------------------------

SPACE = "▁"
FIRST_CHARACTER = 29871  # "▁", then single characters, as in Llama's vocabulary
VOCABULARY = 32000
CHARACTERS = SPACE + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"-_()/"
_TEXT = """
In What action should the robot take to put bowl on plate stove open drawer of cabinet top middle bottom push front turn
wine bottle rack cream cheese pick up and place it basket black from next between ramekin cookie box wooden table center
soup sauce butter milk tomato alphabet orange juice chocolate pudding bbq salad dressing ketchup both moka pots mug
white yellow microwave close left right book caddy back compartment
"""
LEXICON = _TEXT.split()


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of Llama's kind: byte fallback, "▁" for spaces, BOS first, 32000 + 1 ids.

    Its ids are its own, but for those that OpenVLA's rules name: BOS 1, "▁" 29871, PAD 32000. The words of LIBERO's
    instructions are merged as a trained one would merge them; everything else falls back to characters and bytes.
    """
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    config = {
        **special, "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
        "model_max_length": 2048, "padding_side": "right", "clean_up_tokenization_spaces": False, "legacy": False,
        "processor_class": "PrismaticProcessor",
        "auto_map": {"AutoProcessor": "processing_prismatic.PrismaticProcessor"},
    }  # fmt: skip
    for name, value in {
        "tokenizer.json": tokenizer_json(), "tokenizer_config.json": config, "special_tokens_map.json": special,
    }.items():  # fmt: skip
        (directory / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def tokenizer_json() -> dict:
    """Return the tokenizer in the form that Hugging Face's tokenizers reads."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = {0: "<unk>", 1: "<s>", 2: "</s>", VOCABULARY: "<PAD>"}
    merges: dict[tuple[str, str], None] = {}  # pairs that build every known word from the left
    for word in LEXICON:
        merges |= {(SPACE + word[: end - 1], word[end - 1]): None for end in range(1, len(word) + 1)}
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += dict.fromkeys(left + right for left, right in merges)
    pieces += [f"<unused{index}>" for index in range(len(pieces), FIRST_CHARACTER)]
    pieces += CHARACTERS
    pieces += [f"<unused{index}>" for index in range(len(pieces), VOCABULARY)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags, "special": True} for i, text in added.items()],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [" ".join(pair) for pair in merges],
        },
    }  # fmt: skip
