"""The options of GR00T's programs; those of fine-tuning are in training/settings.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vla_common.options import Options, option
from vla_modelkit import checkpoint_options


@dataclass(frozen=True)
class CheckpointOptions(checkpoint_options.CheckpointOptions):
    """Get a GR00T N1.5 checkpoint."""

    embodiment: str = option(
        "",
        "the robot that it was trained for",
        default_help="as published, else its own embodiment.json",
        kind="directory name",
    )


@dataclass(frozen=True)
class DataOptions(Options):
    """Show a data set for GR00T: schema, episodes, tasks, statistics, and a page with videos and curves."""

    dataset: str | None = option(None, "a data set on the volume, or its directory", kind="dataset")
    embodiment: str | None = option(None, "check that it matches this embodiment: a name, or the path of a JSON file")
    check: bool = option(False, "read all of it and list every error, including the model's requirements")
    write_stats: bool = option(False, "rewrite its statistics in meta/; nothing else writes into a data set")
    download: str | None = option(
        None, "download a published one onto the volume first: its name, or OWNER/NAME[/FOLDER] on the hub"
    )


@dataclass(frozen=True)
class ExportOptions(Options):
    """Write a checkpoint's seven ONNX modules, and compare each with torch in onnxruntime."""

    checkpoint: str = option("", "a directory under checkpoints/ on the volume, or a path", group="internal")
    dtype: Literal["fp32", "fp16"] = option("fp32", "numbers of the modules; fp16 is what upstream writes")
    embodiment: str = option("", "whose cameras and encoders", default_help="the checkpoint's own")
    out: str = option(
        "",
        "output directory",
        default_help="the checkpoint's name with -onnx, next to it on the volume",
        group="internal",
    )
