"""Network sizes: those of config.json, and the constants of upstream's package.

The file has the sizes of the action head. Those of the Eagle backbone are only in upstream's package
(gr00t/model/backbone/eagle2_hg_model/config.json at 4af2b622): they are constants here; a small checkpoint's own
are in our record. Unsupported settings raise an error that names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_modelkit.checkpoint import CheckpointError, read_json, read_record

MODEL_TYPE = "gr00t_n1_5"
ADAPTER = "adapter_config.json"  # LoRA's file; a lone adapter has no config.json
IMAGE_SIDE = 224  # pixels of the square that the vision tower sees
VISION = {  # of transformers.SiglipVisionConfig
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_channels": 3, "image_size": IMAGE_SIDE, "patch_size": 14, "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh", "attention_dropout": 0.0,
}  # fmt: skip
TEXT = {  # of transformers.Qwen3Config; upstream keeps the first `select_layer` of its 28 layers
    "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151680, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0,
    "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """A stack of transformer blocks: `layers` of `heads` heads, each `head_dim` wide. dropout: in training."""

    layers: int
    heads: int
    head_dim: int
    dropout: float = 0.0

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True)
class HeadConfig:
    """The flow-matching action head."""

    dit: Blocks  # the diffusion transformer
    mixer: Blocks  # self-attention over the backbone's features
    features: int  # numbers per token of the backbone
    width: int  # numbers per token of the diffusion transformer
    hidden: int  # numbers per token inside the robots' encoders and decoder
    dit_out: int  # numbers per token that the decoder takes
    robots: int  # that have encoders and a decoder of their own
    state_dim: int  # padded
    action_dim: int  # padded
    horizon: int  # actions in a chunk
    future_tokens: int  # learnt ones, between state and actions
    positions: int
    time_buckets: int  # discrete values of the flow's time
    steps: int  # Euler steps that config.json names


@dataclass(frozen=True)
class ModelConfig:
    """The network: keyword arguments of transformers' SigLIP and Qwen3 configurations, and the head."""

    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    head: HeadConfig

    @property
    def patches(self) -> int:
        """Tokens per image in the prompt."""
        return (self.vision["image_size"] // self.vision["patch_size"]) ** 2


N1_5 = ModelConfig(  # as published
    VISION,
    {**TEXT, "num_hidden_layers": 12},
    HeadConfig(Blocks(16, 32, 48), Blocks(4, 32, 64), 2048, 1536, 1024, 1024, 32, 64, 32, 16, 32, 1024, 1000, 4),
)


def load_config(directory: Path) -> ModelConfig:
    """Read the network of a checkpoint directory's config.json.

    Raises CheckpointError for another model, and for settings that this engine does not support.
    """
    raw = read_json(directory / "config.json")
    check_model_type(directory, raw)
    try:
        return parse(raw, read_record(directory).get("eagle", {}))
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / 'config.json'} has no {error}; download the checkpoint again") from error


def check_model_type(directory: Path, raw: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming the model type, unless the directory is a GR00T N1.5 checkpoint."""
    if raw.get("model_type") != MODEL_TYPE:
        adapter = (directory / ADAPTER).is_file()
        kind = "an adapter alone, to be merged into its base model" if adapter else "another model"
        raise CheckpointError(
            f"{directory} holds a model of type {raw.get('model_type')!r}, {kind}; expected {MODEL_TYPE!r} (GR00T N1, "
            "N1.6 and N1.7 have other networks): get one with `./lab checkpoint gr00t --suite libero_goal`"
        )


def parse(raw: Mapping[str, Any], eagle: Mapping[str, Any]) -> ModelConfig:
    """Parse config.json. eagle: sizes of the backbone that differ from the published ones."""
    backbone, head = raw["backbone_cfg"], raw["action_head_cfg"]
    dit, mixer = head["diffusion_model_cfg"], head["vl_self_attention_cfg"]
    text = {**TEXT, **eagle.get("text_config", {}), "num_hidden_layers": backbone["select_layer"]}
    supported = {  # section -> (its settings, the only supported values)
        "backbone_cfg": (backbone, {"project_to_dim": None, "reproject_vision": False}),
        "action_head_cfg": (head, {"use_vlln": True, "add_pos_embed": True}),
        "diffusion_model_cfg": (dit, {"norm_type": "ada_norm", "interleave_self_attention": True}),
        "vl_self_attention_cfg": (mixer, {}),
    }
    for section, (values, expected) in supported.items():
        for name, value in {**expected, "positional_embeddings": None}.items():
            if values.get(name, value) != value:
                raise CheckpointError(
                    f"config.json asks for {section}.{name} = {values[name]!r}; this engine is made for {value!r}, as "
                    "published N1.5 checkpoints have it"
                )
    return ModelConfig(
        vision={**VISION, **eagle.get("vision_config", {})},
        text=text,
        head=HeadConfig(
            dit=_blocks(dit),
            mixer=_blocks(mixer),
            features=head["backbone_embedding_dim"],
            width=head["input_embedding_dim"],
            hidden=head["hidden_size"],
            dit_out=dit["output_dim"],
            robots=head["max_num_embodiments"],
            state_dim=head["max_state_dim"],
            action_dim=head["action_dim"],
            horizon=head["action_horizon"],
            future_tokens=head["num_target_vision_tokens"],
            positions=head["max_seq_len"],
            time_buckets=head["num_timestep_buckets"],
            steps=head["num_inference_timesteps"],
        ),
    )


def _blocks(values: Mapping[str, Any]) -> Blocks:
    dropout = float(values.get("dropout", 0.0))
    return Blocks(values["num_layers"], values["num_attention_heads"], values["attention_head_dim"], dropout)
