"""`python -m services.gr00t.training --dataset NAME`: fine-tunes GR00T N1.5 on a data set of demonstrations.

Ctrl-C saves and stops; the same command resumes, and its result has the same bits as an uninterrupted run.
"""

from __future__ import annotations

import math
import shlex
import sys
import time
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
from services.gr00t.training.samples import BatchIndices, Samples, loader
from services.gr00t.training.settings import BASES, Finetune, digest_of
from services.gr00t.training.trainer import Trainer, learning_rate, states_of
from vla_common import entrypoint
from vla_common.counts import plural
from vla_common.volume import Volume, display_path, make_directory_without_links, require_space
from vla_datasets import marks
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find as find_dataset
from vla_modelkit.checkpoint import changed_files, identity, read_record
from vla_modelkit.memory import free_bytes
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine, destroy_process_group
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.weights import Safetensors

MIN_LORA_SCALE = 0.25  # of alpha / rank
HINT = "Ctrl-C saves; the same command resumes"
INTERRUPTED = 130  # exit code after Ctrl-C, as a shell has it


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
    if settings.resume and path is None:
        raise ValueError(
            f"{display_path(job.directory)} has no training state to resume; remove --resume to start a new training"
        )
    state = 12 * sum(parameter.numel() for parameter in trainer.trained.values())
    result_size = sum(path.stat().st_size for path in job.base.directory.glob("*.safetensors"))
    missing = settings.keep + 1 - len(trainer.states.all())
    require_space(job.directory, max(1, missing) * state + result_size)
    curves = make_directory_without_links(volume.path("logs") / "tensorboard" / "finetune" / settings.output_name)
    videos = _cache_videos(job, trainer)
    if machine.is_main:
        _print_setup(job, trainer, path, curves)
        print(videos, flush=True)
    with Curves(curves if machine.is_main else None, trainer.step) as board:
        _run_steps(job, trainer, board, stop)
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
    digests = job.provenance(machine.world)
    return Trainer(settings, machine, loss, make_directory_without_links(job.directory), digests)


def _run_steps(job: FinetuneJob, trainer: Trainer, board: Curves, stop: object) -> None:
    settings, machine = job.settings, trainer.machine
    workers = settings.workers if settings.workers >= 0 else 4 if machine.device.type == "cuda" else 0
    indices = BatchIndices(trainer.step, settings.max_steps, settings.batch_size, machine.rank, machine.world)
    started, first = time.monotonic(), trainer.step
    with Progress(settings.max_steps, trainer.step, HINT, enabled=machine.is_main) as progress:
        for batch in loader(job.samples, indices, workers):
            loss, norm = trainer.learn(batch)
            figures = ()
            if trainer.step == first + 1 or trainer.step % settings.log_every == 0:
                (value,) = (total / machine.world for total in machine.all_reduce(loss.item()))
                rate = (trainer.step - first) * settings.batch_size * machine.world / (time.monotonic() - started)
                figures = f"loss {value:.4f}", f"{rate:.1f} samples/s"
                if math.isnan(value):
                    raise ValueError(f"the loss is NaN at step {trainer.step}; try a lower --learning-rate")
                points = {"loss": value, "gradient_norm": float(norm), "samples_per_s": rate}
                points["learning_rate"] = learning_rate(settings, trainer.step - 1)
                board.scalars("train", points, trainer.step)
            progress.advance(*figures)
            is_due = trainer.step % max(1, settings.max_steps // 20) == 0
            if figures and is_due and machine.is_main and not progress.live:
                print(f"step {trainer.step} of {settings.max_steps}: {', '.join(figures)}", flush=True)
            stop_requested = bool(sum(machine.all_reduce(int(stop.requested))))
            is_last = stop_requested or trainer.step == settings.max_steps
            if machine.is_main and (is_last or trainer.step % settings.save_steps == 0):
                trainer.save()
            if stop_requested:
                return


def _finish(job: FinetuneJob, trainer: Trainer) -> None:
    settings, name = job.settings, job.settings.output_name
    if trainer.step < settings.max_steps:
        print(f"stopped after step {trainer.step} of {settings.max_steps}; saved in {display_path(job.directory)}")
        print("run the same command to resume", flush=True)
        return
    provenance = job.provenance(trainer.machine.world)
    provenance |= {"settings_digest": digest_of(provenance)}
    if job.base.record.get("finetuned"):
        provenance |= {"before": job.base.record["finetuned"]}
    record = read_record(job.target)
    if record.get("finetuned") == provenance and not changed_files(job.target, record):
        print(f"all {trainer.step} steps are done: {display_path(job.target)}; give another --name to train again")
        return
    target = result.write(job.target, job.base, job.robot, network.merged(trainer.model), provenance)
    print(f"trained {trainer.step} steps; checkpoint: {display_path(target)}")
    print(f"serve it: ./lab up gr00t --checkpoint {name}", flush=True)


def _cache_videos(job: FinetuneJob, trainer: Trainer) -> str:
    """Reserve memory for decoded videos if frames are read more than once; return a message about it."""
    settings, frames, world = job.settings, job.samples.frames, trainer.machine.world
    left = (settings.max_steps - trainer.step) * settings.batch_size * world
    if left <= len(job.samples):
        return "videos: each frame is read once at most, so none is cached"
    free = free_bytes(torch.device("cpu")) or 0
    limit = free / 2 / world if settings.frames_gb < 0 else settings.frames_gb * 1e9 / world
    cached, total = frames.keep(int(limit)), frames.bytes
    rest = "" if cached == total else "; the rest is decoded again for every sample (--frames-gb)"
    return f"videos: {cached / 1e9:.2f} of {total / 1e9:.2f} GB are cached in memory after decoding{rest}"


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
    return 0 if steps >= settings.max_steps else INTERRUPTED


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, MemoryError))
