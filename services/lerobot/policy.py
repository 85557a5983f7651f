"""A LeRobot policy as a policy of the contract."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lerobot.policies.pretrained import PreTrainedPolicy

from services.lerobot.checkpoint import LoadedPolicy, load
from services.lerobot.robots import Robot, camera_of, robot_of, state_size
from services.lerobot.settings import ModelSettings, checkpoint_directory
from services.lerobot.types import STOCHASTIC
from vla_common.versions import lock_hash, versions
from vla_contract import ActionChunk, Checkpoint, Observation, Policy, PolicyInfo
from vla_modelkit import noise
from vla_modelkit.canary import check_sees
from vla_modelkit.checkpoint import identity
from vla_modelkit.devices import choose_device, device_name

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
        # an action depends on earlier observations; tdmpc starts from its previous plan
        ensembling = getattr(config, "temporal_ensemble_coeff", None) is not None
        self.stateful = config.n_obs_steps > 1 or ensembling or config.type == "tdmpc"
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
        if not self.stateful and self.loaded.config.type not in STOCHASTIC:
            return self._chunks(observations)
        chunks = []
        for observation in observations:
            torch.manual_seed(noise.seed_of(observation, self.seed))
            if not self.stateful:
                chunks += self._chunks([observation])
                continue
            with self._sessions.of(observation.session, observation.step == 0) as policy:
                action = policy.select_action(self.loaded.preprocessor(self.batch([observation])))
            chunks.append(ActionChunk(self.loaded.postprocessor(action).float().cpu().numpy()))
        return chunks

    def reset(self, session: str) -> None:
        """Forget a session's state."""
        self._sessions.remove(session)

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

    @contextmanager
    def of(self, session: str, is_new: bool) -> Iterator[PreTrainedPolicy]:
        """Yield the policy with the state of a session, a fresh one if `is_new`; an error discards the change."""
        policy = self._policy
        if is_new or session not in self._states:
            if hasattr(policy, "temporal_ensembler"):
                policy.temporal_ensembler = copy.copy(policy.temporal_ensembler)
            policy.reset()
        else:
            for name, value in self._states[session].items():
                setattr(policy, name, value)
        yield policy
        self._states[session] = {name: getattr(policy, name) for name in self._names}

    def remove(self, session: str) -> None:
        """Forget a session."""
        self._states.pop(session, None)


def load_policy(settings: ModelSettings) -> LeRobotPolicy:
    """Load and check the policy. Raises CheckpointError."""
    directory, device = checkpoint_directory(settings.checkpoint), choose_device(settings.device)
    loaded = load(directory, str(device), settings.remote_code, settings.statistics)
    robot = robot_of(loaded.config, settings.robot)
    cameras = camera_of(loaded.config, robot, settings.camera_table())
    policy = LeRobotPolicy(loaded, robot, cameras, identity(directory), settings.seed, settings.max_batch, device)
    if cameras:
        info = policy.info()
        shapes = {camera: loaded.config.image_features[key].shape[1:] for key, camera in cameras.items()}
        state = np.zeros(info.state_size, np.float32) if info.needs_state else None

        def example(level: int) -> Observation:  # of one grey level, 0 to 255
            images = {name: np.full((*shape, 3), level, np.uint8) for name, shape in shapes.items()}
            return Observation(images, state, "pick up the cup", "canary", 0)

        check_sees(policy, example)
    return policy
