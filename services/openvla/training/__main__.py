"""`python -m services.openvla.training --dataset NAME`: fine-tunes OpenVLA on a data set of demonstrations.

Ctrl-C saves and stops; the same command resumes, and its result has the same bits as an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch
import tyro

from services.openvla.checkpoint.config import ModelConfig, load_config
from services.openvla.checkpoint.oft import images_of
from services.openvla.checkpoint.published import OFT_IMAGES
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.checkpoint.weights import CheckpointWeights
from services.openvla.service.settings import checkpoint_directory
from services.openvla.training import memory, network, result
from services.openvla.training.samples import Samples, collate
from services.openvla.training.settings import OpenVLAFinetune
from vla_common import entrypoint
from vla_common.counts import plural
from vla_common.volume import Volume, display_path, make_directory_without_links
from vla_datasets import marks
from vla_datasets.loader import find as find_dataset
from vla_datasets.loader import open_dataset
from vla_modelkit.checkpoint import identity
from vla_modelkit.memory import free_bytes
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine, destroy_process_group
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.trainer import Trainer, has_result

BASES = ("openvla-7b", "openvla-tiny")  # default: the first of these on the volume


def train(settings: OpenVLAFinetune, volume: Volume, machine: TrainingMachine, stop: StopSignal) -> bool:
    """Train to the last step, or save and stop when `stop.requested` becomes true; return whether it is complete.

    Raises ValueError for errors of data set and base, before a weight is read, and MemoryError.
    """
    checkpoints = volume.path("checkpoints")
    default = next((name for name in BASES if (checkpoints / name / "config.json").is_file()), "")
    base = checkpoint_directory(settings.base or default, volume)
    config = load_config(base)
    check_base(base, config, settings)
    dataset = open_dataset(find_dataset(settings.dataset, volume))
    left_out = marks.leave_out(dataset)
    samples = Samples(dataset, config, PromptTokenizer(base), settings)
    target = checkpoints / settings.output_name
    if target.resolve() == base.resolve():
        raise ValueError(f"the result would replace its base, {base.name}; give another --name")
    check_memory(config, settings, machine)
    checkpoint = identity(base)
    digest = hashlib.sha256(json.dumps([samples.statistics, left_out.bad]).encode()).hexdigest()[:16]
    named = {"base": f"{checkpoint.repo} {checkpoint.revision}", "base_sha256": checkpoint.sha256 or ""}
    provenance = settings.identity(machine.world, data_set=digest, **named)
    if has_result(target, provenance):
        return True
    model = network.load_trainable(
        config, CheckpointWeights(base), settings, machine.device, machine.dtype or torch.float32
    )
    trained = model.trained_parameters()
    optimizer = torch.optim.AdamW(trained.values(), lr=settings.learning_rate)
    directory = make_directory_without_links(volume.path("runs") / "finetune" / settings.output_name)
    trainer = Trainer(settings, machine, model, trained, optimizer, settings.rate, directory, provenance)
    state = trainer.resume()
    numbers = sum(parameter.numel() for parameter in trained.values())
    trainer.require_disk(base)

    curves = make_directory_without_links(volume.path("logs") / "tensorboard" / "finetune" / settings.output_name)
    steps = f"{plural(len(samples.trajectories), 'episode')}, {plural(len(samples), 'sample')}"
    trainer.print(f"data set {dataset.name}: {steps}{f' ({left_out.left_out})' if left_out.left_out else ''}")
    trainer.print(f"statistics {samples.key}; first instruction: {samples.trajectories[0].instruction!r}")
    trainer.print(f"{base.name} on {machine}; {numbers / 1e6:.1f} million numbers are trained")
    trainer.print(f"states in {display_path(directory)}, curves in {display_path(curves)}")
    if state:
        trainer.print(f"resuming from {state.name}: {trainer.step} of {settings.max_steps} steps are done")
    trainer.print(trainer.cache_videos(samples.frames, len(samples)))
    with Curves(curves if machine.is_main else None, trainer.step) as board:
        trainer.run(trainer.batches(samples, collate), board, stop)
    if trainer.step < settings.max_steps:
        return False
    if machine.is_main:
        result.write(target, base, model, trainer.step, {samples.key: samples.statistics}, provenance)
    trainer.print(f"trained {trainer.step} steps; checkpoint: {display_path(target)}")
    trainer.print(f"serve it: ./lab up openvla --checkpoint {target.name}")
    return True


def check_base(base: Path, config: ModelConfig, settings: OpenVLAFinetune) -> None:
    """Raise ValueError if the base has other parts than the training needs."""
    is_l1 = bool(config.oft and config.oft.l1_head and config.oft.proprio)
    if config.oft and (settings.head == "tokens" or not is_l1):
        kind = "an L1 head" if config.oft.l1_head else "action tokens that are decoded in parallel"
        advice = "--head l1 trains it further" if is_l1 else "start from openvla-7b"
        raise ValueError(f"{base.name} is a checkpoint of OpenVLA-OFT with {kind}; {advice}")
    if config.oft and (images := images_of(base, config.oft, settings.images, OFT_IMAGES)) != settings.image_count:
        raise ValueError(f"{base.name} was trained with {images} image per observation; give --images {images}")


def check_memory(config: ModelConfig, settings: OpenVLAFinetune, machine: TrainingMachine) -> None:
    """Print the estimated memory. Raises MemoryError with a batch size that fits, if the training does not."""
    is_bf16 = machine.dtype is not None
    needed, free = memory.needed_bytes(config, settings, is_bf16), free_bytes(machine.device)
    if machine.is_main:
        print(f"memory: about {needed / 1e9:.1f} GB", flush=True)
    if free is None or needed <= free or settings.force:
        return
    smaller = (size for size in memory.BATCHES if size < settings.batch_size)
    fits = (n for n in smaller if memory.needed_bytes(config, replace(settings, batch_size=n), is_bf16) <= free)
    batch = next(fits, None)
    accumulate = settings.accumulate * -(-settings.batch_size // batch) if batch else 0
    advice = f"--batch-size {batch} --accumulate {accumulate} fits" if batch else "no batch size fits; use a larger GPU"
    raise MemoryError(
        f"training needs about {needed / 1e9:.1f} GB, and {machine.device} has {free / 1e9:.1f} GB free; {advice}. "
        "--force trains anyway"
    )


def main() -> int:
    """Train with the command line's settings; return 130 if interrupted."""
    settings = tyro.cli(OpenVLAFinetune, prog="python -m services.openvla.training", description=__doc__)
    machine = choose_machine(settings.device, settings.precision)
    with StopSignal() as stop:
        is_complete = train(settings, Volume(), machine, stop)
    destroy_process_group()
    return 0 if is_complete else entrypoint.INTERRUPTED


if __name__ == "__main__":
    entrypoint.run(main, expected=(ValueError, MemoryError))
