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
# OpenVLA-OFT (openvla-oft's LIBERO.md): suite -> repository, of its branch "main"; a download records the commit.
OFT_REPOSITORIES: Mapping[str, str] = {
    "libero_spatial": "moojink/openvla-7b-oft-finetuned-libero-spatial",
    "libero_object": "moojink/openvla-7b-oft-finetuned-libero-object",
    "libero_goal": "moojink/openvla-7b-oft-finetuned-libero-goal",
    "libero_10": "moojink/openvla-7b-oft-finetuned-libero-10",
}
OFT_COMBINED = "moojink/openvla-7b-oft-finetuned-libero-spatial-object-goal-10"  # trained on all four suites
# Repository -> images of an observation, which no checkpoint states (num_images_in_input of run_libero_eval.py).
OFT_IMAGES: Mapping[str, int] = dict.fromkeys([*OFT_REPOSITORIES.values(), OFT_COMBINED], 2)
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
