"""Upstream's GR00T N1.5 policy as one of the contract: one observation at a time, with noise that can be repeated."""

from __future__ import annotations

import numpy as np
import torch

from services.gr00t.checkpoint.directory import CheckpointDirectory
from services.gr00t.model.attention import choose
from services.gr00t.service.layout import Layout
from services.gr00t.service.settings import Settings
from tests.gr00t.upstream import package
from vla_contract import ActionChunk, Observation, Policy, PolicyInfo
from vla_modelkit import noise
from vla_modelkit.devices import choose_device


class UpstreamPolicy(Policy):
    """`policy` is upstream's; `layout` maps its names to the contract's."""

    def __init__(self, policy, layout: Layout, settings: Settings):
        self.policy, self.layout, self.settings = policy, layout, settings

    def info(self) -> PolicyInfo:
        return PolicyInfo("upstream", self.layout.action_parts, self.layout.state_parts)

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [ActionChunk(self._chunk(observation)) for observation in observations]

    def _chunk(self, observation: Observation) -> np.ndarray:
        config = self.policy.model.action_head.config
        draw = noise.draw([noise.seed_of(observation, self.settings.seed)], config.action_horizon, config.action_dim)
        with package.GivenNoise(draw) as given:
            parts = self.policy.get_action(self.to_upstream(observation))
        assert given.taken == 1
        return to_actions(self.layout, parts)[0]

    def to_upstream(self, observation: Observation) -> dict[str, np.ndarray]:
        """Returns a batch of one as upstream's transforms take it.

        video.* uint8 [1, 1, H, W, 3], state.* float64 [1, 1, n] as upstream's clients send it, the instruction as a
        text in an array [1], or in the list [1, 1] that ends up in the prompt with brackets and quotes.
        """
        one = self.layout.embodiment
        batch = {f"video.{name}": observation.images[ours][None, None] for ours, name in one.cameras.items()}
        parts = self.layout.named_state(observation)
        batch |= {f"state.{name}": part.astype(np.float64)[None, None] for name, part in parts.items()}
        text = np.array([observation.instruction])
        batch[one.language] = text[None] if self.settings.prompt == "upstream" else text
        return batch


def load_upstream_policy(settings: Settings, found: CheckpointDirectory, layout: Layout) -> UpstreamPolicy:
    """Returns the policy. Raises UpstreamMissing, and ValueError for what upstream's code cannot do."""
    device = choose_device(settings.device)
    attention = choose(settings.attention, str(device))
    steps = settings.denoising_steps or layout.embodiment.denoising_steps
    policy = package.load_policy(found.directory, layout.embodiment, attention, str(device), steps, found.overrides)
    return UpstreamPolicy(policy, layout, settings)


def to_actions(layout: Layout, parts: dict[str, np.ndarray | torch.Tensor]) -> np.ndarray:
    """Returns upstream's un-normalised action, action.* [B, T, m], as float32 [B, T, n]."""
    columns = [np.asarray(parts[f"action.{part.name}"]) for part in layout.action]
    return np.concatenate(columns, axis=-1, dtype=np.float32)
