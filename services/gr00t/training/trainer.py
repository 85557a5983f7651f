"""A run's training state, and one training step."""

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
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import WeightFiles

BETAS, DECAY, WARMUP, CLIP = (0.95, 0.999), 1e-5, 0.05, 1.0  # upstream's; the clip is its Trainer's default


def states_of(directory: Path) -> WeightFiles:
    """Return the training states of a run's directory: step_12.pt is the state after step 12."""
    return WeightFiles(directory, "step", frozenset({"trained", "optimizer", "step", "identity"}))


def learning_rate(settings: Finetune, step: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up from 0, then cosine decay."""
    warmup = math.ceil(WARMUP * settings.max_steps)
    if step < warmup:
        return settings.learning_rate * step / warmup
    share = (step - warmup) / max(1, settings.max_steps - warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


class Trainer:
    """A run: network, optimizer, and the number of completed steps."""

    def __init__(
        self, settings: Finetune, machine: TrainingMachine, loss: FlowLoss, directory: Path, identity: dict[str, Any]
    ):
        self.settings, self.machine, self.directory, self.identity = settings, machine, directory, identity
        self.model, self.step = loss.model, 0
        self.trained = network.trained_parameters(self.model)
        self.loss = nn.parallel.DistributedDataParallel(loss) if machine.world > 1 else loss
        # biases and norms have no weight decay, as in upstream's Trainer
        norms = {name for name, module in self.model.named_modules() if isinstance(module, nn.LayerNorm)}
        plain = [name for name in self.trained if "bias" in name or name.rpartition(".")[0] in norms]
        decayed = [parameter for name, parameter in self.trained.items() if name not in plain]
        groups = [
            {"params": decayed, "weight_decay": DECAY},
            {"params": [self.trained[name] for name in plain], "weight_decay": 0.0},
        ]
        fused = machine.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, fused=fused)
        self.states = states_of(directory)

    def learn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Take a training step; return loss and gradient norm, scalars on the device."""
        network.set_training(self.model, self.settings)
        seed = random.Random(f"{self.settings.seed} {self.step} {self.machine.rank}").getrandbits(32)
        torch.manual_seed(seed)  # dropout depends on seed, step and process, so a resumed run repeats it
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

    def save(self) -> None:
        """Write the state atomically; delete all but the newest `keep`."""
        state = {
            "trained": {name: parameter.detach() for name, parameter in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "identity": self.identity,
            "threads": self.machine.threads,
        }
        self.states.save(self.states.path(self.step), state, self.settings.keep)

    def resume(self) -> Path | None:
        """Load the newest valid state; return its file, or None for a new run.

        Raises ValueError if it belongs to other data, another base or other settings.
        """
        latest = self.states.load_latest("cpu")
        if latest is None:
            return None
        path, state = latest
        for name, value in self.identity.items():
            if (previous := state["identity"].get(name)) != value:
                raise ValueError(
                    f"{self.directory.name} was started with {name.replace('_', ' ')} {previous}, not {value}; "
                    "use the same, or another --name"
                )
        self.machine.restore_threads(state.get("threads"))
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(state["trained"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return path
