"""mini-VLA as a policy of the contract."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from services.minivla import data, train
from services.minivla.config import SIZES, Config
from services.minivla.data import Learned, as_input
from services.minivla.heads import HEADS, TIMESTEPS
from services.minivla.model import Memory, MiniVLA
from services.ws_mdl.frames import small
from vla_common.versions import lock_hash, versions
from vla_contract import ActionChunk, Checkpoint, Observation, Policy, PolicyInfo
from vla_modelkit import noise
from vla_modelkit.devices import choose_device, device_name
from vla_modelkit.training.weights import WeightFiles

PROFILE = "minivla"
PICTURE = 128  # pixels of the pictures that the profile sends


@dataclass
class MiniVLAPolicy(Policy):
    """Serves a trained network. Stateless: an action follows from observation, episode, step and seed."""

    nn_model: MiniVLA
    config: Config
    learned: Learned
    checkpoint: Checkpoint
    steps: int = 10  # of denoising
    max_batch: int = 16
    seed: int = 0
    told: str = ""  # in place of every instruction
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self):
        if not 1 <= self.steps <= TIMESTEPS:
            raise ValueError(f"denoising steps are {self.steps}; expected 1 to {TIMESTEPS}")
        self.head, self.tokenizer = HEADS[self.config.head](), Tokenizer.from_str(self.learned.tokenizer)
        self.nn_model.to(self.device)

    def info(self) -> PolicyInfo:
        """Returns what it needs and answers, and what it learned from."""
        return PolicyInfo(
            name="minivla",
            action=self.learned.action_parts,
            state=self.learned.state_parts if self.config.state else (),
            checkpoint=self.checkpoint,
            device=device_name(self.device),
            cameras=self.learned.cameras,
            image_hw=(PICTURE, PICTURE),
            horizon=self.config.chunk,
            max_batch=self.max_batch,
            profile=PROFILE,
            lock_hash=lock_hash(),
            details=self._details(),
        )

    def _details(self) -> dict[str, str]:
        known, config = self.learned, self.config
        learned = {"data": known.data, "data_digest": known.digest, "demonstrations": str(known.demonstrations)}
        if known.left_out:
            learned |= {"left_out": f"{known.left_out} marked as bad ({known.marks})"}
        trained = {"size": config.size, "head": config.head, "epochs": str(config.epochs)}
        acts = {"denoising_steps": str(self.steps), "seed": str(self.seed)} | ({"told": self.told} if self.told else {})
        return learned | {"learned_from": known.source or "unknown"} | trained | acts | versions(("torch",))

    def example(self, level: int = 0) -> Observation:
        """Returns an observation of pictures with one grey level (0 to 255), for the first inference."""
        image = np.full((PICTURE, PICTURE, 3), level, np.uint8)
        state = np.zeros(len(self.learned.state.offset), np.float32) if self.config.state else None
        return Observation(dict.fromkeys(self.learned.cameras, image), state, "pick up the cup", "warm-up", 0)

    @torch.inference_mode()
    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Returns a chunk [T, A] for every observation; what the gripper is told stays within its range."""
        memory, cache = self.observe(observations), self.nn_model.new_cache()
        seeds = [noise.seed_of(observation, self.seed) for observation in observations]
        start = noise.draw(seeds, self.config.chunk, self.nn_model.shape.action)

        def predict(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.nn_model.denoise(x.to(self.device), time.to(self.device), memory, cache).float().cpu()

        actions = self.learned.action.undo(self.head.sample(predict, start, self.steps)).numpy()
        last = self.learned.action_parts[-1]  # the gripper, of every robot so far
        actions[..., -1] = actions[..., -1].clip(last.low, last.high)
        return [ActionChunk(chunk) for chunk in actions]

    def observe(self, observations: list[Observation]) -> Memory:
        """Returns the network's memory of observations."""
        side = SIZES[self.config.size]["side"]
        seen = [
            small(np.stack([observation.images[c] for observation in observations]), side) for c in self.learned.cameras
        ]
        words = data.encode(self.tokenizer, [self.told or observation.instruction for observation in observations])[
            :, : train.WORDS
        ]
        state = torch.zeros(len(observations), 0)
        if self.config.state:
            state = self.learned.state(
                torch.from_numpy(np.stack([observation.state for observation in observations])).float()
            )
        given = (as_input(torch.stack(seen, 1)), words)
        images, words, state = (one.to(self.device) for one in (*given, state))
        return self.nn_model.observe(images, words, self.tokenizer.token_to_id("[PAD]"), state)


def newest(runs: Path, name: str) -> tuple[Path, WeightFiles]:
    """Returns the newest weights of run `name`, of the one trained last without one. Raises ValueError for none."""
    directories = [runs / name] if name else [path for path in runs.glob("*") if path.is_dir()]
    found = [
        (path, files) for directory in directories if (path := (files := WeightFiles(directory, train.PREFIX)).latest())
    ]
    if found:
        return max(found, key=lambda one: os.stat(one[0]).st_mtime)
    known = ", ".join(sorted(path.name for path in runs.glob("*") if path.is_dir())) or "none"
    what = f"no mini-VLA {name!r} was trained (there are: {known})" if name else "no mini-VLA was trained yet"
    raise ValueError(f"{what}; ./lab train minivla --data NAME trains one")


def load_policy(
    path: Path, files: WeightFiles, device: str, steps: int, max_batch: int, seed: int, told: str = ""
) -> MiniVLAPolicy:
    """Returns the policy of a weights file."""
    state = files.load(path)
    if "learned" not in state:
        raise ValueError(f"{path} is no mini-VLA's weights file; train one: ./lab train minivla --data NAME")
    nn_model, config, learned = train.model_from(state)
    checkpoint = Checkpoint(f"minivla/{path.parent.name}", path.stem)
    chosen = choose_device(device)
    return MiniVLAPolicy(nn_model, config, learned, checkpoint, steps, max_batch, seed, told, chosen)
