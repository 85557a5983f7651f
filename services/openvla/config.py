"""What a checkpoint folder says about its model: config.json, preprocessor_config.json, dataset_statistics.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPACE_TOKEN = 29871  # Llama's "▁": training data had it between "Out:" and the action


class CheckpointError(ValueError):
    """A checkpoint cannot be used as it is; the text says what is wrong and what to do."""


@dataclass(frozen=True)
class Tower:
    """One vision transformer: its name in timm, side of its square input in pixels, activation, pixel statistics."""

    timm_id: str
    image_size: int
    act_layer: str | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str  # "bicubic": how a picture of another size is resized


@dataclass(frozen=True)
class LlamaConfig:
    """Shape of the language model. Defaults are those of Llama-2 7B in transformers: a config.json leaves them out."""

    vocab_size: int = 32064
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048
    bos_token_id: int = 1

    def __post_init__(self):
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.hidden_size % self.num_attention_heads or self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"text_config: {self.hidden_size} features do not divide among {self.num_attention_heads} heads and "
                f"{self.num_key_value_heads} key-value heads"
            )

    @property
    def head_dim(self) -> int:
        """Features per attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class ModelConfig:
    """One OpenVLA model. `action_vocab_size` is the vocabulary without the rows that pad it to a multiple."""

    towers: tuple[Tower, Tower]
    llama: LlamaConfig
    pad_to_multiple_of: int
    n_action_bins: int
    norm_stats: Mapping[str, Mapping[str, Any]]

    @property
    def action_vocab_size(self) -> int:
        """The id one past the last action token."""
        return self.llama.vocab_size - self.pad_to_multiple_of


def load_config(folder: Path) -> ModelConfig:
    """Returns the model that `folder` describes. Raises CheckpointError where it is not an OpenVLA checkpoint."""
    raw = read_json(folder / "config.json")
    if raw.get("model_type") != "openvla":
        raise CheckpointError(
            f"{folder / 'config.json'} has model_type {raw.get('model_type')!r}; expected 'openvla': give the folder "
            "of an OpenVLA checkpoint in Hugging Face's format"
        )
    _check_supported(raw, folder)
    pixels = read_json(folder / "preprocessor_config.json")
    text = raw.get("text_config") or {}
    known = {name: text[name] for name in LlamaConfig.__dataclass_fields__ if name in text}
    return ModelConfig(
        towers=_towers(raw, pixels, folder),
        llama=LlamaConfig(**known),
        pad_to_multiple_of=int(raw.get("pad_to_multiple_of", 64)),
        n_action_bins=int(raw.get("n_action_bins", 256)),
        norm_stats=_norm_stats(raw, folder),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object. Raises CheckpointError where the file is missing or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing; a checkpoint is a folder with config.json, *.safetensors and tokenizer files: "
            "get one with `./lab checkpoint openvla`"
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; download the checkpoint again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def _check_supported(raw: dict, folder: Path) -> None:
    expected = {
        "use_fused_vision_backbone": (True, "openvla-v01 with its single vision tower is another model"),
        "image_resize_strategy": ("resize-naive", "the published OpenVLA-7B checkpoints use it"),
    }
    for name, (value, why) in expected.items():
        if raw.get(name) != value:
            raise CheckpointError(f"{folder}: {name} is {raw.get(name)!r}; this engine expects {value!r} ({why})")
    text = raw.get("text_config") or {}
    if text.get("model_type", "llama") != "llama" or text.get("rope_scaling") or text.get("attention_bias"):
        raise CheckpointError(
            f"{folder}: text_config describes a {text.get('model_type', 'llama')!r} model that is no plain Llama; "
            "this engine runs Llama-2 as OpenVLA-7B has it"
        )


def _towers(raw: dict, pixels: dict, folder: Path) -> tuple[Tower, Tower]:
    ids, sizes = raw.get("timm_model_ids"), raw.get("image_sizes")
    acts = raw.get("timm_override_act_layers") or [None, None]
    means, stds = pixels.get("means"), pixels.get("stds")
    ways = pixels.get("interpolations") or ["bicubic", "bicubic"]
    columns = (ids, sizes, acts, means, stds, ways)
    if not all(isinstance(column, list) and len(column) == 2 for column in columns):
        raise CheckpointError(
            f"{folder}: expected two entries each of timm_model_ids, image_sizes (config.json), means and stds "
            "(preprocessor_config.json): the checkpoint is incomplete, download it again"
        )
    towers = tuple(
        Tower(one, int(size), act, tuple(mean), tuple(std), way)
        for one, size, act, mean, std, way in zip(*columns, strict=True)
    )
    if towers[0].image_size != towers[1].image_size:
        raise CheckpointError(f"{folder}: image_sizes are {sizes}; the two towers see one picture of one size")
    return towers


def _norm_stats(raw: dict, folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Returns dataset -> {"q01", "q99", "mask"}: dataset_statistics.json (fine-tuned), else norm_stats (published)."""
    path = folder / "dataset_statistics.json"
    found = read_json(path) if path.is_file() else raw.get("norm_stats")
    if not found:
        raise CheckpointError(
            f"{folder} has neither dataset_statistics.json nor norm_stats in config.json; without them tokens cannot "
            "be turned into actions: copy the file from the run that trained the model"
        )
    return {key: _action_stats(key, value, folder) for key, value in sorted(found.items())}


def _action_stats(key: str, value: Any, folder: Path) -> Mapping[str, Any]:
    action = value.get("action") if isinstance(value, dict) else None
    if not isinstance(action, dict) or not {"q01", "q99"} <= action.keys():
        raise CheckpointError(f"{folder}: statistics {key!r} have no action q01 and q99; expected seven numbers each")
    mask = action.get("mask", [True] * len(action["q01"]))
    if not len(action["q01"]) == len(action["q99"]) == len(mask):
        raise CheckpointError(f"{folder}: statistics {key!r}: q01, q99 and mask differ in length")
    return {"q01": tuple(action["q01"]), "q99": tuple(action["q99"]), "mask": tuple(bool(one) for one in mask)}
