"""Options of training with LeRobot. Defaults that are not stated are those of the policy type."""

from __future__ import annotations

from dataclasses import dataclass

from vla_common.options import option
from vla_modelkit.training.options import FinetuneOptions

NEW_TYPES = ("act", "diffusion", "vqbet", "tdmpc")  # the others start from the weights of a backbone


@dataclass(frozen=True)
class LeRobotFinetune(FinetuneOptions):
    """Train a LeRobot policy, or fine-tune a checkpoint; Ctrl-C saves, and the same command resumes."""

    dataset: str = option(help="its name under datasets/ on the volume, or a path; of format v3.0")
    type: str = option(
        "", f"a new policy of this type: {', '.join(NEW_TYPES)}", default_help="the type of --base, else act",
        metavar="TYPE",
    )  # fmt: skip
    base: str = option("", "the LeRobot checkpoint to start from", default_help="none")
    name: str = option("", default_help="type and data set")
    max_steps: int = option(20000)
    batch_size: int = option(8)
    set: str = option(
        "", "fields of the policy's config.json, with commas: chunk_size=16,n_action_steps=8",
        default_help="the type's", metavar="NAME=VALUE,…",
    )  # fmt: skip
    rename: str = option(
        "", "image keys of the data set = those of --base, with commas: image=camera1,wrist_image=camera2",
        default_help="equal names", metavar="KEY=KEY,…",
    )  # fmt: skip
    lora_rank: int = option(0, "above 0: train low-rank adapters of --base, merged at the end")
    seed: int = option(42, "of the weights, the order of the data and noise")

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs("--set", self.set)
        pairs("--rename", self.rename)
        if self.type and self.base:
            raise ValueError("--base has a type already; remove --type")
        if self.rename and not self.base:
            raise ValueError("--rename needs --base: a new policy takes the data set's names")
        if self.lora_rank and not self.base:
            raise ValueError("--lora-rank adapts a trained model; give it with --base")


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
