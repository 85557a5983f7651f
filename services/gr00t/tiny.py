"""A small random checkpoint in the published format, for tests and demonstrations: 10 million weights.

Made by upstream's classes; tokenizer, picture size and patches are the real ones, and so is every transform. Only the
Eagle model's sizes have no place in the format, which takes them from upstream's package: they are in our record.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from services.gr00t import upstream
from services.gr00t.attention import Attention, backbone
from services.gr00t.checkpoint import METADATA
from services.gr00t.embodiments import HORIZON, Embodiment, embodiment
from vla_modelkit.getting import record_random

WIDTH = 64
EAGLE = {
    "text_config": {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "max_window_layers": 3,
    },
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    },
}
BACKBONE = {
    "eagle_path": "none",
    "load_bf16": False,
    "project_to_dim": None,
    "reproject_vision": False,
    "select_layer": 2,
    "tune_llm": False,
    "tune_visual": True,
    "use_flash_attention": True,
}
_BLOCKS = {
    "dropout": 0.2,
    "final_dropout": True,
    "num_attention_heads": 4,
    "num_layers": 2,
    "positional_embeddings": None,
}
HEAD = {
    "action_dim": 32,
    "action_horizon": HORIZON,
    "add_pos_embed": True,
    "backbone_embedding_dim": WIDTH,
    "diffusion_model_cfg": {
        **_BLOCKS,
        "attention_head_dim": 8,
        "cross_attention_dim": WIDTH,
        "interleave_self_attention": True,
        "norm_type": "ada_norm",
        "output_dim": 32,
    },
    "hidden_size": 32,
    "input_embedding_dim": 32,
    "max_action_dim": 32,
    "max_num_embodiments": 32,
    "max_seq_len": 1024,
    "max_state_dim": 64,
    "model_dtype": "float32",
    "noise_beta_alpha": 1.5,
    "noise_beta_beta": 1.0,
    "noise_s": 0.999,
    "num_inference_timesteps": 4,
    "num_target_vision_tokens": 32,
    "num_timestep_buckets": 1000,
    "tune_diffusion_model": True,
    "tune_projector": True,
    "use_vlln": True,
    "vl_self_attention_cfg": {**_BLOCKS, "attention_head_dim": 16},
}
ROTATIONS = {"eef_rotation": "euler_angles_rpy", "eef_rotation_delta": "euler_angles_rpy"}
SIZES = {"eef_position": 3, "eef_rotation": 3, "eef_position_delta": 3, "eef_rotation_delta": 3}
LOUD = 4.0  # gain of embeddings, queries and keys: else attention is flat, and every prompt leads to the same action


def make(folder: Path, name: str = "libero", seed: int = 0, side: int = 256) -> Path:
    """Returns `folder` with a random checkpoint of embodiment `name` and its manifest; see `write`."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, name, seed, side)
    record_random(folder, "tiny", seed, embodiment=name, eagle=EAGLE)
    return folder


def write(folder: Path, name: str, seed: int = 0, side: int = 256) -> None:
    """Writes a random checkpoint of embodiment `name` for pictures of `side`² into `folder`.

    Raises UpstreamMissing: its weights are made by upstream's classes.
    """
    upstream.prepare()
    one = embodiment(name)
    _model(seed).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # as other files: a container may run as another user
    (folder / METADATA).parent.mkdir(exist_ok=True)
    (folder / METADATA).write_text(json.dumps({one.tag: metadata(one, side)}, indent=1))


def metadata(one: Embodiment, side: int) -> dict[str, Any]:
    """Returns statistics of made-up data: states within ±1, arm actions within ±0.1, the gripper within 0.4 to 0.6.

    Such narrow ranges keep a random model's actions inside what an evaluator executes.
    """
    state = {key: 2 if key == "gripper" else SIZES.get(key, 1) for key in one.state}  # LIBERO: both finger joints
    action = {key: SIZES.get(key, 1) for key in one.action}
    ranges = {key: (0.4, 0.6) if key.startswith("gripper") else (-0.1, 0.1) for key in action}
    return {
        "statistics": {
            "state": {key: _statistics(size, -1.0, 1.0) for key, size in state.items()},
            "action": {key: _statistics(size, *ranges[key]) for key, size in action.items()},
        },
        "modalities": {
            "video": {key: {"resolution": [side, side], "channels": 3, "fps": 20} for key in one.cameras.values()},
            "state": {key: _modality(key, size, True) for key, size in state.items()},
            "action": {key: _modality(key, size, False) for key, size in action.items()},
        },
        "embodiment_tag": one.tag,
    }


def _model(seed: int):
    import torch

    with contextlib.redirect_stdout(sys.stderr), backbone(Attention("sdpa"), EAGLE), torch.random.fork_rng():
        from gr00t.model.gr00t_n1 import GR00T_N1_5, GR00T_N1_5_Config

        torch.manual_seed(seed)
        config = GR00T_N1_5_Config(
            backbone_cfg=BACKBONE,
            action_head_cfg=HEAD,
            action_horizon=HORIZON,
            action_dim=HEAD["action_dim"],
            compute_dtype="bfloat16",
            hidden_size=WIDTH,
            torch_dtype="bfloat16",
        )
        model = GR00T_N1_5(config, local_model_path="")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(part in name for part in ("embed_tokens", "q_proj", "k_proj", "to_q", "to_k", "action_decoder")):
                weight *= LOUD
    return model.to(torch.bfloat16)


def _statistics(size: int, low: float, high: float) -> dict[str, list[float]]:
    middle, reach = (low + high) / 2, (high - low) / 2
    values = {"min": low, "max": high, "mean": middle, "std": reach / 2, "q01": low, "q99": high}
    return {name: [value] * size for name, value in values.items()}


def _modality(key: str, size: int, absolute: bool) -> dict[str, Any]:
    return {"absolute": absolute, "rotation_type": ROTATIONS.get(key), "shape": [size], "continuous": True}
