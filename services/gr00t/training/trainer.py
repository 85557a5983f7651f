"""A run's state and its one step: what is kept in a training state, and what changes it."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.gr00t.training import network
from services.gr00t.training.network import FlowLoss
from services.gr00t.training.samples import Batch
from services.gr00t.training.settings import Finetune
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import WeightFiles

BETAS, DECAY, WARMUP, CLIP = (0.95, 0.999), 1e-5, 0.05, 1.0  # upstream's; the clip is its Trainer's default


def states_of(directory: Path) -> WeightFiles:
    """Returns the training states in a run's folder: step_12.pt is the state after step 12."""
    return WeightFiles(directory, "step", frozenset({"trained", "optimizer", "step", "identity"}))


def learning_rate(settings: Finetune, step: int) -> float:
    """Returns the rate of a step, the first being 0: it rises evenly from 0, then falls as half a cosine."""
    warmup = math.ceil(WARMUP * settings.max_steps)
    if step < warmup:
        return settings.learning_rate * step / warmup
    share = (step - warmup) / max(1, settings.max_steps - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


class Trainer:
    """A run: network, optimizer, and how many steps are done."""

    def __init__(self, settings: Finetune, machine: Machine, loss: FlowLoss, directory: Path, identity: dict[str, Any]):
        self.settings, self.machine, self.directory, self.identity = settings, machine, directory, identity
        self.model, self.step = loss.model, 0
        self.trained = network.trained_parameters(self.model)
        self.loss = nn.parallel.DistributedDataParallel(loss) if machine.world > 1 else loss
        fused = machine.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(self._groups(), lr=0.0, betas=BETAS, fused=fused)
        self.states = states_of(directory)

    def _groups(self) -> list[dict[str, Any]]:
        """Returns the parameters; biases and norms do not decay, as with upstream's Trainer."""
        norms = {name for name, module in self.model.named_modules() if isinstance(module, nn.LayerNorm)}
        plain = [name for name in self.trained if "bias" in name or name.rpartition(".")[0] in norms]
        decayed = [one for name, one in self.trained.items() if name not in plain]
        return [
            {"params": decayed, "weight_decay": DECAY},
            {"params": [self.trained[name] for name in plain], "weight_decay": 0.0},
        ]

    def learn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Takes a step; returns loss and the gradient's norm, scalars on the device."""
        network.set_training(self.model, self.settings)
        seed = random.Random(f"{self.settings.seed} {self.step} {self.machine.rank}").getrandbits(32)
        torch.manual_seed(seed)  # dropout follows from seed, step and process, so that a run that goes on repeats it
        with self.machine.autocast():
            loss = self.loss(*batch.to(self.machine.device))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.trained.values(), CLIP)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.settings, self.step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach(), norm

    def save(self) -> Path:
        """Writes the state, whole or not at all, and returns its file; older ones than `keep` go."""
        path = self.states.path(self.step)
        state = {
            "trained": {name: one.detach() for name, one in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "identity": self.identity,
            "threads": self.machine.threads,
        }
        self.states.save(path, state, self.settings.keep)
        return path

    def resume(self) -> Path | None:
        """Takes over the newest state that is whole; returns its file, None for a new start.

        Raises ValueError where it belongs to other data, another base or other settings.
        """
        found = self.states.load_latest("cpu")
        if found is None:
            return None
        path, state = found
        for name, ours in self.identity.items():
            if (theirs := state["identity"].get(name)) != ours:
                raise ValueError(
                    f"{self.directory.name} was begun with {name.replace('_', ' ')} {theirs}, this command has {ours}; "
                    "give the same, or another --name"
                )
        self.machine.restore_threads(state.get("threads"))
        with torch.no_grad():
            for name, one in self.trained.items():
                one.copy_(state["trained"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return path
