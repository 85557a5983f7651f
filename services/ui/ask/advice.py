"""How to get a policy, by what lies on the volume: the page's advice where none answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from vla_common.volume import Volume

MODEL = "openvla"  # model_type in a checkpoint's config.json, and the service that serves it


def start_one() -> str:
    """Return the commands that bring a policy up here, each between backticks."""
    there = checkpoints()
    if not there:
        return f"`./lab checkpoint {MODEL} --tiny` makes a small one to try, `./lab up {MODEL}` serves it; {FOUND}"
    named = "" if len(there) == 1 else f" --checkpoint {shlex.quote(there[0])}"
    return f"`./lab up {MODEL}{named}` serves the checkpoint {there[0]}, which lies on the volume; {FOUND}"


FOUND = "this page finds it by itself."


def checkpoints() -> list[str]:
    """Return the names of the checkpoints on the volume that can be served, the newest first."""
    try:
        directories = [path.parent for path in Volume().root.glob("checkpoints/*/config.json") if _is_whole(path)]
        return [directory.name for directory in sorted(directories, key=lambda directory: -directory.stat().st_mtime)]
    except OSError:  # a volume that this user cannot read: then there are none to name
        return []


def _is_whole(config: Path) -> bool:
    try:
        model = json.loads(config.read_text()).get("model_type")
    except (OSError, ValueError, AttributeError):
        return False
    return model == MODEL and any(config.parent.glob("*.safetensors"))
