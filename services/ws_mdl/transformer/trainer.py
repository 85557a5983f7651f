"""A training run's state and its one step: what is kept in a weights file, and what changes it."""

from __future__ import annotations

import math
import random
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from services.ws_mdl.transformer import checkpoints
from services.ws_mdl.transformer.config import Config
from services.ws_mdl.transformer.dataset import Batch
from services.ws_mdl.transformer.loss import TranslationLoss
from services.ws_mdl.transformer.model import Transformer, build_transformer
from services.ws_mdl.transformer.tokenization import fingerprint
from services.ws_mdl.transformer.validation import Validation
from vla_modelkit.training.machine import Machine

MAX_POINTS = 2000  # of the curve: more than a picture has columns of pixels


class Data(NamedTuple):
    """What a run learns from, and the tokenizers that its words come from."""

    train_dataloader: DataLoader
    val_dataloader: DataLoader
    tokenizer_src: Tokenizer
    tokenizer_tgt: Tokenizer


def get_model(config: Config, vocab_src_len: int, vocab_tgt_len: int) -> Transformer:
    """Returns a new model of the configuration's size; the same seed gives the same weights."""
    torch.manual_seed(config.seed)
    return build_transformer(
        vocab_src_len, vocab_tgt_len, config.seq, config.seq, config.d_model, config.N, config.h, config.dropout,
        config.d_ff, norm=config.norm, activation=config.activation, positions=config.positions, tied=config.tied,
    )  # fmt: skip


def learning_rate(config: Config, step: int) -> float:
    """Returns the rate of a step, the first being 1: constant, or the paper's, which rises and falls (section 5.3)."""
    if config.schedule == "constant":
        return config.lr
    return config.lr_factor * config.d_model**-0.5 * min(step**-0.5, step * config.warmup_steps**-1.5)


class Trainer:
    """A run: model, optimizer, and how far it has come.

    epoch: the last one that is finished, -1 for none. batches: how many of the next one are done. loss_sum and words:
    of those batches. history: each finished epoch's metrics, with the seconds of training until then. points: of the
    training loss, from the first step on, each with its step and the seconds until then; the curve is drawn of them.
    """

    def __init__(self, config: Config, machine: Machine, data: Data, folder: Path) -> None:
        self.config, self.machine, self.data, self.folder = config, machine, data, folder
        sizes = data.tokenizer_src.get_vocab_size(), data.tokenizer_tgt.get_vocab_size()
        self.model = get_model(config, *sizes).to(machine.device)
        self.loss_fn = TranslationLoss(self.model, config.label_smoothing)
        self.wrapped = self._wrap(self.loss_fn)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.0, **self._adam())
        self.epoch, self.batches, self.global_step = -1, 0, 0
        self.first_epoch = 0  # that this lab trained; those before it are a file's that was put here
        self.loss_sum, self.words, self.seconds = torch.zeros((), device=machine.device), 0, 0.0
        self.history: list[dict[str, Any]] = []
        self.points: list[dict[str, float]] = []
        self.stopped = False

    def _adam(self) -> dict[str, Any]:
        """Returns Adam's settings; fused: one pass over the weights instead of one per operation."""
        return {"betas": (0.9, self.config.beta2), "eps": 1e-9, "fused": self.machine.device.type in ("cpu", "cuda")}

    def _wrap(self, module: nn.Module) -> nn.Module:
        if self.config.compile:
            module = torch.compile(module, dynamic=True)  # batches differ in length
        if self.machine.world > 1:
            module = nn.parallel.DistributedDataParallel(module)
        return module

    # --- learning -------------------------------------------------------------------------------------------

    def step(self, batches: list[Batch]) -> Tensor:
        """Learns from some batches as if they were one; returns the gradient's norm, a scalar on the device.

        Neither it nor `loss_sum` is read here: a GPU would have to finish its work first.
        """
        self.wrapped.train()
        self.global_step += 1
        self._seed_dropout()
        words = sum(batch.real.numel() for batch in batches)
        (all_words,) = self.machine.sums(words)
        for batch in batches:
            with self._no_exchange(unless=batch is batches[-1]):
                with self.machine.autocast():
                    loss = self.wrapped(*batch.to(self.machine.device))
                (loss * (self.machine.world / all_words)).backward()  # gradients of processes are averaged, not summed
            self.loss_sum += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.global_step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.batches += len(batches)
        self.words += words
        return norm

    def _seed_dropout(self) -> None:
        """Makes dropout depend on seed, step and process only, so that a resumed run repeats it."""
        torch.manual_seed(random.Random(f"{self.config.seed} {self.global_step} {self.machine.rank}").getrandbits(32))

    def _no_exchange(self, unless: bool) -> AbstractContextManager:
        """Returns a context in which processes do not exchange gradients: they do so once per step."""
        return nullcontext() if unless or self.machine.world == 1 else self.wrapped.no_sync()

    def add_point(self, loss: float, seconds: float) -> None:
        """Keeps a point of the training loss; of more than MAX_POINTS, every other one."""
        self.points.append({"step": self.global_step, "seconds": seconds, "loss": loss})
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]

    def finish_epoch(self, validation: Validation | None) -> None:
        """Counts the epoch as done, and keeps what it came to."""
        self.epoch += 1
        if validation:
            train_loss = float(self.loss_sum) / max(1, self.words)
            point = {"epoch": self.epoch, "step": self.global_step, "seconds": self.seconds, "train_loss": train_loss}
            self.history.append({**point, **validation.metrics()})
        self.batches, self.words = 0, 0
        self.loss_sum.zero_()

    # --- keeping --------------------------------------------------------------------------------------------

    def save(self) -> Path:
        """Writes the state to the run's folder and returns its file."""
        epoch = self.epoch + 1 if self.batches else self.epoch
        path = checkpoints.get_weights_file_path(self.folder, epoch, self.batches)
        checkpoints.files_of(self.folder).save(path, self.state(), self.config.keep)
        return path

    def state(self) -> checkpoints.State:
        """Returns all that a run needs to go on with the same bits; nothing of a random generator is among it."""
        return {
            "model_state_dict": self.model.state_dict(),
            "optimizer_state_dict": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "first_epoch": self.first_epoch,
            "global_step": self.global_step,
            "batches": self.batches,
            "loss_sum": float(self.loss_sum),
            "words": self.words,
            "seconds": self.seconds,
            "history": self.history,
            "points": self.points,
            "config": self.config.stored(),
            "tokenizers": self.fingerprints(),
            "order": self.order(),
            "threads": self.machine.threads,
        }

    def fingerprints(self) -> dict[str, str]:
        """Returns what tells the two vocabularies from others."""
        return {"source": fingerprint(self.data.tokenizer_src), "target": fingerprint(self.data.tokenizer_tgt)}

    def order(self) -> dict[str, int]:
        """Returns what the order of batches depends on; with another one, an epoch cannot go on in its middle."""
        config = self.config
        examples = len(self.data.train_dataloader.dataset)
        size = {"batch_size" if config.batch_size else "batch_tokens": config.batch_size or config.batch_tokens}
        return {"sentences": examples, **size, "seed": config.seed, "world": self.machine.world}

    def resume(self) -> Path | None:
        """Takes over the state that the configuration's `preload` names; returns its file, or None for a new start.

        Raises ValueError, naming both sides, where it belongs to another model, corpus or vocabulary.
        """
        found = checkpoints.files_of(self.folder).load_chosen(self.config.preload, self.machine.device)
        if found is None:
            return None
        path, state = found
        self._check(path, state)
        self.machine.restore_threads(state.get("threads"))
        advice = "give the same size and settings, or another --name"
        checkpoints.load_into(self.model, path, state, self.config.stored(), advice)
        for group in state["optimizer_state_dict"]["param_groups"]:
            group.update(self._adam())  # a file of the course, or of another device, has others
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.epoch, self.global_step = state["epoch"], state["global_step"]
        own = "config" in state  # the course's files have none
        self.first_epoch = state.get("first_epoch", 0) if own else self.epoch + 1
        self.history, self.seconds = state.get("history", []), state.get("seconds", 0.0)
        self.points = state.get("points", [])
        if state.get("order", self.order()) == self.order():
            self.batches, self.words = state.get("batches", 0), state.get("words", 0)
            self.loss_sum.fill_(state.get("loss_sum", 0.0))
        elif state["batches"] and self.machine.is_main:
            print(f"epoch {self.epoch + 1} begins anew: {path.name} has {state['order']}, this run {self.order()}")
        return path

    def _check(self, path: Path, state: checkpoints.State) -> None:
        theirs, ours = state.get("config", {}), self.config.stored()
        for name in ("corpus", "pair", "tokenizer"):
            if theirs.get(name, ours[name]) != ours[name]:
                raise ValueError(
                    f"{path} was trained with {name} {theirs[name]}, this run has {ours[name]}; give another --name"
                )
        vocabularies = state.get("tokenizers", self.fingerprints())
        if vocabularies != self.fingerprints():
            raise ValueError(
                f"{path} has the vocabularies {vocabularies}, the tokenizers beside it are {self.fingerprints()}; "
                "put back the tokenizer files it was trained with, or give another --name"
            )
