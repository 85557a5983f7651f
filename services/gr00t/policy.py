"""Upstream's GR00T N1.5 policy as one of the contract: batches that change nothing, noise that can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from services.gr00t import noise, upstream
from services.gr00t.attention import Attention
from services.gr00t.layout import Layout
from vla_contract import ActionChunk, Checkpoint, InvalidObservation, Observation, Policy, PolicyInfo
from vla_modelkit.devices import device_name

if TYPE_CHECKING:
    from gr00t.model.policy import Gr00tPolicy

DTYPE = torch.bfloat16  # as upstream loads and computes
TOKEN_IDS = "eagle_input_ids"  # [1, tokens]: one row per observation


@dataclass(frozen=True)
class ServedGr00t(Policy):
    """`policy` is upstream's, on `device`; `layout` says how its names map to the contract's.

    Stateless: an action follows from the observation, its session's episode, its step and `seed`.
    """

    policy: Gr00tPolicy
    layout: Layout
    attention: Attention
    device: str
    checkpoint: Checkpoint | None = None
    suites: tuple[str, ...] = ()
    max_batch: int = 16
    seed: int = 0
    lock_hash: str | None = None
    source: str = "unrecorded"

    def info(self) -> PolicyInfo:
        """Returns what it needs and answers."""
        one = self.layout.embodiment
        return PolicyInfo(
            name="gr00t-n1.5",
            checkpoint=self.checkpoint,
            quantization="bf16",
            device=device_name(self.device),
            cameras=tuple(one.cameras),
            image_hw=self.layout.image_hw,
            action=self.layout.action_parts,
            state=self.layout.state_parts,
            horizon=self.horizon,
            suites=self.suites,
            max_batch=self.max_batch,
            lock_hash=self.lock_hash,
            details={
                **self.layout.details(),
                "attention": self.attention.kind,
                **({"attention_reason": self.attention.reason} if self.attention.reason else {}),
                "denoising_steps": str(self.policy.denoising_steps),
                "seed": str(self.seed),
                "upstream_commit": self.source,
                "torch": torch.__version__,
            },
        )

    @property
    def horizon(self) -> int:
        """How many actions a chunk holds."""
        return len(self.policy.modality_config["action"].delta_indices)

    def example(self, level: int = 0) -> Observation:
        """Returns an observation of pictures with one grey level (0 to 255), for the first inference."""
        picture = np.full((*self.layout.image_hw, 3), level, np.uint8)
        cameras = self.layout.embodiment.cameras
        state = np.zeros(self.layout.state_size, np.float32)
        return Observation(dict.fromkeys(cameras, picture), state, "warm up", "warm-up", 0)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns a chunk for every observation, or the InvalidObservation it deserves.

        Those whose prompts are equally long go through the model together. Others would have to be padded, and the
        action head looks at padding as at words: an action would depend on which requests arrived with it.
        """
        results: list[ActionChunk | Exception | None] = [None] * len(observations)
        rows: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for place, observation in enumerate(observations):
            try:
                inputs = self.policy.apply_transforms(self.layout.to_upstream(observation))
            except InvalidObservation as error:
                results[place] = error
                continue
            rows.setdefault(inputs[TOKEN_IDS].shape[1], []).append((place, inputs))
        for group in rows.values():
            places = [place for place, _ in group]
            seeds = [noise.seed_of(observations[place], self.seed) for place in places]
            actions = self.infer(collate([inputs for _, inputs in group]), seeds)
            for place, chunk in zip(places, actions, strict=True):
                results[place] = ActionChunk(chunk)
        return results

    def infer(self, inputs: dict[str, torch.Tensor], seeds: list[int]) -> np.ndarray:
        """Returns un-normalised actions float32 [B, T, n] for upstream's model inputs, each row's noise from its seed.

        The steps are those of upstream's `GR00T_N1_5.get_action`, taken one by one to be there when noise is drawn.
        """
        model = self.policy.model
        head = model.action_head
        with torch.inference_mode(), torch.autocast(device_type="cuda", dtype=DTYPE, enabled=self.device != "cpu"):
            backbone_inputs, action_inputs = model.prepare_input(inputs)
            features = model.backbone(backbone_inputs)
            given = noise.GivenNoise(noise.draw(seeds, head.config.action_horizon, head.config.action_dim))
            with given:
                normalised = head.get_action(features, action_inputs)["action_pred"].float()
        if given.taken != 1:
            raise RuntimeError(f"upstream's action head drew noise {given.taken} times; expected once")
        return self.layout.to_actions(self.policy.unapply_transforms({"action": normalised.cpu()}))

    def close(self) -> None:
        """Removes what loading has left in the temporary folder: a process that a signal ends runs no atexit."""
        upstream.remove_copies()


def collate(inputs: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Returns several transformed observations as one batch; rows of a kind are of one length."""
    return {key: torch.cat([one[key] for one in inputs]) for key in inputs[0]}
