"""Options of training with LeRobot. Defaults that are not stated are those of the policy type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_common.options import Options, device_option, option

NEW_TYPES = ("act", "diffusion", "vqbet", "tdmpc")  # the others start from the weights of a backbone


@dataclass(frozen=True)
class LeRobotFinetune(Options):
    """Train a LeRobot policy, or fine-tune a checkpoint; Ctrl-C saves, and the same command resumes."""

    dataset: str = option(help="its name under datasets/ on the volume, or a path; of format v3.0", kind="dataset")
    type: str = option(
        "",
        f"a new policy of this type: {', '.join(NEW_TYPES)}",
        default_help="the type of --base, else act",
        metavar="TYPE",
    )
    base: str = option("", "the LeRobot checkpoint to start from", default_help="none", kind="path or checkpoint")
    name: str = option(
        "",
        "of the result, a directory under checkpoints/",
        default_help="type and data set",
        kind="directory name",
    )
    max_steps: int = option(20000, "number of training steps", "[1, inf)")
    batch_size: int = option(8, "samples per step", "[1, inf)")
    set: str = option(
        "",
        "fields of the policy's config.json, with commas: chunk_size=16,n_action_steps=8",
        default_help="the type's",
        metavar="NAME=VALUE,…",
    )
    rename: str = option(
        "",
        "image keys of the data set = those of --base, with commas: image=camera1,wrist_image=camera2",
        default_help="equal names",
        metavar="KEY=KEY,…",
    )
    lora_rank: int = option(0, "above 0: train low-rank adapters of --base, merged at the end", "[0, inf)")
    save_steps: int = option(1000, "steps between saved training states", "[1, inf)")
    keep: int = option(2, "number of training states to keep", "[1, inf)")
    resume: bool = option(False, "fail if there is no run to resume; the same command resumes in any case")
    force: bool = option(False, "train even if it is not expected to fit into memory")
    device: str = device_option()
    log_every: int = option(10, "steps between two points of a curve", "[1, inf)", group="internal")
    workers: int = option(
        -1,
        "processes that read data; -1: four with a GPU, none on a CPU",
        "[-1, inf)",
        group="internal",
    )
    seed: int = option(42, "of the weights, the order of the data and noise", group="internal")

    def __post_init__(self) -> None:
        self.check_options()
        pairs("--set", self.set)
        pairs("--rename", self.rename)
        if self.type and self.base:
            raise ValueError("--base has a type already; remove --type")
        if self.rename and not self.base:
            raise ValueError("--rename needs --base: a new policy takes the data set's names")
        if self.lora_rank and not self.base:
            raise ValueError("--lora-rank adapts a trained model; give it with --base")
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a directory name")


def pairs(flag: str, text: str) -> dict[str, str]:
    """Return name → value of `NAME=VALUE,…`. Commas within brackets belong to a value. Raises ValueError."""
    parts: list[str] = []
    for part in text.split(",") if text else ():
        if parts and sum(map(parts[-1].count, "[({")) > sum(map(parts[-1].count, "])}")):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    values = {}
    for part in parts:
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise ValueError(f"invalid {flag} {part!r}; expected NAME=VALUE")
        values[name] = value
    return values
