"""The options that every model's fine-tuning has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_common.options import Options, device_option, option


@dataclass(frozen=True)
class FinetuneOptions(Options):
    """Data set, base, size and states of a training run. A model's class redeclares defaults and help texts."""

    dataset: str = option(help="its name under datasets/ on the volume, or a path", kind="dataset")
    base: str = option("", "the checkpoint to start from", kind="path or checkpoint")
    name: str = option("", "of the result, a directory under checkpoints/", kind="directory name")
    max_steps: int = option(10000, "number of training steps", "[1, inf)")
    batch_size: int = option(32, "samples per step", "[1, inf)")
    lora_rank: int = option(0, "above 0: train low-rank adapters", "[0, inf)")
    save_steps: int = option(1000, "steps between saved training states", "[1, inf)")
    keep: int = option(2, "number of training states to keep", "[1, inf)")
    resume: bool = option(False, "fail if there is no run to resume; the same command resumes in any case")
    force: bool = option(False, "train even if it is not expected to fit into memory")
    device: str = device_option()
    log_every: int = option(10, "steps between two points of a curve", "[1, inf)", group="internal")
    workers: int = option(
        -1, "processes that read data; -1: four with a GPU, none on a CPU", "[-1, inf)", group="internal"
    )
    seed: int = option(42, "of the order of the data and of noise", group="internal")

    def __post_init__(self) -> None:
        self.check_options()
        if self.name and (Path(self.name).name != self.name or self.name.startswith(".")):
            raise ValueError(f"--name {self.name!r} is not a directory name")


@dataclass(frozen=True)
class TrainerOptions(FinetuneOptions):
    """Options of the lab's own trainer (`vla_modelkit.training.trainer`)."""

    batch_size: int = option(32, "samples per pass and GPU")
    accumulate: int = option(1, "passes per step, whose gradients are added", "[1, inf)")
    frames_gb: float = option(-1.0, "memory for decoded videos; 0: none, -1: half of the free memory", "[-1, inf)")
    workers: int = option(-1, "processes that read data, per training process; -1: four with a GPU, none on a CPU")
