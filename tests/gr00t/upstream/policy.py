"""Upstream's GR00T N1.5 policy as one of the contract: batches that change nothing, noise that can be repeated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import choose
from services.gr00t.processing.prompt import check_placeholders
from services.gr00t.service.info import example, policy_info, steps_of
from services.gr00t.service.layout import Layout
from services.gr00t.service.settings import Settings
from tests.gr00t.upstream import package
from tests.gr00t.upstream.noise import GivenNoise
from tests.gr00t.upstream.source import COMMIT
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyInfo
from vla_modelkit import noise
from vla_modelkit.devices import choose_device

if TYPE_CHECKING:
    from gr00t.model.policy import Gr00tPolicy

log = logging.getLogger("services.gr00t")
DTYPE = torch.bfloat16  # as upstream loads and computes
TOKEN_IDS = "eagle_input_ids"  # [1, tokens]: one row per observation


class UpstreamPolicy(Policy):
    """`policy` is upstream's, on `device`; `layout` says how its names map to the contract's.

    Stateless: an action follows from the observation, its session's episode, its step and the seed.
    """

    def __init__(self, policy: Gr00tPolicy, layout: Layout, info: PolicyInfo, settings: Settings, device: str):
        self.policy, self.layout, self.settings, self.device = policy, layout, settings, device
        self._info = info

    def info(self) -> PolicyInfo:
        """Returns what it needs and answers."""
        return self._info

    def example(self, level: int = 0) -> Observation:
        """Returns an observation of pictures with one grey level (0 to 255), for the first inference."""
        return example(self.layout, level)

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        """Returns a chunk for every observation, or the InvalidObservation it deserves.

        Those whose prompts are equally long go through the model together. Others would have to be padded, and
        upstream's action head looks at padding as at words: an action would depend on which requests arrived with it.
        """
        results: list[ActionChunk | Exception | None] = [None] * len(observations)
        rows: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for place, observation in enumerate(observations):
            try:
                inputs = self.policy.apply_transforms(self.to_upstream(observation))
            except InvalidObservation as error:
                results[place] = error
                continue
            rows.setdefault(inputs[TOKEN_IDS].shape[1], []).append((place, inputs))
        for group in rows.values():
            places = [place for place, _ in group]
            seeds = [noise.seed_of(observations[place], self.settings.seed) for place in places]
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
            given = GivenNoise(noise.draw(seeds, head.config.action_horizon, head.config.action_dim))
            with given:
                normalised = head.get_action(features, action_inputs)["action_pred"].float()
        if given.taken != 1:
            raise RuntimeError(f"upstream's action head drew noise {given.taken} times; expected once")
        return to_actions(self.layout, self.policy.unapply_transforms({"action": normalised.cpu()}))

    def to_upstream(self, observation: Observation) -> dict[str, np.ndarray]:
        """Returns a batch of one as upstream's transforms take it.

        video.* uint8 [1, 1, H, W, 3], state.* float64 [1, 1, n] as upstream's clients send it, the instruction as a
        text in an array [1], or in the list [1, 1] that ends up in the prompt with brackets and quotes. Raises
        InvalidObservation for a state of another size and for an instruction with upstream's placeholders.
        """
        one = self.layout.embodiment
        check_placeholders(observation.instruction)
        batch = {f"video.{name}": observation.images[ours][None, None] for ours, name in one.cameras.items()}
        parts = self.layout.named_state(observation)
        batch |= {f"state.{name}": part.astype(np.float64)[None, None] for name, part in parts.items()}
        text = np.array([observation.instruction])
        batch[one.language] = text[None] if self.settings.prompt == "upstream" else text
        return batch

    def close(self) -> None:
        """Removes what loading has left in the temporary folder: a process that a signal ends runs no atexit."""
        package.remove_copies()


def load_upstream_policy(settings: Settings, found: CheckpointDirectory, layout: Layout) -> UpstreamPolicy:
    """Returns the policy. Raises UpstreamMissing, and ValueError for what upstream's code cannot do."""
    if settings.dtype not in ("auto", "bf16"):
        raise ValueError(f"upstream computes in bf16, as it loads itself; dtype is {settings.dtype!r}")
    package.prepare()
    device = choose_device(settings.device)
    attention, steps = choose(settings.attention, str(device)), steps_of(layout, settings)
    log.info("loading %s on %s in upstream's code, attention %s", found.directory, device, attention.kind)
    policy = package.load_policy(found.directory, layout.embodiment, attention, str(device), steps, found.overrides)
    horizon = len(policy.modality_config["action"].delta_indices)
    details = {"dtype": "bf16", "engine": "upstream", "upstream_commit": COMMIT}
    info = policy_info(found, layout, settings, attention, device, "bf16", horizon, details)
    return UpstreamPolicy(policy, layout, info, settings, str(device))


def collate(inputs: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Returns several transformed observations as one batch; rows of a kind are of one length."""
    return {key: torch.cat([one[key] for one in inputs]) for key in inputs[0]}


def to_actions(layout: Layout, parts: dict[str, np.ndarray]) -> np.ndarray:
    """Returns upstream's un-normalised action, action.* [B, T, m], as float32 [B, T, n]."""
    return np.concatenate(
        [np.asarray(parts[f"action.{part.name}"]) for part in layout.action], axis=-1, dtype=np.float32
    )
