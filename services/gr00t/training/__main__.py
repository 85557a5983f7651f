"""`python -m services.gr00t.training --dataset NAME`: fine-tunes GR00T N1.5 on a data set of demonstrations.

Ctrl-C saves and stops; the same command resumes, and its result has the same bits as an uninterrupted run.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.config import ModelConfig, load_config
from services.gr00t.checkpoint.directory import CheckpointDirectory, find
from services.gr00t.checkpoint.embodiment import embodiment
from services.gr00t.processing.prompt import Prompts
from services.gr00t.service.loading import require_room
from services.gr00t.training import memory, network, result
from services.gr00t.training.robot import NEW, TrainingRobot, robot_of
from services.gr00t.training.samples import Samples, collate
from services.gr00t.training.settings import BASES, Finetune, digest_of
from vla_common import entrypoint
from vla_common.counts import plural
from vla_common.volume import Volume, display_path, make_directory_without_links
from vla_datasets import marks
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find as find_dataset
from vla_modelkit.checkpoint import identity
from vla_modelkit.memory import free_bytes
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine, destroy_process_group
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.trainer import Trainer, has_result, states_of
from vla_modelkit.weights import Safetensors

MIN_LORA_SCALE = 0.25  # of alpha / rank


@dataclass(frozen=True)
class FinetuneJob:
    """The parts of a run, before a weight is read."""

    settings: Finetune
    base: CheckpointDirectory
    config: ModelConfig
    dataset: LeRobotDataset
    robot: TrainingRobot
    samples: Samples
    volume: Volume
    bad: marks.Marks

    @property
    def directory(self) -> Path:
        return self.volume.path("runs") / "finetune" / self.settings.output_name

    @property
    def target(self) -> Path:
        return self.volume.path("checkpoints") / self.settings.output_name

    def provenance(self, world: int) -> dict[str, Any]:
        """Return settings, data and base of the result, for its record."""
        base, dataset = identity(self.base.directory, self.base.record), self.dataset
        statistics = {key: {name: list(map(float, values.reshape(-1))) for name, values in entry.items()}
                      for key, entry in dataset.statistics().items()}  # fmt: skip
        data = {
            "info": dataset.info,
            "statistics": statistics,
            "episodes": [[episode.index, episode.length, *episode.tasks] for episode in dataset.episodes],
            "modality": dataset.modality,
        }
        digests = {"data_set": digest_of(data), "base": f"{base.repo} {base.sha256[:16]}"}
        left_out = {"left_out": len(self.bad.bad), "marks": self.bad.digest} if self.bad.bad else {}
        return {
            **self.settings.identity(world, **digests, robot=self.robot.embodiment.name, **left_out),
            "dataset": self.dataset.name,
        }


def prepare(settings: Finetune, volume: Volume) -> FinetuneJob:
    """Return the job. Raises ValueError for errors of data set and base, before a weight is read."""
    available = (name for name in BASES if (volume.path("checkpoints") / name / "config.json").is_file())
    base = find(settings.base or next(available, ""), volume)
    config = load_config(base.directory)
    dataset = LeRobotDataset(find_dataset(settings.dataset, volume))
    bad = marks.leave_out(dataset)
    if settings.embodiment != NEW:
        embodiment(settings.embodiment)
    try:
        robot = robot_of(dataset, settings.embodiment, base)
        require_room(robot.layout, config)
        prompts = Prompts(tokenizer.load(base.directory), len(robot.embodiment.cameras), config.patches)
        samples = Samples(dataset, robot, prompts, config.head, config.vision["image_size"], settings.seed)
    except ValueError as error:
        check = f"./lab data gr00t --dataset {shlex.quote(settings.dataset)} --check"
        raise ValueError(f"{error}\nto list all errors of the data set: {check}") from error
    job = FinetuneJob(settings, base, config, dataset, robot, samples, volume, bad)
    if (job.target / "config.json").is_file() and job.target.resolve() == base.directory.resolve():
        raise ValueError(f"the result would replace its base, {base.directory.name}; give another --name")
    return job


def train(settings: Finetune, volume: Volume, machine: TrainingMachine, stop: object) -> Trainer:
    """Train to the last step, or save and stop when `stop.requested` becomes true; return the trainer."""
    job = prepare(settings, volume)
    if settings.lora_rank and settings.lora_alpha is None:  # that of the interrupted run, else the rank
        newest = states_of(job.directory).load_latest()
        started = newest[1]["identity"] if newest else {}
        alpha = started["lora_alpha"] if started.get("lora_rank") == settings.lora_rank else settings.lora_rank
        settings = replace(settings, lora_alpha=float(alpha))
        job = replace(job, settings=settings)
    needed = memory.TrainingMemory(job.config, len(job.robot.embodiment.cameras), machine.dtype is not None)
    if machine.is_main:
        print(f"memory: about {needed.estimate(settings)}", flush=True)
    if (free := free_bytes(machine.device)) is not None:
        needed.require(settings, free, str(machine.device))
    trainer = new_trainer(job, machine)
    path = trainer.resume()
    trainer.require_disk(job.base.directory)
    curves = make_directory_without_links(volume.path("logs") / "tensorboard" / "finetune" / settings.output_name)
    if machine.is_main:
        _print_setup(job, trainer, path, curves)
    trainer.print(trainer.cache_videos(job.samples.frames, len(job.samples)))
    with Curves(curves if machine.is_main else None, trainer.step) as board:
        trainer.run(trainer.batches(job.samples, collate), board, stop)
    if machine.is_main:
        _finish(job, trainer)
    return trainer


def new_trainer(job: FinetuneJob, machine: TrainingMachine) -> Trainer:
    """Load the network to train onto the device, with a new optimizer."""
    settings, robot = job.settings, job.robot.embodiment.projector
    frozen = machine.dtype or torch.float32
    model = network.load(job.config, Safetensors(job.base.directory), robot, settings, machine.device, frozen)
    image_positions = torch.as_tensor(job.samples.prompts.image_positions, device=machine.device)
    loss = network.FlowLoss(model, image_positions, sum(part.width for part in job.robot.layout.action))
    directory = make_directory_without_links(job.directory)
    return network.new_trainer(settings, machine, loss, directory, job.provenance(machine.world))


def _finish(job: FinetuneJob, trainer: Trainer) -> None:
    settings, name = job.settings, job.settings.output_name
    if trainer.step < settings.max_steps:
        return
    provenance = job.provenance(trainer.machine.world)
    provenance |= {"settings_digest": digest_of(provenance)}
    if job.base.record.get("finetuned"):
        provenance |= {"before": job.base.record["finetuned"]}
    if has_result(job.target, provenance):
        return
    target = result.write(job.target, job.base, job.robot, network.merged(trainer.network.model), provenance)
    print(f"trained {trainer.step} steps; checkpoint: {display_path(target)}")
    print(f"serve it: ./lab up gr00t --checkpoint {name}", flush=True)


def _print_setup(job: FinetuneJob, trainer: Trainer, path: Path | None, curves: Path) -> None:
    settings, embodiment = job.settings, job.robot.embodiment
    trained = sum(parameter.numel() for parameter in trainer.trained.values())
    size = f"{plural(len(job.samples.episodes), 'episode')}, {plural(len(job.samples), 'step')}"
    left_out = f" ({job.bad.left_out})" if job.bad.left_out else ""
    print(f"data set {job.dataset.name}: {size}{left_out}", *(f"note: {note}" for note in job.samples.notes), sep="\n")
    details = job.robot.layout.details()
    print(f"robot {embodiment.name} ({embodiment.tag}): {details['state']} → {details['action']}")
    print(f"normalization of the state: {details['state_normalization']}; action: {details['action_normalization']}")
    print(f"{job.base.directory.name} on {trainer.machine}; {trained / 1e6:.1f} million numbers are trained")
    if settings.lora_rank:
        at = f"LoRA of rank {settings.lora_rank}, alpha {settings.lora_alpha:g}"
        print(f"{at}: the adapters' output is scaled by {settings.lora_scale:g}")
        if settings.lora_scale < MIN_LORA_SCALE:
            print(
                f"warning: below {MIN_LORA_SCALE:g} it has little effect; --lora-alpha {settings.lora_rank} makes it 1"
            )
    print(f"states in {display_path(job.directory)}, curves in {display_path(curves)}")
    if path:
        print(f"resuming from {path.name}: {trainer.step} of {settings.max_steps} steps are done")
    sys.stdout.flush()


def main() -> int:
    """Train with the command line's settings; return 130 if interrupted."""
    settings = tyro.cli(Finetune, prog="python -m services.gr00t.training", description=__doc__)
    machine = choose_machine(settings.device, settings.precision)
    with StopSignal() as stop:
        steps = train(settings, Volume(), machine, stop).step  # drops the trainer before `leave`
    destroy_process_group()
    return 0 if steps >= settings.max_steps else entrypoint.INTERRUPTED


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, MemoryError))
