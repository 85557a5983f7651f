"""Train a Transformer to translate.

    python -m services.ws_mdl.transformer.train --size small --epochs 20

Ctrl-C saves and stops. The same command resumes and ends with the same bits as an uninterrupted run: the order of
batches depends on seed and epoch only, dropout on seed and step.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from services.ws_mdl import corpora
from services.ws_mdl.epochs import LONG
from services.ws_mdl.transformer import visualize
from services.ws_mdl.transformer.config import PREFIX, Config, get_config
from services.ws_mdl.transformer.dataset import (
    Batch,
    BucketSampler,
    CountSampler,
    PairDataset,
    Special,
    get_loader,
    split_pairs,
)
from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.model import TranslationLoss, get_model, load_into
from services.ws_mdl.transformer.tokenization import fingerprint, get_or_build_tokenizer, split_words
from vla_common import entrypoint
from vla_common.volume import Volume, display_path
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine, choose_machine, destroy_process_group
from vla_modelkit.training.progress import Progress
from vla_modelkit.training.stopping import StopSignal
from vla_modelkit.training.weights import WeightFiles

__all__ = [
    "Trainer", "get_config", "get_ds", "get_model", "get_weights_file_path", "latest_weights_file_path",
    "run_validation", "train_model",
]  # fmt: skip

INTERRUPTED = 130  # exit code after Ctrl-C, as a shell has it
MAX_POINTS = 2000  # of the curve, more than an image has pixel columns

# --- data ---------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """A run's data and tokenizers."""

    train_dataloader: DataLoader
    val_dataloader: DataLoader
    tokenizer_src: Tokenizer
    tokenizer_tgt: Tokenizer


def get_ds(config: Config, directory: Path, machine: TrainingMachine, volume: Volume) -> Data:
    """Load the corpus as batches, and its tokenizers, which are trained and stored in the run's directory once."""
    corpus = corpora.load(config.corpus, config.pair, volume)
    train_pairs, val_pairs = split_pairs(corpus.pairs, config.val_fraction)
    tokenizers = [
        get_or_build_tokenizer(
            directory / f"tokenizer_{language}.json", (pair[side] for pair in train_pairs),
            config.tokenizer, config.min_frequency, config.vocab_size,
        )
        for side, language in enumerate(corpus.languages)
    ]  # fmt: skip
    train_ds = PairDataset(train_pairs, *tokenizers, config.seq, config.too_long)
    val_ds = PairDataset(val_pairs, *tokenizers, config.seq, config.too_long)
    if machine.is_main:
        sizes = f"{len(train_ds):,} training and {len(val_ds):,} validation pairs"
        print(f"corpus {corpus.name} {corpus.languages}: {sizes}")
        print("first pair: {!r} → {!r}".format(*corpus.pairs[0]))
        longer = f"pairs have more than seq = {config.seq} tokens and are"
        if skipped := train_ds.skipped + val_ds.skipped:
            print(f"{skipped:,} {longer} skipped; --set too-long=cut cuts them instead")
        if cut := train_ds.cut + val_ds.cut:
            print(f"{cut:,} {longer} cut; --set too-long=skip omits them instead")
    specials = [Special.of(tokenizer) for tokenizer in tokenizers]
    position = {"seed": config.seed, "rank": machine.rank, "world": machine.world}
    if config.batch_size:
        shuffled, width = CountSampler(train_ds.lengths(), config.batch_size, **position), config.seq
    else:
        shuffled, width = BucketSampler(train_ds.lengths(), config.batch_tokens, shuffle=True, **position), None
    in_order = BucketSampler(val_ds.lengths(), config.batch_tokens, shuffle=False)
    return Data(get_loader(train_ds, shuffled, *specials, width), get_loader(val_ds, in_order, *specials), *tokenizers)


# --- validation ---------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A source sentence, its reference translation, and the model's."""

    source: str
    target: str
    predicted: str


class Validation(NamedTuple):
    """loss: mean over all validation words, without label smoothing. The rest: over the translated samples, 0 to 1."""

    loss: float
    bleu: float  # 4-gram, on words, placeholders and punctuation
    cer: float  # wrong characters per reference character
    wer: float  # wrong words per reference word
    exact: float  # share of translations equal to the reference
    samples: list[Sample]

    def metrics(self) -> dict[str, float]:
        """Return the numbers by their names."""
        return {name: value for name, value in self._asdict().items() if name != "samples"}

    def __str__(self) -> str:
        return (
            f"validation loss {self.loss:.3f}, BLEU {100 * self.bleu:.1f}, CER {100 * self.cer:.0f} %, "
            f"WER {100 * self.wer:.0f} %, exact {100 * self.exact:.1f} %"
        )


@torch.inference_mode()
def run_validation(
    loss_fn: TranslationLoss, val_dataloader: DataLoader, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer,
    machine: TrainingMachine, seq: int, num_examples: int, beam: int = 1,
) -> Validation:  # fmt: skip
    """Validate `loss_fn.model`; translate `num_examples` sentences, evenly spread over the data."""
    was_training = loss_fn.training
    loss_fn.eval()
    total, count = torch.zeros((), device=machine.device), 0
    pairs = val_dataloader.dataset.pairs
    pairs = pairs[:: max(1, len(pairs) // max(1, num_examples))][:num_examples]
    for batch in val_dataloader:
        count += batch.real.numel()
        with machine.autocast():
            total += loss_fn(*batch.to(machine.device), smoothing=0.0)
    with machine.autocast():
        sources = [source for source, _ in pairs]
        predicted = translate(loss_fn.model, sources, tokenizer_src, tokenizer_tgt, seq=seq, beam=beam)
    samples = [Sample(source, target, text) for (source, target), text in zip(pairs, predicted, strict=True)]
    loss_fn.train(was_training)
    return Validation(float(total) / count, *scores(samples), samples)


def scores(samples: list[Sample]) -> tuple[float, float, float, float]:
    """Return BLEU, CER, WER and the share of exact matches, on words joined by single spaces."""
    if not samples:
        return 0.0, 1.0, 1.0, 0.0
    from torchmetrics.functional import text  # takes seconds to import

    predicted = [" ".join(split_words(sample.predicted)) for sample in samples]
    expected = [" ".join(split_words(sample.target)) for sample in samples]
    exact = sum(p == e for p, e in zip(predicted, expected, strict=True)) / len(samples)
    bleu = text.bleu_score(predicted, [[line] for line in expected])
    errors = text.char_error_rate(predicted, expected), text.word_error_rate(predicted, expected)
    return float(bleu), *map(float, errors), exact


def as_text(samples: list[Sample], count: int = 2) -> str:
    """Format samples for the terminal."""
    width = int(os.environ.get("COLUMNS", 100)) - 12
    rows = [row for sample in samples[:count] for row in sample._asdict().items()]
    return "\n".join(f"{name.upper():>10}: {text[:width]}" for name, text in rows)


# --- a run's state ------------------------------------------------------------------------------------------


def get_weights_file_path(directory: Path, epoch: int, batches: int = 0) -> Path:
    """Return the path of the weights after an epoch (tmodel_07.pt) or `batches` into it (tmodel_08_000123.pt)."""
    return WeightFiles(directory, PREFIX).path(epoch, batches)


def latest_weights_file_path(directory: Path) -> Path | None:
    """Return the newest weights file of a run by its number, or None."""
    return WeightFiles(directory, PREFIX).latest()


def learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of a step, counted from 1: constant, or the paper's schedule (section 5.3)."""
    if config.schedule == "constant":
        return config.lr
    return config.lr_factor * config.d_model**-0.5 * min(step**-0.5, step * config.warmup_steps**-1.5)


class Trainer:
    """A run: model, optimizer and progress.

    epoch: the last one that is finished, -1 for none. batches: how many of the next one are done. loss_sum and
    token_count: of those batches. history: each finished epoch's metrics, with the seconds of training until then.
    points: of the training loss, each with its step and the seconds until then; the curve is drawn of them.
    """

    def __init__(self, config: Config, machine: TrainingMachine, data: Data, directory: Path) -> None:
        self.config, self.machine, self.data, self.directory = config, machine, data, directory
        sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
        self.model = get_model(config, *sizes).to(machine.device)
        self.loss_fn = TranslationLoss(self.model, config.label_smoothing)
        self.wrapped: nn.Module = self.loss_fn
        if config.compile:
            self.wrapped = torch.compile(self.wrapped, dynamic=True)  # batches differ in length
        if machine.world > 1:
            self.wrapped = nn.parallel.DistributedDataParallel(self.wrapped)
        # fused: one pass over the weights instead of one per operation
        self.adam = {"betas": (0.9, config.beta2), "eps": 1e-9, "fused": machine.device.type in ("cpu", "cuda")}
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, **self.adam)
        self.epoch, self.batches, self.global_step = -1, 0, 0
        self.first_epoch = 0  # trained by this lab; earlier ones are of an imported file
        self.loss_sum, self.token_count, self.seconds = torch.zeros((), device=machine.device), 0, 0.0
        self.history: list[dict[str, Any]] = []
        self.points: list[dict[str, float]] = []
        self.stopped = False

    def step(self, batches: list[Batch]) -> Tensor:
        """Take one optimizer step on accumulated batches; return the gradient's norm, a scalar on the device.

        Neither it nor `loss_sum` is read here, which would synchronize with the GPU.
        """
        config, machine = self.config, self.machine
        self.wrapped.train()
        self.global_step += 1
        # dropout depends on seed, step and process only, so a resumed run repeats it
        torch.manual_seed(random.Random(f"{config.seed} {self.global_step} {machine.rank}").getrandbits(32))
        token_count = sum(batch.real.numel() for batch in batches)
        (total_tokens,) = machine.all_reduce(token_count)
        for batch in batches:
            exchanges = machine.world == 1 or batch is batches[-1]  # processes exchange gradients once per step
            with nullcontext() if exchanges else self.wrapped.no_sync():
                with machine.autocast():
                    loss = self.wrapped(*batch.to(machine.device))
                (loss * (machine.world / total_tokens)).backward()  # gradients of processes are averaged, not summed
            self.loss_sum += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.global_step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.batches += len(batches)
        self.token_count += token_count
        return norm

    def add_point(self, loss: float, seconds: float) -> None:
        """Record a point of the training loss; drop every other one beyond MAX_POINTS."""
        self.points.append({"step": self.global_step, "seconds": seconds, "loss": loss})
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]

    def finish_epoch(self, validation: Validation | None) -> None:
        """Count the epoch as done, and record its results."""
        self.epoch += 1
        if validation:
            train_loss = float(self.loss_sum) / max(1, self.token_count)
            point = {"epoch": self.epoch, "step": self.global_step, "seconds": self.seconds, "train_loss": train_loss}
            self.history.append({**point, **validation.metrics()})
        self.batches, self.token_count = 0, 0
        self.loss_sum.zero_()

    def save(self) -> Path:
        """Save everything that bit-exact resume needs, and return the path.

        The file has the course's keys and more, but no state of a random generator.
        """
        same_names = ("epoch", "first_epoch", "global_step", "batches", "seconds", "history", "points")
        state = {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            **{name: getattr(self, name) for name in same_names},
            "words": self.token_count,
            "loss_sum": float(self.loss_sum),
            "config": self.config.stored(),
            "tokenizers": self.fingerprints(),
            "order": self.order(),
            "threads": self.machine.threads,
        }
        path = get_weights_file_path(self.directory, self.epoch + (self.batches > 0), self.batches)
        WeightFiles(self.directory, PREFIX).save(path, state, self.config.keep)
        return path

    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints of both vocabularies."""
        return {"source": fingerprint(self.data.tokenizer_src), "target": fingerprint(self.data.tokenizer_tgt)}

    def order(self) -> dict[str, int]:
        """Return what the order of batches depends on; only the same order can resume within an epoch."""
        size = "batch_size" if self.config.batch_size else "batch_tokens"
        settings = {size: getattr(self.config, size), "seed": self.config.seed, "world": self.machine.world}
        return {"sentences": len(self.data.train_dataloader.dataset), **settings}

    def resume(self) -> Path | None:
        """Load the state selected by the configuration's `preload`; return its path, or None for a new run.

        Raises ValueError if it belongs to another model, corpus or vocabulary.
        """
        checkpoint = WeightFiles(self.directory, PREFIX).load_for_resume(self.config.preload, self.machine.device)
        if checkpoint is None:
            return None
        path, state = checkpoint
        previous, current = state.get("config", {}), self.config.stored()
        for name in ("corpus", "pair", "tokenizer"):
            if (value := previous.get(name, current[name])) != current[name]:
                raise ValueError(f"{path} was trained with {name} {value}, not {current[name]}; use another --name")
        if (vocabularies := state.get("tokenizers", self.fingerprints())) != self.fingerprints():
            raise ValueError(
                f"{path} has the vocabularies {vocabularies}, but its directory has {self.fingerprints()}; "
                "restore the tokenizer files of its training, or use another --name"
            )
        self.machine.restore_threads(state.get("threads"))
        load_into(self.model, path, state, current, "use the same size and settings, or another --name")
        for group in state["optimizer_state_dict"]["param_groups"]:
            group.update(self.adam)  # files of the course or of another device have other values
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.epoch, self.global_step = state["epoch"], state["global_step"]
        # the course's files have no configuration
        self.first_epoch = state.get("first_epoch", 0) if "config" in state else self.epoch + 1
        self.history, self.seconds = state.get("history", []), state.get("seconds", 0.0)
        self.points = state.get("points", [])
        if state.get("order", self.order()) == self.order():
            self.batches, self.token_count = state.get("batches", 0), state.get("words", 0)
            self.loss_sum.fill_(state.get("loss_sum", 0.0))
        elif state["batches"] and self.machine.is_main:
            print(f"epoch {self.epoch + 1} restarts: {path.name} has {state['order']}, this run {self.order()}")
        return path


# --- the whole run ------------------------------------------------------------------------------------------


def train_model(config: Config, volume: Volume | None = None) -> Trainer:
    """Train to `config.epochs`, or until Ctrl-C or SIGTERM (`stopped`); save and return the run."""
    volume = volume or Volume()
    machine = choose_machine(config.device, config.precision)
    with machine.main_first():
        directory = config.run_directory(volume)
        data = get_ds(config, directory, machine, volume)
    trainer = Trainer(config, machine, data, directory)
    path = trainer.resume()
    curves_dir = config.tensorboard_directory(volume) if machine.is_main else None
    if machine.is_main:
        count = sum(parameter.numel() for parameter in trainer.model.parameters())
        print(f"{config.size} Transformer with {count / 1e6:.1f} million weights on {machine}")
        print(f"weights in {display_path(directory)}, curves in {display_path(curves_dir)}")
        if path:
            print(f"resuming from {path.name}: {trainer.epoch + 1} epochs and {trainer.batches} batches are done")
        if trainer.epoch + 1 >= config.epochs:
            print(f"all {config.epochs} epochs are done; --epochs {config.epochs + 10} continues")
        sys.stdout.flush()
    per_epoch = len(data.train_dataloader.batch_sampler)  # other epochs have about as many
    done = (trainer.epoch + 1) * per_epoch + trainer.batches
    progress = Progress(config.epochs * per_epoch, done, LONG, enabled=machine.is_main)
    with Curves(curves_dir, trainer.global_step) as curves, StopSignal() as stop, progress:
        while trainer.epoch + 1 < config.epochs and not trainer.stopped:
            train_epoch(trainer, curves, stop, progress)
    return trainer


def train_epoch(trainer: Trainer, curves: Curves, stop: StopSignal, progress: Progress) -> None:
    """Train the rest of an epoch, validate if it is complete, and save."""
    config, machine, loader = trainer.config, trainer.machine, trainer.data.train_dataloader
    loader.batch_sampler.set_position(trainer.epoch + 1, trainer.batches)
    batches, started = iter(loader), time.monotonic()
    last = float(trainer.loss_sum), trainer.token_count, started
    while not trainer.stopped and (group := list(islice(batches, config.accumulate))):
        norm = trainer.step(group)
        figures = progress.figures[1:]
        if trainer.global_step == 1 or trainer.global_step % config.log_every == 0:  # read from the device
            now = float(trainer.loss_sum), trainer.token_count, time.monotonic()
            loss_sum, word_count, seconds = (new - old for new, old in zip(now, last, strict=True))
            last, loss, rate = now, loss_sum / max(1, word_count), learning_rate(config, trainer.global_step)
            if not math.isfinite(loss):
                advice = "try a lower rate: --set lr-factor=0.5, or lr with the constant schedule"
                raise ValueError(f"the loss is {loss} at step {trainer.global_step}; {advice}")
            trainer.add_point(loss, trainer.seconds + now[2] - started)
            values = {"loss": loss, "tokens_per_s": machine.world * word_count / seconds, "learning_rate": rate}
            curves.scalars("train", {**values, "gradient_norm": float(norm)}, trainer.global_step)
            figures = f"loss {loss:.3f}", f"{values['tokens_per_s']:,.0f} tokens/s"
        progress.advance(f"epoch {trainer.epoch + 1:02d}", *figures, steps=len(group))
        # processes stop after the same batch
        trainer.stopped = any(machine.all_reduce(int(stop.requested))) and trainer.batches < len(loader.batch_sampler)
    trainer.seconds += time.monotonic() - started
    if not trainer.stopped:
        data, validation = trainer.data, None
        if machine.is_main:
            tokenizers = data.tokenizer_src, data.tokenizer_tgt
            validation = run_validation(
                trainer.loss_fn, data.val_dataloader, *tokenizers, machine, config.seq, config.val_sentences
            )
        trainer.finish_epoch(validation)
        if validation:
            report_epoch(trainer, validation, curves)
    if machine.is_main:
        path = trainer.save()
        if trainer.stopped:
            print(f"stopped after step {trainer.global_step}; saved {path}\nthe same command resumes")
        sys.stdout.flush()


def report_epoch(trainer: Trainer, validation: Validation, curves: Curves) -> None:
    """Log metrics, sample translations, the last layer's attention and the learning curve."""
    data, step, samples = trainer.data, trainer.global_step, validation.samples
    curves.scalars("validation", validation.metrics(), step)
    if samples:
        cells = ([text.replace("|", "\\|") for text in sample] for sample in samples[:10])
        rows = ["source | target | predicted", "---|---|---", *map(" | ".join, cells)]
        curves.writer.add_text("translations", "".join(f"| {row} |\n" for row in rows), step)
        view = visualize.look(
            trainer.model, samples[0].source, samples[0].predicted, data.tokenizer_src, data.tokenizer_tgt
        )
        title = "the last layer looks at the source"
        figure = visualize.plot_attention(view.maps.cross[-1:], view.target, view.source, title)
        curves.writer.add_figure("attention/last_layer", figure, step)
    curve = visualize.plot_curve(trainer.history, trainer.config.name, trainer.points)
    visualize.save(curve, trainer.directory / "curve.png")
    print(f"epoch {trainer.epoch:02d}, {trainer.seconds:.0f} s: {validation}\n{as_text(samples)}", flush=True)


def main() -> None:
    """Train; exit with 130 if the run was stopped."""
    stopped = train_model(tyro.cli(Config, description=__doc__)).stopped
    destroy_process_group()
    sys.exit(INTERRUPTED if stopped else 0)


if __name__ == "__main__":
    entrypoint.run(main)
