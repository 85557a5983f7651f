"""The result of a run: a checkpoint in the published layout, with the robot's description, ready to serve.

Every file of weights is the base's with the trained tensors inserted, in the base's dtype; the other robots' rows
are the base's bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from services.gr00t.checkpoint import embodiment, tokenizer
from services.gr00t.checkpoint.directory import METADATA, CheckpointDirectory
from services.gr00t.training.network import ROWS
from services.gr00t.training.robot import TrainingRobot
from vla_common.volume import replace_directory
from vla_modelkit.checkpoint import INDEX, record_directory, weight_files
from vla_modelkit.weights import rewrite_weights


def write(
    directory: Path,
    base: CheckpointDirectory,
    robot: TrainingRobot,
    trained: Mapping[str, Tensor],
    provenance: Mapping[str, Any],
) -> Path:
    """Write the checkpoint atomically and return its directory. trained: name -> tensor, rows as [1, …].

    provenance: settings, data and base, stored in the record.
    """

    def insert(name: str, old: Tensor) -> Tensor:
        """Return a trained tensor; of those with a row per robot only that row is new."""
        if not name.startswith(ROWS):
            return trained[name]
        old[robot.embodiment.projector] = trained[name][0]
        return old

    def fill(draft: Path) -> None:
        for name in ("config.json", *tokenizer.FILES, INDEX):
            if (base.directory / name).is_file():
                shutil.copyfile(base.directory / name, draft / name)
        for path in weight_files(base.directory):
            rewrite_weights(path, draft / path.name, trained.keys(), insert)
        (draft / METADATA).parent.mkdir()
        metadata = {**base.metadata, robot.embodiment.tag: robot.metadata}
        (draft / METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        embodiment.write(draft / embodiment.EMBODIMENT_FILE, robot.embodiment)
        eagle = {"eagle": base.overrides} if base.overrides else {}
        record_directory(
            draft, f"finetuned-{directory.name}", provenance["settings_digest"], **eagle, finetuned=provenance
        )

    return replace_directory(directory, fill)
