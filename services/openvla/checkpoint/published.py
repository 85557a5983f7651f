"""The published checkpoints: OpenVLA and OpenVLA-OFT, fine-tuned on each LIBERO suite, and the base model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
# suite -> (repository, commit)
REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "libero_spatial": ("openvla/openvla-7b-finetuned-libero-spatial", "962318cec55ac10993ff0f5f43eda9a270b4c873"),
    "libero_object": ("openvla/openvla-7b-finetuned-libero-object", "287d6cfdf12d07b1449505f66d9bf3550257e9b3"),
    "libero_goal": ("openvla/openvla-7b-finetuned-libero-goal", "fa5ae1e7509348889295bba8e08621d8b55e9baf"),
    "libero_10": ("openvla/openvla-7b-finetuned-libero-10", "80970322773f81baa2e22fe495d0487b93a05cfa"),
}
BASE = ("openvla/openvla-7b", "47a0ec7fc4ec123775a391911046cf33cf9ed83f")  # with upstream's code
PUBLISHED = {**REPOSITORIES, "base": BASE}
# OpenVLA-OFT (openvla-oft's LIBERO.md): suite -> (repository, commit)
OFT_REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "libero_spatial": (
        "moojink/openvla-7b-oft-finetuned-libero-spatial", "6d0231af0e48c5985f1ff86908f4674b84bc049b"),
    "libero_object": ("moojink/openvla-7b-oft-finetuned-libero-object", "4c89574e1c538b6c102f43f0526d60a9d3650148"),
    "libero_goal": ("moojink/openvla-7b-oft-finetuned-libero-goal", "c2d0f9fbbd82674683b397ff923168a12f6a307b"),
    "libero_10": ("moojink/openvla-7b-oft-finetuned-libero-10", "95220f9a3421a7ff12d4218e73d09ade830fa9a3"),
}  # fmt: skip
OFT_COMBINED = (  # trained on all four suites
    "moojink/openvla-7b-oft-finetuned-libero-spatial-object-goal-10", "638918f3d1c2e43a39a8a20772bdb8b91835e4b7"
)  # fmt: skip
COMMITS = dict([*PUBLISHED.values(), *OFT_REPOSITORIES.values(), OFT_COMBINED])  # of all published repositories
# Repository -> images of an observation, which no checkpoint states (num_images_in_input of run_libero_eval.py).
OFT_IMAGES: Mapping[str, int] = dict.fromkeys(dict([*OFT_REPOSITORIES.values(), OFT_COMBINED]), 2)
DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "tokenizer.model", "*.py", "*_checkpoint.pt")
REMOTE_CODE = ("configuration_prismatic.py", "modeling_prismatic.py", "processing_prismatic.py")


def check_remote_code(directory: Path) -> None:
    """Raise ValueError if files of upstream's code are missing in a directory."""
    if missing := [name for name in REMOTE_CODE if not (directory / name).is_file()]:
        raise ValueError(f"{directory} has no {', '.join(missing)}; expected openvla's directory prismatic/extern/hf")


def keys_of(suite: str) -> tuple[str, str]:
    """Return the possible keys of a suite's statistics, the preferred one first."""
    return suite, f"{suite}_no_noops"


def suites_of(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the suites of statistics' keys; empty for a checkpoint of other data."""
    keys = set(keys)
    return tuple(suite for suite in SUITES if keys & set(keys_of(suite)))
