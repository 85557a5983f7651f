"""Read a checkpoint's config.json, preprocessor_config.json and dataset_statistics.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from services.openvla.checkpoint.oft import Oft
from services.openvla.checkpoint.preprocessing import read_preprocessing
from services.openvla.checkpoint.statistics import Stats, read_statistics
from vla_modelkit.checkpoint import CheckpointError, read_json

# The only supported values of config.json's other language model settings.
PLAIN_LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "pretraining_tp": 1,
}  # fmt: skip
SPACE_TOKEN = 29871  # Llama's "▁": training data had it between "Out:" and the action


@dataclass(frozen=True)
class Tower:
    """One vision transformer: its name in timm, side of its square input in pixels, activation, pixel statistics."""

    timm_id: str
    image_size: int
    act_layer: str | None
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str  # for images of another size, for example "bicubic"


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
    """An OpenVLA model. `action_vocab_size` is the vocabulary without its padding rows.

    oft: the parts of an OpenVLA-OFT model; `proprio_stats`: its statistics of the robot's state.
    """

    towers: tuple[Tower, Tower]
    llama: LlamaConfig
    pad_to_multiple_of: int
    n_action_bins: int
    norm_stats: Mapping[str, Stats]
    unusable: Mapping[str, str] = field(default_factory=dict)  # data set -> why its statistics cannot be used
    oft: Oft | None = None
    proprio_stats: Mapping[str, Stats] = field(default_factory=dict)

    @property
    def action_vocab_size(self) -> int:
        """The id one past the last action token."""
        return self.llama.vocab_size - self.pad_to_multiple_of


def load_config(directory: Path) -> ModelConfig:
    """Read a checkpoint's configuration. Raises CheckpointError if it is not an OpenVLA checkpoint."""
    raw = read_json(directory / "config.json")
    if raw.get("model_type") != "openvla":
        raise CheckpointError(
            f"{directory / 'config.json'} has model_type {raw.get('model_type')!r}; expected 'openvla': give the "
            "directory of an OpenVLA checkpoint in Hugging Face's format"
        )
    _check_supported(raw, directory)
    statistics = read_statistics(raw, directory)
    text = raw.get("text_config") or {}
    shape = {name: text[name] for name in LlamaConfig.__dataclass_fields__ if name in text}
    return ModelConfig(
        towers=_towers(raw, directory),
        llama=LlamaConfig(**shape),
        pad_to_multiple_of=int(raw.get("pad_to_multiple_of", 64)),
        n_action_bins=int(raw.get("n_action_bins", 256)),
        norm_stats=statistics.action,
        unusable=statistics.unusable,
        oft=statistics.oft,
        proprio_stats=statistics.proprio,
    )


def _check_supported(raw: dict, directory: Path) -> None:
    expected = {
        "use_fused_vision_backbone": (True, "openvla-v01, with one vision tower, is another model"),
        "image_resize_strategy": ("resize-naive", "the published OpenVLA-7B checkpoints use it"),
    }
    for name, (value, reason) in expected.items():
        if raw.get(name) != value:
            raise CheckpointError(f"{directory}: {name} is {raw.get(name)!r}; this engine expects {value!r} ({reason})")
    text = raw.get("text_config") or {}
    for name, plain in PLAIN_LLAMA.items():
        if text.get(name, plain) not in (plain, None):
            raise CheckpointError(
                f"{directory}: text_config has {name} {text[name]!r}; expected {plain!r}, as in the Llama-2 of "
                "OpenVLA-7B"
            )


def _towers(raw: dict, directory: Path) -> tuple[Tower, Tower]:
    ids, sizes = raw.get("timm_model_ids"), raw.get("image_sizes")
    acts = raw.get("timm_override_act_layers") or [None, None]
    if not all(isinstance(column, list) and len(column) == 2 for column in (ids, sizes, acts)):
        raise CheckpointError(
            f"{directory}: expected two entries each of timm_model_ids and image_sizes in config.json: the checkpoint "
            "is incomplete, download it again"
        )
    if sizes[0] != sizes[1]:
        raise CheckpointError(f"{directory}: image_sizes are {sizes}; expected the same size for both towers")
    towers = read_preprocessing(directory)
    if towers[0].size != sizes[0]:
        raise CheckpointError(
            f"{directory}: config.json has image_sizes {sizes}, preprocessor_config.json input_sizes {towers[0].size}"
            "; expected the same size: use both files of one checkpoint"
        )
    return tuple(
        Tower(timm_id, tower.size, act, tower.mean, tower.std, tower.interpolation)
        for timm_id, act, tower in zip(ids, acts, towers, strict=True)
    )
