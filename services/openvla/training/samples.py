"""Training samples: an index of the run to images, token ids, state and actions, the same in any process at any time.

Images take the evaluator's path, which is upstream's (JPEG, Lanczos3, crop); actions and states are scaled by the 1st
and 99th percentile; steps without movement are left out, as in the published training sets.

Source: openvla's prismatic/vla/datasets (c8f03f48), openvla-oft's (213c5ff8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from services.openvla.checkpoint.config import ModelConfig
from services.openvla.checkpoint.oft import CHUNK, STATE_SIZE
from services.openvla.checkpoint.published import SUITES
from services.openvla.checkpoint.statistics import ACTION_TOKENS
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import codec_of, normalise_state
from services.openvla.decoding.engine import MAX_PROMPT
from services.openvla.model.oft import END, PLACEHOLDERS
from services.openvla.training import augmentation
from services.openvla.training.settings import OpenVLAFinetune
from vla_datasets import libero, marks, statistics
from vla_datasets.dataset import Dataset
from vla_datasets.frames import Frames
from vla_evaluation.pictures.transforms import jpeg_round_trip, resize_lanczos3
from vla_evaluation.recording.trajectory import effective_steps
from vla_modelkit.training.trainer import order

CAMERAS = ("agentview", "robot0_eye_in_hand")
MOVING = np.array([True] * 6 + [False])  # of an action's numbers; the gripper is not scaled either


@dataclass(frozen=True)
class Trajectory:
    """An episode without its no-op steps. steps: their numbers in the data set; states and actions in its units."""

    index: int
    instruction: str
    steps: np.ndarray
    states: np.ndarray
    actions: np.ndarray


def read_trajectories(dataset: Dataset) -> list[Trajectory]:
    """Return all episodes. Raises ValueError for numbers that are not those of LIBERO's arm, or not finite."""
    trajectories = []
    for episode in dataset.episodes:
        columns = dataset.columns(episode.index)
        states, actions = (np.asarray(columns.get(name, ()), np.float32) for name in (libero.STATE, libero.ACTION))
        label = f"episode {episode.index} of {dataset.name}"
        if states.shape != (episode.length, STATE_SIZE) or actions.shape != (episode.length, ACTION_TOKENS):
            raise ValueError(
                f"{label} has states {list(states.shape)} and actions {list(actions.shape)}; OpenVLA is trained on "
                f"[{episode.length}, {STATE_SIZE}] and [{episode.length}, {ACTION_TOKENS}], those of LIBERO's arm"
            )
        if not (np.isfinite(states).all() and np.isfinite(actions).all()):
            raise ValueError(f"{label} has numbers that are not finite; exclude it: --bad {episode.index}")
        if actions[:, -1].min(initial=0) < 0 or actions[:, -1].max(initial=0) > 1:
            raise ValueError(f"{label} has a gripper outside 0 (closed) to 1 (open), as OpenVLA is trained on it")
        steps = np.flatnonzero(effective_steps(actions, MOVING))
        if len(steps):
            kept = Trajectory(episode.index, " ".join(episode.tasks[:1]), steps, states[steps], actions[steps])
            trajectories.append(kept)
    if not trajectories:
        raise ValueError(f"data set {dataset.name} has no step that moves the arm; record episodes first")
    marks.require_instructions(
        dataset, (trajectory.index for trajectory in trajectories if not trajectory.instruction.strip())
    )
    return trajectories


def unnorm_key(dataset: Dataset) -> str:
    """Return the name of the set's statistics: a LIBERO suite's as published, else the set's own."""
    suite = (dataset.source or {}).get("suite")
    return f"{suite}_no_noops" if suite in SUITES else dataset.name


def statistics_of(trajectories: Sequence[Trajectory], with_states: bool) -> dict[str, Any]:
    """Return a data set's entry of dataset_statistics.json. Without states theirs are zeros, as OpenVLA writes."""
    actions = np.concatenate([trajectory.actions for trajectory in trajectories])
    states = np.concatenate([trajectory.states for trajectory in trajectories])
    entry = statistics.plain(
        {
            "action": statistics.of_column(actions),
            "proprio": statistics.of_column(states if with_states else np.zeros_like(actions)),
        }
    )
    entry["action"]["mask"] = MOVING.tolist()
    return {**entry, "num_transitions": len(actions), "num_trajectories": len(trajectories)}


def scale(values: np.ndarray, stats: dict[str, Any]) -> np.ndarray:
    """Return float32 [..., n] in [-1, 1]: q01 … q99 scaled where `mask` is true, 0 for numbers that never change."""
    scaled = normalise_state(values, {"mask": True, **stats})
    return np.where(np.equal(stats["min"], stats["max"]), 0, scaled).astype(np.float32)


class Samples(data.Dataset):
    """Every step of a data set, in the order of a run: index 0 is the first sample of the first step.

    With an L1 head, steps with fewer than CHUNK actions left are no samples.
    """

    def __init__(self, dataset: Dataset, config: ModelConfig, tokenizer: PromptTokenizer, settings: OpenVLAFinetune):
        self.settings, self.size, self.codec = settings, config.towers[0].image_size, codec_of(config)
        self.has_l1_head, self.key = settings.head == "l1", unnorm_key(dataset)
        self.trajectories = read_trajectories(dataset)
        self.statistics = statistics_of(self.trajectories, self.has_l1_head)
        self.prompts = {
            trajectory.instruction: tokenizer.prompt_ids(trajectory.instruction) for trajectory in self.trajectories
        }
        for text, ids in self.prompts.items():
            if len(ids) > MAX_PROMPT:
                raise ValueError(f"instruction {text!r} has {len(ids)} tokens with its prompt; at most {MAX_PROMPT}")
        missing = CHUNK - 1 if self.has_l1_head else 0
        self.ends = np.cumsum([max(0, len(trajectory.steps) - missing) for trajectory in self.trajectories])
        if not self.ends[-1]:
            raise ValueError(f"no episode of {dataset.name} has {CHUNK} steps that move the arm; record longer ones")
        keys = [libero.video_key(camera) for camera in CAMERAS[: settings.image_count]]
        if absent := [key for key in keys if key not in dataset.video_keys]:
            raise ValueError(f"data set {dataset.name} has no {absent[0]}; it has {', '.join(dataset.video_keys)}")
        shape = dataset.features[keys[0]]["shape"]
        self.frames = Frames(dataset, keys, tuple(shape[:2] if shape[-1] == 3 else shape[1:]))
        self.frames.require()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> tuple[np.ndarray, list[int], int, np.ndarray, np.ndarray]:
        """Return images, ids, the prompt's length, state and actions of the sample at an index of the run."""
        settings = self.settings
        number = order(len(self), settings.seed, index // len(self))[index % len(self)]
        at = int(np.searchsorted(self.ends, number, side="right"))
        trajectory, start = self.trajectories[at], int(number - (self.ends[at - 1] if at else 0))
        generator = np.random.default_rng([settings.seed, index])
        images = []
        for frame in self.frames.at(trajectory.index, int(trajectory.steps[start])):
            image = resize_lanczos3(jpeg_round_trip(np.ascontiguousarray(frame.transpose(1, 2, 0))), self.size)
            images.append(augmentation.draw(generator).apply(image) if settings.augment else image)
        actions = scale(
            trajectory.actions[start : start + (CHUNK if self.has_l1_head else 1)], self.statistics["action"]
        )
        prompt = self.prompts[trajectory.instruction]
        answer = [0] * PLACEHOLDERS if self.has_l1_head else self.codec.tokens(actions[0]).tolist()
        state = (
            scale(trajectory.states[start], self.statistics["proprio"]) if self.has_l1_head else np.zeros(0, np.float32)
        )
        return np.stack(images), [*prompt, *answer, END], len(prompt), state, actions


def collate(rows: Sequence[tuple[Any, ...]]) -> tuple[Tensor, ...]:
    """Return samples as tensors: images, ids (padded on the right), lengths of the prompts, states, actions."""
    images, sequences, lengths, states, actions = zip(*rows, strict=True)
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True)
    numbers = (torch.from_numpy(np.stack(values)) for values in (states, actions))
    return torch.from_numpy(np.stack(images)), ids, torch.tensor(lengths), *numbers
