"""Read a checkpoint's config.json, preprocessor_config.json and dataset_statistics.json.

Upstream's image processor (openvla: prismatic/extern/hf/processing_prismatic.py) derives its transform from `means`,
`stds` and `interpolations`, and then overrides it with every `tvf_*` field of the file. Published
checkpoints have such fields with other values: their converter wrote them in bfloat16, so DINOv2's mean is
0.484375, 0.455078125, 0.40625 there, and the models have been served with these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.openvla.checkpoint.oft import Oft
from services.openvla.checkpoint.statistics import Stats, read_statistics
from vla_modelkit.checkpoint import CheckpointError, read_json

# The only supported values of config.json's other language model settings.
PLAIN_LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
    "tie_word_embeddings": False, "pretraining_tp": 1,
}  # fmt: skip
PREPROCESSOR = "preprocessor_config.json"
RESAMPLINGS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # the index is Pillow's number
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
    statistics = read_statistics(raw, directory)
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


def _towers(raw: dict, directory: Path) -> tuple[Tower, Tower]:
    ids, sizes = raw.get("timm_model_ids"), raw.get("image_sizes")
    acts = raw.get("timm_override_act_layers") or [None, None]
    if not all(isinstance(column, list) and len(column) == 2 for column in (ids, sizes, acts)):
        raise CheckpointError(
            f"{directory}: expected two entries each of timm_model_ids and image_sizes in config.json: the checkpoint "
            "is incomplete, download it again"
        )
    pixels = read_preprocessing(directory)
    if {*sizes, *(tower["image_size"] for tower in pixels)} != {sizes[0]}:
        raise CheckpointError(
            f"{directory}: config.json has image_sizes {sizes}, {PREPROCESSOR} input_sizes {pixels[0]['image_size']}; "
            "expected one size for both towers: use both files of one checkpoint"
        )
    return tuple(
        Tower(timm_id=timm_id, act_layer=act, **tower) for timm_id, act, tower in zip(ids, acts, pixels, strict=True)
    )


def read_preprocessing(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return image_size, mean, std and interpolation of both towers, as upstream's processor uses them.

    Raises CheckpointError, naming the field, for unsupported values.
    """
    raw = read_json(directory / PREPROCESSOR)

    def require(is_supported: bool, name: str, actual: Any, expected: str) -> None:
        if not is_supported:
            raise CheckpointError(
                f"{directory / PREPROCESSOR}: {name}: {actual}; expected {expected}: the checkpoint is of another "
                "model, or incomplete"
            )

    def triple(values: Any, name: str) -> tuple[float, ...]:
        is_triple = isinstance(values, Sequence) and len(values) == 3
        require(is_triple and all(type(v) in (int, float) for v in values), name, repr(values), "three numbers")
        return tuple(float(value) for value in values)

    def side(size: Any, name: str) -> int:  # S of [S, S] or [3, S, S]
        is_square = (
            isinstance(size, list) and len(size) in (2, 3) and type(size[-1]) is int and size[-2] == size[-1] > 0
        )
        require(is_square, name, repr(size), "a square")
        return size[-1]

    strategy = raw.get("image_resize_strategy", "letterbox")  # upstream's default
    require(strategy == "resize-naive", "image_resize_strategy", repr(strategy), "'resize-naive', as in OpenVLA-7B")
    require(not raw.get("tvf_do_letterbox"), "tvf_do_letterbox", "true", "false: OpenVLA-7B sees stretched images")
    for name in ("input_sizes", "interpolations", "means", "stds"):
        value = raw.get(name)
        is_pair = isinstance(value, list) and len(value) == 2
        require(is_pair, name, repr(value), "two entries, one for each vision tower")
    overrides = {}
    for name in ("tvf_resize_params", "tvf_crop_params", "tvf_normalize_params"):
        value = overrides[name] = raw.get(name, [{}, {}])
        is_pair = isinstance(value, list) and len(value) >= 2 and all(isinstance(entry, dict) for entry in value)
        require(is_pair, name, repr(value), "two objects, one for each vision tower")
    towers = []
    for index in range(2):
        resize, crop, normalise = (value[index] for value in overrides.values())
        size = side(raw["input_sizes"][index], "input_sizes")
        resized = side(resize.get("size", [size, size]), "tvf_resize_params")
        cropped = side(crop.get("output_size", [resized, resized]), "tvf_crop_params")
        actual = f"{size} pixels resized to {resized} and cropped to {cropped}, max_size {resize.get('max_size')}"
        is_plain = size == resized == cropped and resize.get("max_size") is None
        require(is_plain, "tvf_resize_params", actual, "one size throughout and max_size null")
        value = resize.get("interpolation", raw["interpolations"][index])
        filter_name = RESAMPLINGS[value] if type(value) is int and 0 <= value < len(RESAMPLINGS) else value
        filters = f"one of {', '.join(RESAMPLINGS)}, or Pillow's number of it"
        require(filter_name in RESAMPLINGS, "interpolations", repr(value), filters)
        mean = triple(normalise.get("mean", raw["means"][index]), f"mean of tower {index + 1}")
        std = triple(normalise.get("std", raw["stds"][index]), f"std of tower {index + 1}")
        require(0.0 not in std, "std", repr(list(std)), "numbers other than 0")
        towers.append({"image_size": size, "mean": mean, "std": std, "interpolation": filter_name})
    seen = [(tower["image_size"], tower["interpolation"]) for tower in towers]
    require(seen[0] == seen[1], "interpolations", f"the towers have {seen[0]} and {seen[1]}", "the same for both")
    return towers[0], towers[1]
