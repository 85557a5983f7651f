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
from services.minivla.data import DatasetStats, as_input
from services.minivla.heads import HEADS, TIMESTEPS
from services.minivla.model import EncodedObservations, MiniVLA
from services.ws_mdl.frames import small
from vla_common.versions import lock_hash, versions
from vla_contract import ActionChunk, Checkpoint, Observation, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_OPENS
from vla_modelkit import noise
from vla_modelkit.devices import choose_device, device_name
from vla_modelkit.training.weights import WeightFiles

PROFILE = "minivla"
IMAGE_SIZE = 128  # pixels; height and width of the images that the profile sends


@dataclass
class MiniVLAPolicy(Policy):
    """A trained network as a policy. Stateless: actions depend on observation, episode, step and seed only."""

    nn_model: MiniVLA
    config: Config
    learned: DatasetStats
    checkpoint: Checkpoint
    steps: int = 10  # of denoising
    max_batch: int = 16
    seed: int = 0
    instruction_override: str = ""  # replaces every instruction
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self):
        if not 1 <= self.steps <= TIMESTEPS:
            raise ValueError(f"--denoising-steps must be in [1, {TIMESTEPS}], got {self.steps}")
        self.head, self.tokenizer = HEADS[self.config.head](), Tokenizer.from_str(self.learned.tokenizer)
        self.nn_model.to(self.device)

    def info(self) -> PolicyInfo:
        stats, config = self.learned, self.config
        parts = f"{config.looks} of seeing, {config.acts} of acting"
        details = {
            "data": stats.data,
            "data_digest": stats.digest,
            "demonstrations": str(stats.demonstrations),
            "left_out": f"{stats.left_out} marked as bad ({stats.marks})" if stats.left_out else "",
            "learned_from": stats.source or "unknown",
            "size": config.size,
            "head": config.head,
            "epochs": str(config.epochs) if self.nn_model.shape.answers else parts,
            "denoising_steps": str(self.steps),
            "seed": str(self.seed),
            "told": self.instruction_override,
            **versions(("torch",)),
        }
        return PolicyInfo(
            name="minivla",
            action=self.learned.action_parts,
            state=self.learned.state_parts if self.config.state else (),
            checkpoint=self.checkpoint,
            device=device_name(self.device),
            cameras=self.learned.cameras,
            image_hw=(IMAGE_SIZE, IMAGE_SIZE),
            horizon=self.config.chunk,
            max_batch=self.max_batch,
            profile=PROFILE,
            lock_hash=lock_hash(),
            details={name: value for name, value in details.items() if value},
        )

    def example(self, level: int = 0) -> Observation:
        """Return an observation with images of one grey level (0 to 255), for the warm-up."""
        image = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), level, np.uint8)
        state = np.zeros(len(self.learned.state.offset), np.float32) if self.config.state else None
        return Observation(dict.fromkeys(self.learned.cameras, image), state, "pick up the cup", "warm-up", 0)

    @torch.inference_mode()
    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        """Return an action chunk [T, A] for every observation; gripper commands are clipped to their range."""
        memory, cache = self.observe(observations), self.nn_model.new_cache()
        seeds = [noise.seed_of(observation, self.seed) for observation in observations]
        start = noise.draw(seeds, self.config.chunk, self.nn_model.shape.action)

        def predict(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.nn_model.denoise(x.to(self.device), time.to(self.device), memory, cache).float().cpu()

        actions = self.learned.action.undo(self.head.sample(predict, start, self.steps)).numpy()
        last = self.learned.action_parts[-1]  # the gripper, of every robot so far
        actions[..., -1] = actions[..., -1].clip(last.low, last.high)
        if last == GRIPPER_OPENS:  # 0.5 keeps the opening, as the oracle does on the way to a handle
            actions[..., -1] = np.round(2 * actions[..., -1]) / 2
        return [ActionChunk(chunk) for chunk in actions]

    def observe(self, observations: list[Observation]) -> EncodedObservations:
        side = SIZES[self.config.size]["side"]
        cameras = self.learned.cameras
        seen = [small(np.stack([each.images[camera] for each in observations]), side) for camera in cameras]
        texts = [self.instruction_override or observation.instruction for observation in observations]
        word_ids = data.encode(self.tokenizer, texts)[:, : train.MAX_INSTRUCTION_TOKENS]
        state = torch.zeros(len(observations), 0)
        if self.config.state:
            state = self.learned.state(torch.from_numpy(np.stack([each.state for each in observations])).float())
        inputs = (as_input(torch.stack(seen, 1)), word_ids, state)
        images, word_ids, state = (tensor.to(self.device) for tensor in inputs)
        return self.nn_model.observe(images, word_ids, self.tokenizer.token_to_id("[PAD]"), state)


def newest(runs: Path, name: str) -> tuple[Path, WeightFiles]:
    """Return the newest weights of run `name` ("": of the newest run). Raises ValueError if there are none."""
    directories = [runs / name] if name else [path for path in runs.glob("*") if path.is_dir()]
    candidates = [
        (path, files) for directory in directories if (path := (files := WeightFiles(directory, train.PREFIX)).latest())
    ]
    if candidates:
        return max(candidates, key=lambda candidate: os.stat(candidate[0]).st_mtime)
    names = ", ".join(sorted(path.name for path in runs.glob("*") if path.is_dir())) or "none"
    problem = f"mini-VLA run {name!r} not found; known: {names}" if name else "no mini-VLA is trained yet"
    raise ValueError(f"{problem}; train one: ./lab train minivla --data NAME")


def load_policy(
    path: Path, files: WeightFiles, device: str, steps: int, max_batch: int, seed: int, instruction_override: str = ""
) -> MiniVLAPolicy:
    state = files.load(path)
    if "learned" not in state:
        raise ValueError(f"{path} is not a mini-VLA weights file; train one: ./lab train minivla --data NAME")
    nn_model, config, learned = train.model_from(state, path)
    checkpoint = Checkpoint(f"minivla/{path.parent.name}", path.stem)
    torch_device = choose_device(device)
    return MiniVLAPolicy(
        nn_model, config, learned, checkpoint, steps, max_batch, seed, instruction_override, torch_device
    )
