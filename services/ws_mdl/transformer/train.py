"""Training a Transformer to translate.

    python -m services.ws_mdl.transformer.train --size small --epochs 20

Ctrl-C saves and stops; the same command goes on, and ends with the same bits as an uninterrupted run: the order of the
batches depends on seed and epoch only, dropout on seed and step.
"""

from __future__ import annotations

import math
import sys
import time
from itertools import islice
from pathlib import Path

import tyro
from matplotlib.figure import Figure

from services.ws_mdl import corpora
from services.ws_mdl.epochs import LONG
from services.ws_mdl.transformer import visualize
from services.ws_mdl.transformer.board import Board
from services.ws_mdl.transformer.config import Config, get_config
from services.ws_mdl.transformer.dataset import (
    BucketSampler,
    CountSampler,
    PairDataset,
    Special,
    get_loader,
    split_pairs,
)
from services.ws_mdl.transformer.tokenization import get_or_build_tokenizer
from services.ws_mdl.transformer.trainer import Data, Trainer, get_model, learning_rate
from services.ws_mdl.transformer.validation import Sample, as_text, run_validation
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.machine import Machine, choose_machine, leave
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal

__all__ = ["get_config", "get_ds", "get_model", "run_validation", "train_model"]

INTERRUPTED = 130  # exit code after Ctrl-C, as a shell has it


def get_ds(config: Config, folder: Path, machine: Machine, volume: Volume) -> Data:
    """Returns the corpus as batches, and its tokenizers, which are stored in the run's folder the first time."""
    corpus = corpora.load(config.corpus, config.pair, volume)
    train_pairs, val_pairs = split_pairs(corpus.pairs, config.val_fraction)
    tokenizers = [
        get_or_build_tokenizer(
            folder / f"tokenizer_{language}.json", (pair[side] for pair in train_pairs),
            config.tokenizer, config.min_frequency, config.vocab_size,
        )
        for side, language in enumerate(corpus.languages)
    ]  # fmt: skip
    train_ds = PairDataset(train_pairs, *tokenizers, config.seq, config.too_long)
    val_ds = PairDataset(val_pairs, *tokenizers, config.seq, config.too_long)
    if machine.is_main:
        print(f"corpus {corpus.name} {corpus.languages}: {len(train_ds):,} pairs to learn, {len(val_ds):,} to check")
        print("first pair: {!r} → {!r}".format(*corpus.pairs[0]))
        _report_long(train_ds.skipped + val_ds.skipped, train_ds.cut + val_ds.cut, config.seq)
    specials = [Special.of(tokenizer) for tokenizer in tokenizers]
    place = {"seed": config.seed, "rank": machine.rank, "world": machine.world}
    if config.batch_size:
        shuffled, width = CountSampler(train_ds.lengths(), config.batch_size, **place), config.seq
    else:
        shuffled, width = BucketSampler(train_ds.lengths(), config.batch_tokens, shuffle=True, **place), None
    in_order = BucketSampler(val_ds.lengths(), config.batch_tokens, shuffle=False)
    return Data(get_loader(train_ds, shuffled, *specials, width), get_loader(val_ds, in_order, *specials), *tokenizers)


def _report_long(skipped: int, cut: int, seq: int) -> None:
    if skipped or cut:
        done, other = ("skipped", "--too-long cut shortens") if skipped else ("cut", "--too-long skip leaves out")
        print(f"{skipped + cut:,} pairs have more than seq = {seq} tokens and are {done}; {other} them")


def train_model(config: Config, volume: Volume | None = None) -> Trainer:
    """Returns the run, trained to `config.epochs`, or saved where Ctrl-C or SIGTERM stopped it (`stopped` says so)."""
    volume = volume or Volume()
    machine = choose_machine(config.device, config.precision)
    with machine.main_first():
        folder = config.run_folder(volume)
        data = get_ds(config, folder, machine, volume)
    trainer = Trainer(config, machine, data, folder)
    path = trainer.resume()
    curves = config.tensorboard_folder(volume) if machine.is_main else None
    if machine.is_main:
        _greet(trainer, path, curves)
    with (
        Board(curves, trainer.global_step) as board, StopSignal() as stop,
        Progress(0, long=LONG, shown=machine.is_main) as progress,
    ):  # fmt: skip
        while trainer.epoch + 1 < config.epochs and not trainer.stopped:
            run_epoch(trainer, board, stop, progress)
    return trainer


def run_epoch(trainer: Trainer, board: Board, stop: StopSignal, progress: Progress) -> None:
    """Trains one epoch, or what is left of it, and validates; saves in any case."""
    started = time.monotonic()
    trainer.stopped = not _learn(trainer, board, stop, progress)
    trainer.seconds += time.monotonic() - started
    if not trainer.machine.is_main:
        if not trainer.stopped:
            trainer.finish_epoch(None)
        return
    if not trainer.stopped:
        _validate(trainer, board)
    path = trainer.save()
    if trainer.stopped:
        print(
            f"stopped after step {trainer.global_step}; saved {path}\nthe same command goes on from there", flush=True
        )


def _learn(trainer: Trainer, board: Board, stop: StopSignal, progress: Progress) -> bool:
    """Goes through the epoch's batches; returns False when it was stopped before the end."""
    config, loader = trainer.config, trainer.data.train_dataloader
    loader.batch_sampler.set_position(trainer.epoch + 1, trainer.batches)
    batches = iter(loader)
    _place(progress, trainer)
    meter = Meter(trainer)
    while group := list(islice(batches, config.accumulate)):
        norm = trainer.step(group)
        figures = ()
        if trainer.global_step == 1 or trainer.global_step % config.log_every == 0:
            values = {**meter.read(), "gradient_norm": float(norm)}
            trainer.add_point(values["loss"], meter.seconds())
            board.scalars("train", values, trainer.global_step)
            figures = f"loss {values['loss']:.3f}", f"{values['tokens_per_s']:,.0f} tokens/s"
        progress.advance(f"epoch {trainer.epoch + 1:02d}", *(figures or progress.figures[1:]), steps=len(group))
        if sum(trainer.machine.sums(int(stop.asked))):
            return trainer.batches == len(loader.batch_sampler)
    return True


def _place(progress: Progress, trainer: Trainer) -> None:
    """Puts the progress where the trainer is, of all epochs: they have about equally many batches."""
    per_epoch = len(trainer.data.train_dataloader.batch_sampler)
    if not progress.total:
        progress.first = progress.done = (trainer.epoch + 1) * per_epoch + trainer.batches
    progress.total = trainer.config.epochs * per_epoch


class Meter:
    """The mean loss and speed since it was last read: the only places where a step's results leave the device."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.last = float(trainer.loss_sum), trainer.words, time.monotonic()
        self.begun = self.last[2] - trainer.seconds

    def seconds(self) -> float:
        """Returns how long the run has trained, those parts of it too that ended before."""
        return self.last[2] - self.begun

    def read(self) -> dict[str, float]:
        """Returns loss per word, real target words per second of all processes, and rate.

        Raises ValueError where the loss is no number any more.
        """
        trainer = self.trainer
        now = float(trainer.loss_sum), trainer.words, time.monotonic()
        loss_sum, words, seconds = (new - old for new, old in zip(now, self.last, strict=True))
        self.last = now
        loss = loss_sum / max(1, words)
        if not math.isfinite(loss):
            advice = "try a lower rate: --set lr-factor=0.5, or lr with the constant schedule"
            raise ValueError(f"the loss is {loss} at step {trainer.global_step}; {advice}")
        rate = learning_rate(trainer.config, trainer.global_step)
        return {"loss": loss, "tokens_per_s": trainer.machine.world * words / seconds, "learning_rate": rate}


def _validate(trainer: Trainer, board: Board) -> None:
    """Ends an epoch: metrics, sample translations, and a picture of where the last layer looks."""
    config, data, step = trainer.config, trainer.data, trainer.global_step
    found = run_validation(
        trainer.loss_fn, data.val_dataloader, data.tokenizer_src, data.tokenizer_tgt,
        trainer.machine, config.seq, config.val_sentences,
    )  # fmt: skip
    trainer.finish_epoch(found)
    board.scalars("validation", found.metrics(), step)
    board.samples(found.samples, step)
    if found.samples:
        board.figure("attention/last_layer", _attention_figure(trainer, found.samples[0]), step)
    visualize.save(visualize.plot_curve(trainer.history, config.name, trainer.points), trainer.folder / "curve.png")
    print(f"epoch {trainer.epoch:02d}, {trainer.seconds:.0f} s: {found}\n{as_text(found.samples)}", flush=True)


def _attention_figure(trainer: Trainer, sample: Sample) -> Figure:
    data = trainer.data
    view = visualize.look(trainer.model, sample.source, sample.predicted, data.tokenizer_src, data.tokenizer_tgt)
    title = "the last layer looks at the source"
    return visualize.plot_attention(view.maps.cross[-1:], view.target, view.source, title)


def _greet(trainer: Trainer, path: Path | None, curves: Path) -> None:
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    print(f"{trainer.config.size} Transformer with {count / 1e6:.1f} million weights on {trainer.machine}")
    print(f"weights in {shown(trainer.folder)}, curves in {shown(curves)}")
    if path:
        print(f"going on from {path.name}: {trainer.epoch + 1} epochs and {trainer.batches} batches are done")
    if trainer.epoch + 1 >= trainer.config.epochs:
        print(f"all {trainer.config.epochs} epochs are done; --epochs {trainer.config.epochs + 10} goes on")
    sys.stdout.flush()


def main() -> None:
    """Trains as the flags say; exits with 130 when it was stopped."""
    stopped = train_model(tyro.cli(Config, description=__doc__)).stopped
    leave()
    sys.exit(INTERRUPTED if stopped else 0)


if __name__ == "__main__":
    endings.run(main)
