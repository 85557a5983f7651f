"""What is wrong with a checkpoint, and reading its JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class CheckpointError(ValueError):
    """A checkpoint cannot be used as it is; the text says what is wrong and what to do."""


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
