"""OpenVLA's published checkpoints: one fine-tuned model per LIBERO suite, and their base model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# suite -> (repository, commit)
REPOSITORIES: Mapping[str, tuple[str, str]] = {
    "libero_spatial": ("openvla/openvla-7b-finetuned-libero-spatial", "962318cec55ac10993ff0f5f43eda9a270b4c873"),
    "libero_object": ("openvla/openvla-7b-finetuned-libero-object", "287d6cfdf12d07b1449505f66d9bf3550257e9b3"),
    "libero_goal": ("openvla/openvla-7b-finetuned-libero-goal", "fa5ae1e7509348889295bba8e08621d8b55e9baf"),
    "libero_10": ("openvla/openvla-7b-finetuned-libero-10", "80970322773f81baa2e22fe495d0487b93a05cfa"),
}
BASE = ("openvla/openvla-7b", "47a0ec7fc4ec123775a391911046cf33cf9ed83f")  # with upstream's code
PUBLISHED = {**REPOSITORIES, "base": BASE}
DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "tokenizer.model", "*.py")
REMOTE_CODE = ("configuration_prismatic.py", "modeling_prismatic.py", "processing_prismatic.py")


def check_remote_code(directory: Path) -> None:
    """Raise ValueError if files of upstream's code are missing in a directory."""
    if missing := [name for name in REMOTE_CODE if not (directory / name).is_file()]:
        raise ValueError(f"{directory} has no {', '.join(missing)}; expected openvla's directory prismatic/extern/hf")
