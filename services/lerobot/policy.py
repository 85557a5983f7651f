"""A LeRobot policy as a policy of the contract."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lerobot.policies.pretrained import PreTrainedPolicy

from services.lerobot.checkpoint import LoadedPolicy
from services.lerobot.robots import Robot, state_size
from services.lerobot.types import STOCHASTIC
from vla_common.versions import lock_hash, versions
from vla_contract import ActionChunk, Checkpoint, Observation, Policy, PolicyInfo
from vla_modelkit import noise
from vla_modelkit.devices import device_name

# LIBERO's profiles by the size of all images that the policy was trained on; LeRobot's default is 360
PROFILES = {((size, size),): f"lerobot-{size}" for size in (64, 128, 256)}


@dataclass
class LeRobotPolicy(Policy):
    """Serves a loaded checkpoint.

    A policy that needs one observation answers its n_action_steps actions at once, and keeps no state. A policy with a
    history of observations, or with temporal ensembling, is asked every step and answers one action; its state is
    exchanged for the session's before each request.
    """

    loaded: LoadedPolicy
    robot: Robot
    cameras: Mapping[str, str]  # image key → camera
    checkpoint: Checkpoint
    seed: int = 0
    max_batch: int = 8
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        config = self.loaded.config
        self.stateful = has_history(self.loaded.policy)
        self.horizon = 1 if self.stateful else int(getattr(config, "n_action_steps", 0) or 1)
        self._sessions = SessionStates(self.loaded.policy)

    def info(self) -> PolicyInfo:
        """Return cameras, parts, horizon and what the checkpoint was trained on."""
        config = self.loaded.config
        shapes = {camera: config.image_features[key].shape[1:] for key, camera in self.cameras.items()}
        sides = set(shapes.values())
        return PolicyInfo(
            name=f"lerobot-{config.type}",
            action=self.robot.action,
            state=self.robot.state if state_size(config) else (),
            checkpoint=self.checkpoint,
            device=device_name(self.device),
            cameras=tuple(self.cameras.values()),
            horizon=self.horizon,
            max_batch=1 if self.stateful or config.type in STOCHASTIC else self.max_batch,
            stateful=self.stateful,
            profile={"libero": PROFILES.get(tuple(sides), "lerobot")}.get(self.robot.name),
            lock_hash=lock_hash(),
            details={
                "type": config.type,
                "robot": self.robot.name,
                "trained_images": ", ".join(f"{name} {height} x {width}" for name, (height, width) in shapes.items()),
                "chunk_size": str(getattr(config, "chunk_size", getattr(config, "horizon", ""))),
                "n_action_steps": str(getattr(config, "n_action_steps", "")),
                "n_obs_steps": str(config.n_obs_steps),
                "empty_cameras": str(len(config.image_features) - len(self.cameras)),
                "seed": str(self.seed),
                **({"statistics": self.loaded.statistics} if self.loaded.statistics else {}),
                **versions(("lerobot", "torch")),
            },
        )

    def act(self, observations: list[Observation]) -> Sequence[ActionChunk | Exception]:
        """Return a chunk float32 [n_action_steps, A] for every observation; [1, A] of a stateful policy."""
        if self.stateful or self.loaded.config.type in STOCHASTIC:
            return [self._act_alone(observation) for observation in observations]
        return self._chunks(observations)

    def reset(self, session: str) -> None:
        """Forget a session's state."""
        self._sessions.remove(session)

    def _act_alone(self, observation: Observation) -> ActionChunk:
        torch.manual_seed(noise.seed_of(observation, self.seed))
        if not self.stateful:
            return self._chunks([observation])[0]
        with self._sessions.of(observation.session, observation.step == 0) as policy:
            action = policy.select_action(self.loaded.preprocessor(self.batch([observation])))
        return ActionChunk(self.loaded.postprocessor(action).float().cpu().numpy())

    @torch.inference_mode()
    def _chunks(self, observations: list[Observation]) -> list[ActionChunk]:
        policy = self.loaded.policy
        policy.reset()
        chunk = policy.predict_action_chunk(self.loaded.preprocessor(self.batch(observations)))[:, : self.horizon]
        return [ActionChunk(row) for row in self.loaded.postprocessor(chunk).float().cpu().numpy()]

    def batch(self, observations: list[Observation]) -> dict[str, Any]:
        """Return what LeRobot's preprocessor takes: images float32 [B, 3, H, W] in [0, 1], state [B, n], tasks."""
        batch: dict[str, Any] = {"task": [observation.instruction for observation in observations]}
        for key, camera in self.cameras.items():
            images = np.stack([observation.images[camera] for observation in observations])
            batch[key] = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().float() / 255
        if state_size(self.loaded.config):
            batch["observation.state"] = torch.from_numpy(np.stack([observation.state for observation in observations]))
        return batch


def has_history(policy: PreTrainedPolicy) -> bool:
    """Return whether an action depends on earlier observations of the episode."""
    config = policy.config
    ensembling = getattr(config, "temporal_ensemble_coeff", None) is not None
    return config.n_obs_steps > 1 or ensembling or config.type == "tdmpc"  # which starts from its previous plan


class SessionStates:
    """What a policy changes in itself while it acts, stored per session.

    The attributes are those that `policy.reset()` replaces, and the temporal ensembler, which it resets in place.
    """

    def __init__(self, policy: PreTrainedPolicy) -> None:
        before = dict(vars(policy))
        policy.reset()
        self._policy = policy
        self._names = [name for name, value in vars(policy).items() if value is not before.get(name)]
        self._names += [name for name in ("_prev_mean", "temporal_ensembler") if name in vars(policy)]
        self._states: dict[str, dict[str, Any]] = {}
        self._current = ""

    def of(self, session: str, is_new: bool) -> _Exchange:
        """Return a context in which the policy has the state of a session, a fresh one if `is_new`."""
        return _Exchange(self, session, is_new)

    def remove(self, session: str) -> None:
        """Forget a session."""
        self._states.pop(session, None)


class _Exchange:
    def __init__(self, states: SessionStates, session: str, is_new: bool) -> None:
        self._states, self._session, self._is_new = states, session, is_new

    def __enter__(self) -> PreTrainedPolicy:
        states, policy = self._states, self._states._policy
        if self._is_new or self._session not in states._states:
            if hasattr(policy, "temporal_ensembler"):
                policy.temporal_ensembler = copy.copy(policy.temporal_ensembler)
            policy.reset()
        else:
            for name, value in states._states[self._session].items():
                setattr(policy, name, value)
        return policy

    def __exit__(self, kind: object, *_: object) -> None:
        states, policy = self._states, self._states._policy
        if kind is None:
            states._states[self._session] = {name: getattr(policy, name) for name in states._names}
