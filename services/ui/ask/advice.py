"""The page's advice if no policy responds: how to start one, given the checkpoints on the volume."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from vla_common.volume import Volume

MODEL = "openvla"  # model_type in a checkpoint's config.json, and the service that serves it


def start_command() -> str:
    """Return the commands that start a policy, each in backticks."""
    names = checkpoints()
    if not names:
        return f"`./lab checkpoint {MODEL} --tiny` creates a small one, `./lab up {MODEL}` serves it; {AUTODETECT}"
    flag = "" if len(names) == 1 else f" --checkpoint {shlex.quote(names[0])}"
    return f"`./lab up {MODEL}{flag}` serves the checkpoint {names[0]}; {AUTODETECT}"


AUTODETECT = "this page detects it automatically."


def checkpoints() -> list[str]:
    """Return the names of the complete checkpoints on the volume, newest first."""
    try:
        directories = [path.parent for path in Volume().root.glob("checkpoints/*/config.json") if _is_complete(path)]
        return [directory.name for directory in sorted(directories, key=lambda directory: -directory.stat().st_mtime)]
    except OSError:  # an unreadable volume
        return []


def _is_complete(config: Path) -> bool:
    try:
        model = json.loads(config.read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return False
    return model == MODEL and any(config.parent.glob("*.safetensors"))
