"""A small random checkpoint in the published format, for tests and demonstrations: 10 million weights.

Image size, patches, action horizon and every transform are the real ones. Weights come from numpy's RandomState,
whose numbers never change between versions. The format has no field for the Eagle backbone's sizes: they are in
our record. Embeddings, queries and keys are scaled up: otherwise attention is flat, and every prompt leads to the same
action.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

from services.gr00t.checkpoint.config import MODEL_TYPE, ModelConfig, parse
from services.gr00t.checkpoint.directory import METADATA
from services.gr00t.checkpoint.embodiment import Embodiment, embodiment
from vla_modelkit.checkpoint import SINGLE, record_directory
from vla_modelkit.checkpoint_program import RANDOM

SCALED_UP = ("embed_tokens", "q_proj", "k_proj", "to_q", "to_k")  # names of what is scaled up
HORIZON = 16  # actions in a chunk: N1.5 was trained so
ROTATIONS = {"eef_rotation": "euler_angles_rpy", "eef_rotation_delta": "euler_angles_rpy"}
SIZES = {  # of made-up robots; others have one number
    "eef_position": 3, "eef_rotation": 3, "eef_position_delta": 3, "eef_rotation_delta": 3, "single_arm": 5,
    "left_arm": 7, "right_arm": 7, "left_hand": 6, "right_hand": 6, "left_leg": 6, "right_leg": 6, "waist": 3,
    "neck": 3, "left_arm_joint_position": 7, "right_arm_joint_position": 7, "head_position": 2,
    "waist_position": 2, "robot_velocity": 2,
}  # fmt: skip


@dataclass(frozen=True)
class TinySpec:
    """Shape of a random checkpoint: width and layers of the language model, the vision tower and the head.

    dropout: of the head, upstream's. gain: factor of the weights in SCALED_UP.
    """

    text: int = 64
    text_layers: int = 2
    vision: int = 32
    vision_layers: int = 2
    dit: int = 32
    dit_layers: int = 2
    mixer_layers: int = 2
    dropout: float = 0.2
    gain: float = 4.0

    def eagle(self) -> dict[str, Any]:
        """Return what our record holds of the backbone."""
        return {
            "text_config": {
                "hidden_size": self.text, "intermediate_size": 2 * self.text, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": self.text // 4, "num_hidden_layers": self.text_layers,
                "max_window_layers": self.text_layers,
            },
            "vision_config": {
                "hidden_size": self.vision, "intermediate_size": 2 * self.vision, "num_attention_heads": 4,
                "num_hidden_layers": self.vision_layers,
            },
        }  # fmt: skip

    def config(self) -> dict[str, Any]:
        blocks = {
            "dropout": self.dropout, "final_dropout": True, "num_attention_heads": 4, "positional_embeddings": None,
        }  # fmt: skip
        dit = {
            **blocks, "num_layers": self.dit_layers, "attention_head_dim": self.dit // 4,
            "cross_attention_dim": self.text, "interleave_self_attention": True, "norm_type": "ada_norm",
            "output_dim": self.dit,
        }  # fmt: skip
        mixer = {**blocks, "num_layers": self.mixer_layers, "attention_head_dim": self.text // 4}
        head = {
            "action_dim": 32, "action_horizon": HORIZON, "add_pos_embed": True, "backbone_embedding_dim": self.text,
            "diffusion_model_cfg": dit, "hidden_size": self.dit, "input_embedding_dim": self.dit, "max_action_dim": 32,
            "max_num_embodiments": 32, "max_seq_len": 1024, "max_state_dim": 64, "model_dtype": "float32",
            "noise_beta_alpha": 1.5, "noise_beta_beta": 1.0, "noise_s": 0.999, "num_inference_timesteps": 4,
            "num_target_vision_tokens": 32, "num_timestep_buckets": 1000, "tune_diffusion_model": True,
            "tune_projector": True, "use_vlln": True, "vl_self_attention_cfg": mixer,
        }  # fmt: skip
        backbone = {
            "eagle_path": "none", "load_bf16": False, "project_to_dim": None, "reproject_vision": False,
            "select_layer": self.text_layers, "tune_llm": False, "tune_visual": True, "use_flash_attention": True,
        }  # fmt: skip
        return {
            "architectures": ["GR00T_N1_5"], "model_type": MODEL_TYPE, "backbone_cfg": backbone,
            "action_head_cfg": head, "action_horizon": HORIZON, "action_dim": 32, "compute_dtype": "bfloat16",
            "hidden_size": self.text, "torch_dtype": "bfloat16",
        }  # fmt: skip

    def model(self) -> ModelConfig:
        return parse(self.config(), self.eagle())


TINY = TinySpec()
# Large enough that arithmetic and not Python takes the time, on a CPU.
MID = TinySpec(text=512, text_layers=6, vision=384, vision_layers=6, dit=512, dit_layers=8)
SPECS = {"tiny": TINY, "mid": MID}


def make(directory: Path, name: str = "libero", seed: int = 0, side: int = 256, spec: TinySpec = TINY) -> Path:
    """Return `directory` with a random checkpoint of embodiment `name` and its manifest; see `write`."""
    directory.mkdir(parents=True, exist_ok=True)
    write(directory, name, seed, side, spec)
    record_directory(directory, f"{RANDOM}tiny", f"seed-{seed}", embodiment=name, eagle=spec.eagle())
    return directory


def write(directory: Path, name: str, seed: int = 0, side: int = 256, spec: TinySpec = TINY) -> None:
    """Write a random checkpoint of embodiment `name` for images of `side`² into `directory`."""
    robot = embodiment(name)
    (directory / "config.json").write_text(json.dumps(spec.config(), indent=2) + "\n")
    (directory / METADATA).parent.mkdir(exist_ok=True)
    (directory / METADATA).write_text(json.dumps({robot.tag: metadata(robot, side)}, indent=1))
    write_tokenizer(directory)
    save_file(tensors(spec.model(), seed, spec.gain), str(directory / SINGLE), metadata={"format": "pt"})
    (directory / SINGLE).chmod(0o644)  # as other files: a container may run as another user


def tensors(config: ModelConfig, seed: int, gain: float = TINY.gain) -> dict[str, torch.Tensor]:
    """Return name -> bf16 tensor of a whole random model."""
    from services.gr00t.model.loading import shapes

    rng = np.random.RandomState(seed)
    return {name: _random(name, shape, rng, gain) for name, shape in shapes(config).items()}


def metadata(robot: Embodiment, side: int) -> dict[str, Any]:
    """Return statistics of made-up data: states within ±1, arm actions within ±0.1, the gripper within 0.4 to 0.6.

    Such narrow ranges keep a random model's actions inside what an evaluator executes.
    """
    fingers = 2 if "x" in robot.state else 1  # LIBERO's state has both joints of its gripper
    state = {key: fingers if key == "gripper" else SIZES.get(key, 1) for key in robot.state}
    action = {key: SIZES.get(key, 1) for key in robot.action}

    def statistics(size: int, low: float, high: float) -> dict[str, list[float]]:
        values = {
            "min": low,
            "max": high,
            "mean": (low + high) / 2,
            "std": (high - low) / 2 / 2,
            "q01": low,
            "q99": high,
        }
        return {name: [value] * size for name, value in values.items()}

    def described(parts: dict[str, int], absolute: bool) -> dict[str, dict[str, Any]]:
        return {
            key: {"absolute": absolute, "rotation_type": ROTATIONS.get(key), "shape": [size], "continuous": True}
            for key, size in parts.items()
        }

    return {
        "statistics": {
            "state": {key: statistics(size, -1.0, 1.0) for key, size in state.items()},
            "action": {
                key: statistics(size, *((0.4, 0.6) if key.startswith("gripper") else (-0.1, 0.1)))
                for key, size in action.items()
            },
        },
        "modalities": {
            "video": {key: {"resolution": [side, side], "channels": 3, "fps": 20} for key in robot.cameras.values()},
            "state": described(state, True),
            "action": described(action, False),
        },
        "embodiment_tag": robot.tag,
    }


def _random(name: str, shape: tuple[int, ...], rng: np.random.RandomState, gain: float) -> torch.Tensor:
    noise = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    per_robot = name.endswith((".W", ".b"))
    fan_in = shape[-2] if per_robot and len(shape) == 3 else int(np.prod(shape[1:])) if len(shape) > 1 else 1
    if ("norm" in name or "vlln" in name) and name.endswith("weight") and len(shape) == 1:
        value = 1.0 + 0.1 * noise
    elif name.endswith((".bias", ".b")) or len(shape) == 1:
        value = 0.02 * noise
    elif "embed" in name or "future_tokens" in name:
        value = 0.1 * noise
    else:
        value = noise * fan_in**-0.5
    return (value * (gain if any(part in name for part in SCALED_UP) else 1.0)).to(torch.bfloat16)


# --- the tokenizer ------------------------------------------------------------------------------------------

SPACE = "Ġ"  # how byte-level vocabularies write a space
VOCABULARY = 151643  # ids below the marks'
_VISION = (
    "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end", "vision_start",
    "vision_end", "vision_pad", "image_pad", "video_pad",
)  # fmt: skip
_CODE = ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")
_PLAIN = (
    "<tool_call>", "</tool_call>", *(f"<|{name}|>" for name in _CODE), "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
_EAGLE = (
    "<IMG_CONTEXT>",
    *(f"<{close}{name}>" for name in ("img", "box", "quad", "ref", "interval") for close in ("", "/")),
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|{name}|>" for name in _VISION))
MARKS = (*_SPECIAL, *_PLAIN, *_EAGLE)  # added_tokens.json of upstream's package, in order of their ids
_TEXT = """
You are a helpful assistant system user assistant image put bowl on plate stove open drawer of the cabinet top middle
bottom push front turn wine bottle rack cream cheese pick up and place it in basket black from next between ramekin
cookie box wooden table center soup sauce butter milk tomato both moka pots mug white yellow microwave close left right
book caddy back compartment cup pan
"""
LEXICON = tuple(dict.fromkeys(_TEXT.split()))


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of Qwen2's kind: bytes, a few words, and Eagle's marks under their real ids."""
    # that build every known word, with and without a space before it, from the left
    pairs: dict[tuple[str, str], None] = {}
    for word in (*LEXICON, *(SPACE + word for word in LEXICON)):
        pairs |= {(word[:end], word[end]): None for end in range(1, len(word))}
    pieces = list(dict.fromkeys([*bytes_to_unicode().values(), *(left + right for left, right in pairs)]))
    pieces += [f"<{number}>" for number in range(VOCABULARY - len(pieces))]
    ids = {mark: VOCABULARY + index for index, mark in enumerate(MARKS)}
    special = [mark for mark in MARKS if mark not in _PLAIN]
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {str(number): {"content": mark, **flags, "special": mark in special} for mark, number in ids.items()}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": special[1:]}
    config = {
        **ends, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "unk_token": None,
        "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 16384,
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
    }  # fmt: skip
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, value in {
        "vocab.json": {piece: index for index, piece in enumerate(pieces)}, "added_tokens.json": ids,
        "tokenizer_config.json": config, "special_tokens_map.json": ends,
    }.items():  # fmt: skip
        (directory / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
