"""`python -m services.lerobot.training --dataset NAME`: train a policy with LeRobot's own trainer.

Ctrl-C saves and stops; the same command resumes. The result is a checkpoint that `./lab up lerobot` serves.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# read when LeRobot is imported: the lab draws the progress itself, and training downloads nothing
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import draccus
import torch
import tyro
from lerobot.configs import PreTrainedConfig
from lerobot.configs.train import TRAIN_CONFIG_NAME, TrainPipelineConfig
from lerobot.scripts.lerobot_train import train as lerobot_train
from lerobot.utils.constants import ACTION, CHECKPOINTS_DIR, LAST_CHECKPOINT_LINK, OBS_STATE, PRETRAINED_MODEL_DIR
from lerobot.utils.logging_utils import MetricsTracker
from safetensors.torch import load_file, save_file

from services.lerobot.adapters import merge
from services.lerobot.checkpoint import NEEDED, build_policy, check_files
from services.lerobot.repositories import JSON_FILES, SUBDIRECTORY, local_names
from services.lerobot.settings import PREFIX
from services.lerobot.training.settings import NEW_TYPES, LeRobotFinetune, pairs
from vla_common import entrypoint
from vla_common.volume import Volume, display_path, make_directory_without_links, replace_directory
from vla_contract.protocol.errors import did_you_mean
from vla_contract.protocol.parts import GRIPPER_OPENS
from vla_datasets import marks
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find as find_dataset
from vla_modelkit.checkpoint import find_directory, read_json, record_directory
from vla_modelkit.devices import choose_device
from vla_modelkit.memory import free_bytes
from vla_modelkit.training.board import Curves
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.trainer import INTERRUPT_HINT

COMPLETE = "complete"  # empty file in a training state that LeRobot has finished writing
BYTES_TRAINED, BYTES_FROZEN = 16, 4  # per parameter in float32: weight, gradient, two moments of Adam; weight
IMAGE_KEY = "observation.images."
LOCATIONS = ("mean", "min", "max", "q")  # beginnings of the statistics' names that are values of an action
METRICS = {"loss": "loss", "grad_norm": "gradient_norm", "lr": "learning_rate", "samples_per_s": "samples_per_s"}


class StopTraining(Exception):
    """Training was interrupted, and its state is saved."""


@dataclass(frozen=True)
class TrainingRun:
    """One run. base: the checkpoint to start from, None for a new policy; dropped: fields of its config to ignore."""

    settings: LeRobotFinetune
    dataset: LeRobotDataset
    base: Path | None
    dropped: Sequence[str]
    type: str
    device: torch.device
    volume: Volume

    @property
    def name(self) -> str:
        """The result's name."""
        return self.settings.name or f"{self.type}-{self.dataset.name}"

    @property
    def directory(self) -> Path:
        """The directory of the training states."""
        return self.volume.path("runs") / "finetune" / self.name

    @property
    def states(self) -> list[Path]:
        """The complete training states, the newest last. LeRobot's link to the newest becomes a file within it: a link
        would be refused where root writes to the volume.
        """
        directory = self.directory / CHECKPOINTS_DIR
        link = directory / LAST_CHECKPOINT_LINK
        if link.is_symlink():
            name = os.readlink(link)
            link.unlink()
            if name.isdigit():
                (directory / name / COMPLETE).touch()
        return sorted(path.parent for path in directory.glob(f"*/{COMPLETE}"))

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that a resumed run must not change."""
        names = ("max_steps", "batch_size", "set", "rename", "lora_rank", "seed")
        values = {name: getattr(self.settings, name) for name in names}
        data = {"dataset": self.dataset.name, "episodes": [episode.index for episode in self.dataset.episodes]}
        return {**values, **data, "type": self.type, "base": str(self.base or "")}


def prepare(settings: LeRobotFinetune, volume: Volume) -> TrainingRun:
    """Return the run. Raises ValueError for errors of data set and base, before a weight is read."""
    dataset = LeRobotDataset(find_dataset(settings.dataset, volume))
    if not dataset.is_v3:
        name = shlex.quote(settings.dataset)
        raise ValueError(
            f"data set {dataset.name} has format {dataset.info['codebase_version']}; LeRobot trains on v3.0: "
            f"./lab dataset {name} --format lerobot-v3.0"
        )
    marks.leave_out(dataset)
    base, dropped = None, []
    if settings.base:
        how = "get one with `./lab checkpoint lerobot --repo OWNER/NAME`"
        base = find_directory(settings.base, f"{PREFIX}CHECKPOINT", how, volume)
        dropped = check_files(base)
    kind = read_json(base / "config.json")["type"] if base else settings.type or "act"
    if not base and kind not in NEW_TYPES:
        raise ValueError(
            f"--type {kind!r}: a new policy can be {', '.join(NEW_TYPES)}{did_you_mean(kind, NEW_TYPES)}; "
            "other types start from a checkpoint: --base NAME"
        )
    run = TrainingRun(settings, dataset, base, dropped, kind, choose_device(settings.device), volume)
    known = {field for field in PreTrainedConfig.get_choice_class(kind).__dataclass_fields__}
    for field in pairs("--set", settings.set):
        if field not in known:
            raise ValueError(f"policy type {kind!r} has no setting {field!r}{did_you_mean(field, sorted(known))}")
    return run


def configuration(run: TrainingRun, base: Path | None) -> TrainPipelineConfig:
    """Return LeRobot's configuration of the run, new or resumed. Raises ValueError for a value that it rejects.

    base: the base checkpoint as LeRobot reads it.
    """
    settings = run.settings
    states = run.states
    workers = settings.workers if settings.workers >= 0 else 4 if run.device.type == "cuda" else 0
    arguments = [f"--num_workers={workers}", f"--save_freq={settings.save_steps}"]
    try:
        if states:
            stored = states[-1] / PRETRAINED_MODEL_DIR / TRAIN_CONFIG_NAME
            # LeRobot finds the state to resume through the command line
            sys.argv = ["lerobot-train", f"--config_path={stored}", "--resume=true"]
            return TrainPipelineConfig.from_pretrained(stored, cli_args=[*arguments, "--resume=true"])
        policy = {"device": run.device.type, "push_to_hub": "false"}
        fields = PreTrainedConfig.get_choice_class(run.type).__dataclass_fields__
        if not run.base and "pretrained_backbone_weights" in fields:
            policy["pretrained_backbone_weights"] = "null"  # else LeRobot downloads them
        policy |= pairs("--set", settings.set)
        renamed = {IMAGE_KEY + old: IMAGE_KEY + new for old, new in pairs("--rename", settings.rename).items()}
        arguments += [
            f"--dataset.repo_id={run.dataset.name}",
            f"--dataset.root={run.dataset.directory}",
            *([f"--dataset.episodes={run.identity['episodes']}"] if run.dataset.left_out else []),
            "--dataset.video_backend=pyav",
            f"--output_dir={run.directory}",
            f"--steps={settings.max_steps}",
            f"--batch_size={settings.batch_size}",
            f"--seed={settings.seed}",
            "--log_freq=1",
            "--env_eval_freq=0",
            *([f"--rename_map={json.dumps(renamed)}"] if renamed else []),
            *([f"--peft.r={settings.lora_rank}", "--peft.method_type=LORA"] if settings.lora_rank else []),
        ]
        overrides = [f"--policy.{name}={value}" for name, value in policy.items()]
        if base:
            sys.argv = ["lerobot-train", f"--policy.path={base}", *overrides]
            return draccus.parse(TrainPipelineConfig, args=arguments)
        sys.argv = ["lerobot-train"]
        return draccus.parse(TrainPipelineConfig, args=[*arguments, f"--policy.type={run.type}", *overrides])
    except (draccus.utils.DecodingError, draccus.utils.ParsingError) as error:
        raise ValueError(f"LeRobot rejects a setting: {' '.join(str(error).split())}") from error


class StepReporter(logging.Filter):
    """Reads the metrics that LeRobot logs after each step: draws the progress, adds points to curves, checks memory,
    and stops the run. Drops LeRobot's own messages.
    """

    def __init__(
        self, run: TrainingRun, config: TrainPipelineConfig, progress: Progress, board: Curves, stop: StopSignal
    ):
        super().__init__()
        self.run, self.config, self.progress, self.board, self.stop = run, config, progress, board, stop
        self.stop_after: int | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if match := re.match(r"num_learnable_params=(\d+)", str(record.msg)):
            self.trained = int(match[1])
        elif match := re.match(r"num_total_params=(\d+)", str(record.msg)):
            total = int(match[1])
            needed = BYTES_TRAINED * self.trained + BYTES_FROZEN * (total - self.trained)
            print(
                f"{self.trained / 1e6:.1f} of {total / 1e6:.1f} million parameters are trained; memory: "
                f"{needed / 1e9:.1f} GB without activations",
                flush=True,
            )
            free = free_bytes(self.run.device)
            # the weights have been loaded by now
            if free is not None and needed - BYTES_FROZEN * total > free and not self.run.settings.force:
                raise MemoryError(
                    f"training needs {needed / 1e9:.1f} GB, and {self.run.device} has {free / 1e9:.1f} GB free: reduce "
                    "it with --lora-rank 16, or use --force"
                )
        elif isinstance(record.msg, MetricsTracker):
            self.report(record.msg)
        return record.levelno >= logging.WARNING

    def report(self, metrics: MetricsTracker) -> None:
        """Report one step. StopTraining once the state of an interrupted run is saved."""
        settings, step, values = self.run.settings, metrics.steps, metrics.to_dict()
        if values["loss"] != values["loss"]:
            raise ValueError(f"the loss is NaN at step {step}; lower the learning rate: --set optimizer_lr=1e-5")
        figures = f"loss {values['loss']:.4f}", f"{values['samples_per_s']:.1f} samples/s"
        self.progress.advance(*figures)
        if step == 1 or step % settings.log_every == 0:
            self.board.scalars("train", {name: float(values[key]) for key, name in METRICS.items()}, step)
        if not self.progress.live and step % max(1, settings.max_steps // 20) == 0:
            print(f"step {step} of {settings.max_steps}: {', '.join(figures)}", flush=True)
        if self.stop_after is not None and step > self.stop_after:
            raise StopTraining
        if self.stop.requested and self.stop_after is None:
            # LeRobot saves by this field; it has read it for this step already
            self.config.save_freq, self.stop_after = 1, step + 1
        for state in self.run.states[: -settings.keep]:
            shutil.rmtree(state)


def train(settings: LeRobotFinetune, volume: Volume, stop: StopSignal) -> bool:
    """Train to the last step, or save and stop when `stop.requested` becomes true; return whether it is complete."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # LeRobot reports to one process, and all have to save together
        raise ValueError("finetune lerobot runs on one GPU; remove --gpus")
    run = prepare(settings, volume)
    identity_file = run.directory.parent / f"{run.name}.json"
    states = run.states
    if settings.resume and not states:
        raise ValueError(f"{display_path(run.directory)} has no training state to resume; remove --resume")
    if states and identity_file.is_file():
        before = read_json(identity_file)
        changed = [name for name, value in run.identity.items() if before.get(name) != value]
        if changed:
            raise ValueError(
                f"{display_path(run.directory)} was started with other settings ({', '.join(changed)}); give another "
                "--name, or remove the directory to start again"
            )
    done = int(states[-1].name) if states else 0
    if not states:
        shutil.rmtree(run.directory, ignore_errors=True)  # a run without a state; LeRobot requires a new directory
        make_directory_without_links(run.directory.parent)
        identity_file.write_text(json.dumps(run.identity, indent=1) + "\n", encoding="utf-8")
    curves = make_directory_without_links(volume.path("logs") / "tensorboard" / "finetune" / run.name)
    start = f"from {run.base.name}" if run.base else "with random weights"
    print(f"{run.type} on data set {run.dataset.name}, {start}, on {run.device}")
    print(f"states in {display_path(run.directory)}, curves in {display_path(curves)}", flush=True)
    if states:
        print(f"resuming: {done} of {settings.max_steps} steps are done", flush=True)
    if done < settings.max_steps:
        with (
            local_names(run.base, run.dropped) if run.base else nullcontext() as base,
            Curves(curves, done) as board,
            Progress(settings.max_steps, done, INTERRUPT_HINT) as progress,
        ):
            if base and run.base and not states:
                build_policy(base, run.base, "cpu")  # LeRobot's trainer would go on with random weights
            config = configuration(run, base)
            check_statistics(run, config.policy or PreTrainedConfig.from_pretrained(base))
            reporter = StepReporter(run, config, progress, board, stop)
            logging.getLogger().addFilter(reporter)
            try:
                lerobot_train(config)
            except StopTraining:
                print(f"stopped; saved in {display_path(run.states[-1])}")
                print("run the same command to resume", flush=True)
                return False
            finally:
                logging.getLogger().removeFilter(reporter)
    target = write_checkpoint(run)
    print(f"trained {settings.max_steps} steps; checkpoint: {display_path(target)}")
    print(f"serve it: ./lab up lerobot --checkpoint {run.name}", flush=True)
    return True


def check_statistics(run: TrainingRun, policy: PreTrainedConfig) -> None:
    """Raise ValueError if the policy normalizes by statistics that the data set lacks, or that are not its rows'."""
    stated = run.dataset.stated_statistics() or {}
    for kind, key in (("STATE", OBS_STATE), ("ACTION", ACTION)):
        mode = policy.normalization_mapping.get(kind)
        names = NEEDED.get(mode, ())
        if key in stated and (missing := [name for name in names if name not in stated[key]]):
            raise ValueError(
                f"{run.type} normalizes {key} by {mode.value}, and data set {run.dataset.name} has no "
                f"{', '.join(missing)}; write them: ./lab dataset {shlex.quote(run.dataset.name)} --write-stats"
            )
        if key in stated and names:
            run.dataset.require_current_statistics([key], names)


def write_checkpoint(run: TrainingRun) -> Path:
    """Copy the last state's model to checkpoints/, adapters merged into their base, and return its directory."""
    source = run.states[-1] / PRETRAINED_MODEL_DIR

    def fill(draft: Path) -> None:
        for path in source.iterdir():
            if not path.name.startswith("adapter_"):
                shutil.copyfile(path, draft / path.name)
        if run.base and run.settings.lora_rank:
            with local_names(run.base, run.dropped) as base:
                merge(build_policy(base, run.base, "cpu"), source).save_pretrained(draft)
        action: list[dict[str, Any]] = (run.dataset.source or {}).get("action") or [{}]
        if action[-1].get("convention") == GRIPPER_OPENS.convention:
            invert_gripper(draft)
        if run.base and (repositories := run.base / SUBDIRECTORY).is_dir():
            shutil.copytree(repositories, draft / SUBDIRECTORY)
            for path in (draft / name for name in JSON_FILES):
                text = path.read_text(encoding="utf-8").replace(f"{repositories.absolute()}/", "")
                path.write_text(text, encoding="utf-8")
        record_directory(draft, f"finetuned-{run.name}", str(run.settings.max_steps), finetuned=run.identity)

    return replace_directory(run.volume.path("checkpoints") / run.name, fill)


def invert_gripper(directory: Path) -> None:
    """Change a checkpoint's gripper from 0 closed, 1 open to -1 open, 1 closed, in the statistics of its processors.

    With those of 1 - 2a in place of an action a, the weights stay as they are: un-normalizing gives the new command,
    and normalizing takes it back. The standard deviation becomes negative.
    """
    for path in directory.glob("policy_*processor*.safetensors"):
        tensors = load_file(path)
        for name, values in tensors.items():
            feature, _, statistic = name.rpartition(".")
            if feature == ACTION and statistic == "std":
                values[-1] *= -2
            elif feature == ACTION and statistic.startswith(LOCATIONS):
                values[-1] = 1 - 2 * values[-1]
        save_file(tensors, path)


def main() -> int:
    """Train with the command line's settings; return 130 if interrupted."""
    settings = tyro.cli(LeRobotFinetune, prog="python -m services.lerobot.training", description=__doc__)
    with StopSignal() as stop:
        complete = train(settings, Volume(), stop)
    return 0 if complete else entrypoint.INTERRUPTED


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, MemoryError))
