"""Recognise OpenVLA-OFT checkpoints, which look like OpenVLA's, and read the files that they have besides.

OpenVLA-OFT (moojink/openvla-oft) keeps model_type "openvla" and the names of every tensor. Its training
(vla-scripts/finetune.py) writes further parts next to the weights. Three kinds are published:

- `action_head--*` with `model.*` tensors: an L1-regression head turns hidden states into a chunk of actions
- `action_head--*` with `noise_predictor.*` tensors and `noisy_action_projector--*`: a diffusion head, not supported
- none of them: action tokens, decoded in parallel. Upstream's code or statistics of the robot's state give it away

Served as OpenVLA, each of them answers nonsense without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vla_modelkit.checkpoint import CheckpointError, read_record

CHUNK = 8  # actions per pass: upstream's NUM_ACTIONS_CHUNK for LIBERO, which no checkpoint states
STATE_SIZE = 8  # numbers of LIBERO's state
PARTS = ("action_head", "proprio_projector")
UNSUPPORTED = {
    "noisy_action_projector--*": "a diffusion head, which takes 50 passes per chunk",
    "vision_backbone--*": "FiLM layers in its vision towers",
}
# In upstream's modeling_prismatic.py, not in OpenVLA's.
_CODE_MARK = "NUM_ACTIONS_CHUNK"


@dataclass(frozen=True)
class Oft:
    """The parts of an OpenVLA-OFT model.

    l1_head  a regression head makes the actions; else they are decoded from action tokens
    proprio  the robot's state is an input
    """

    l1_head: bool = True
    proprio: bool = True


def check_oft_files(source: object, names: Iterable[str]) -> None:
    """Raise CheckpointError if a listing has a part that is not supported; `source`: directory or repository."""
    for name in sorted(names):
        for pattern, part in UNSUPPORTED.items():
            if fnmatch(name, pattern):
                raise CheckpointError(
                    f"{source} is a checkpoint of OpenVLA-OFT with {part} ({name}); this service has an L1 head or "
                    "action tokens, without FiLM: serve it with upstream's vla-scripts/deploy.py"
                )


def find_oft(directory: Path, statistics: Mapping[str, Any]) -> Oft | None:
    """Return the parts of an OpenVLA-OFT checkpoint, None for one of OpenVLA. Raises CheckpointError."""
    check_oft_files(directory, (path.name for path in directory.iterdir()))
    head, proprio = (part_file(directory, part) is not None for part in PARTS)
    if head:
        return Oft(True, proprio)
    if proprio:
        raise CheckpointError(
            f"{directory} has a proprio_projector and no action_head--*_checkpoint.pt; expected both, as "
            "OpenVLA-OFT's training writes them: copy the missing file, or download the checkpoint again"
        )
    code = directory / "modeling_prismatic.py"
    is_oft = code.is_file() and _CODE_MARK in code.read_text(encoding="utf-8", errors="replace")
    for entry in statistics.values():
        proprio = entry.get("proprio") if isinstance(entry, dict) else None
        columns: Iterable[Any] = proprio.values() if isinstance(proprio, dict) else ()
        # OpenVLA's own training writes zeros there (prismatic/vla/datasets/rlds/utils/data_utils.py)
        is_oft = is_oft or any(isinstance(column, list) and any(column) for column in columns)
    return Oft(False, False) if is_oft else None


def part_file(directory: Path, part: str) -> Path | None:
    """Return a part's file, None if there is none. Raises CheckpointError for several."""
    files = sorted(directory.glob(f"{part}--*checkpoint.pt"))
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{directory} has {len(files)} files of {part}: {names}; remove all but one")
    return files[0] if files else None


def images_of(directory: Path, oft: Oft, requested: int, published: Mapping[str, int]) -> int:
    """Return how many images an observation has: 1, or 2 with the wrist camera's. The weights do not show it.

    requested: of the setting, 0 for none. published: repository -> images. Raises CheckpointError if nothing states
    it, or the setting contradicts what the checkpoint was trained with.
    """
    record = read_record(directory)
    trained = record.get("images") or published.get(record.get("repo", ""), 0)
    if trained and requested and trained != requested:
        raise CheckpointError(
            f"{directory.name} was trained with {trained} images per observation, but --images is {requested}; "
            "remove --images (VLALAB_OPENVLA_IMAGES)"
        )
    if not trained and not requested:
        kind = "with an L1 head" if oft.l1_head else "without an action head, so for action tokens"
        raise CheckpointError(
            f"{directory} is a checkpoint of OpenVLA-OFT ({kind}), which does not state how many images it was trained "
            "with; set --images 1 (agentview) or --images 2 (and the wrist; VLALAB_OPENVLA_IMAGES): a wrong one costs "
            "almost all successes"
        )
    return trained or requested
