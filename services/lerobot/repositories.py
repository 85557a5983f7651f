"""Repositories that a checkpoint names: the backbone of its config, the tokenizers of its processors.

They are stored inside the checkpoint, in repositories/OWNER/NAME, so a service downloads nothing and a checkpoint can
be copied. LeRobot gets a copy of the JSON files in which each name is replaced by that path.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vla_modelkit.checkpoint import SINGLE, CheckpointError, read_json, read_record

SUBDIRECTORY = "repositories"
PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
BASE = "base_model_name_or_path"  # of an adapter
JSON_FILES = ("config.json", PREPROCESSOR, POSTPROCESSOR)

# Fields that name a repository → whether LeRobot reads its weights.
_TEXT_ONLY = (
    "action_tokenizer_name", "action_tokenizer_path", "discrete_action_tokenizer", "paligemma_tokenizer_name",
    "processor_name", "text_tokenizer_name", "tokenizer_name", "vlm_base",
)  # fmt: skip
_WITH_WEIGHTS = (
    "base_model_path", "checkpoint_path", "jepa_encoder_name", "pretrained_name_or_path", "qwen_model_name",
    "text_encoder_name", "vision_encoder_name", "vlm_model_name",
)  # fmt: skip
FIELDS = dict.fromkeys(_TEXT_ONLY, False) | dict.fromkeys(_WITH_WEIGHTS, True)

# Repository → the commit to download. Others are downloaded as they are. Each is `main` as public projects recorded it,
# in paths of the hub's cache (models--OWNER--NAME/snapshots/COMMIT); see huggingface.co/OWNER/NAME/commit/COMMIT.
REVISIONS = {
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": "7b375e1b73b11138ff12fe22c8f2822d8fe03467",
    "OpenGVLab/InternVL3-1B-hf": "014c0583a0d4bedf29fbe2dbff4f865eb998e171",
    "Qwen/Qwen2.5-VL-3B-Instruct": "66285546d2b821cf421d4f5eb2576359d3770cd3",
    "Qwen/Qwen3-VL-2B-Instruct": "89644892e4d85e24eaac8bacfd4f463576704203",
    "facebook/bart-large": "cb48c1365bd826bd521f650dc2e0940aee54720c",
    "facebook/vjepa2-vitl-fpc64-256": "b3c1679b7c34d3255ef3547f27c7b226aefab26f",
    "google/paligemma-3b-pt-224": "35e4f46485b4d07967e7e9935bc3786aad50687c",
    "nvidia/Cosmos-Reason2-2B": "9ce19a195e423419c349abfc86fd07178b230561",
    "openai/clip-vit-base-patch16": "57c216476eefef5ab752ec549e440a49ae4ae5f3",
    "physical-intelligence/fast": "ec4d7aa71691cac0b8bed6942be45684db2110f4",
}


def repository_directory(directory: Path, repository: str) -> Path:
    """Return where a checkpoint stores `repository`."""
    return directory / SUBDIRECTORY / repository


def named_repositories(directory: Path) -> dict[str, tuple[str, bool]]:
    """Return repository → (field that names it, whether its weights are needed). Raises CheckpointError."""
    named: dict[str, tuple[str, bool]] = {}
    for file in (name for name in JSON_FILES if (directory / name).is_file()):
        content = read_json(directory / file)
        for field, value in _members(content):
            if field == "jepa_encoder_name" and content.get("enable_world_model") is False:
                continue
            if field in FIELDS and isinstance(value, str) and value.count("/") == 1 and not Path(value).is_dir():
                # smolvla's checkpoints contain the weights of their backbone
                needs_weights = FIELDS[field] and content.get("load_vlm_weights") is not False
                _, before = named.get(value, ("", False))
                named[value] = (field, needs_weights or before)
    return named


def check_repositories(directory: Path) -> None:
    """Raise CheckpointError for a repository that is neither in the checkpoint nor in the hub's local cache."""
    from huggingface_hub import try_to_load_from_cache

    for repository, (field, _) in named_repositories(directory).items():
        names = ("config.json", "tokenizer_config.json", "processor_config.json", "tokenizer.json")
        is_cached = any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
        if not is_cached and not repository_directory(directory, repository).is_dir():
            source = str(read_record(directory).get("repo", ""))
            flags = f"--repo {source} --name {directory.name}" if "/" in source else f"--name {directory.name}"
            raise CheckpointError(
                f"the checkpoint needs {repository} ({field}), which is not downloaded; run "
                f"`./lab checkpoint lerobot {flags}`"
            )


@contextmanager
def local_names(directory: Path, dropped: Collection[str] = (), base: Path | None = None) -> Iterator[Path]:
    """Yield the checkpoint with its repositories' names replaced by paths, without the config's fields `dropped`.

    base: the checkpoint whose weights it gets instead of its own. That is a temporary copy of its JSON files, with
    links to the others, or itself if nothing changes.
    """
    stored = {name: repository_directory(directory, name) for name in named_repositories(directory)}
    paths = {name: str(path.absolute()) for name, path in stored.items() if path.is_dir()}
    if not paths and not dropped and not base:
        yield directory
        return
    files = {path.name: path for path in directory.iterdir()}
    if base:
        files[SINGLE] = base / SINGLE
    with tempfile.TemporaryDirectory(prefix="vla-lab-lerobot-") as name:
        draft = Path(name)
        for path in files.values():
            if path.name in JSON_FILES:
                content = _replaced(read_json(path), paths)
                if path.name == "config.json":
                    content = {field: value for field, value in content.items() if field not in dropped}
                (draft / path.name).write_text(json.dumps(content), encoding="utf-8")
            else:
                (draft / path.name).symlink_to(path.absolute())
        yield draft


def _members(content: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of every member of nested JSON objects."""
    for name, value in content.items() if isinstance(content, Mapping) else ():
        yield name, value
        yield from _members(value)
    for value in content if isinstance(content, list) else ():
        yield from _members(value)


def _replaced(content: Any, paths: Mapping[str, str]) -> Any:
    """Return JSON content whose repository fields hold paths."""
    if isinstance(content, dict):
        return {
            name: paths.get(value, value) if name in FIELDS and isinstance(value, str) else _replaced(value, paths)
            for name, value in content.items()
        }
    return [_replaced(value, paths) for value in content] if isinstance(content, list) else content
