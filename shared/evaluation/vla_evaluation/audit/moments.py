"""Recorded moments as one policy sees them: observation, and the actions recorded around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vla_contract import Observation
from vla_contract.protocol.parts import HAND_STATE, OSC_POSE, total
from vla_datasets.metadata import STATE, Episode
from vla_evaluation.offline.policy_view import PolicyView

AROUND = 3  # recorded steps before and after those of a chunk
MIN_STEPS = 8  # of an episode
STRIDE = 3  # so that moments of the same turn are at different times in their episodes


@dataclass(frozen=True)
class Moments:
    """M moments of several episodes, ordered so that any first few are of different tasks.

    observations  as the evaluator would send them
    episodes      the data set's episode of each
    recorded      float64 [M, AROUND + horizon + AROUND, n]: the policy's convention; NaN outside of the episode
    poses         float64 [M, the same, 6]: position and axis-angle of the hand, None if unknown
    ranges        float64 [2, n]: smallest and largest recorded number of the whole data set
    """

    observations: tuple[Observation, ...]
    episodes: tuple[int, ...]
    recorded: np.ndarray
    poses: np.ndarray | None
    ranges: np.ndarray

    def __len__(self) -> int:
        return len(self.observations)

    def at(self, shift: int, length: int) -> np.ndarray:
        """Return the recorded actions [M, length, n] from `shift` steps after each moment on."""
        return self.recorded[:, AROUND + shift : AROUND + shift + length]

    def first(self, count: int) -> Moments:
        """Return the first moments."""
        poses = None if self.poses is None else self.poses[:count]
        return Moments(
            self.observations[:count], self.episodes[:count], self.recorded[:count], poses, self.ranges
        )  # fmt: skip


def load(view: PolicyView, count: int, episodes: int) -> Moments:
    """Return about `count` moments of at most `episodes` episodes, evenly over tasks and within episodes.

    Raises ValueError if the data set has no episode that is long enough.
    """
    selected = _choose(view, episodes)
    each = -(-count // len(selected))
    rows = []
    for position, (episode, length, instruction) in enumerate(selected):
        offset = (position % 4) / 4  # so that episodes of one task are asked at different times
        steps = sorted({int((k + offset) * (length - 2) / each) + 1 for k in range(each)})
        session = session_name(view, episode)
        actions, poses = view.recorded_actions(episode), _poses(view, episode)
        for turn, seen in enumerate(view.observations(episode, steps, instruction, session)):
            window = _window(actions, seen.step, view.info.horizon)
            pose = None if poses is None else _window(poses, seen.step, view.info.horizon)
            if view.info.stateful:  # each moment starts a session
                seen = replace(seen, step=0)
            rows.append(((turn * STRIDE + position) % each, position, episode, seen, window, pose))
    rows.sort(key=lambda row: row[:2])
    known = all(row[5] is not None for row in rows)
    return Moments(
        tuple(row[3] for row in rows),
        tuple(row[2] for row in rows),
        np.stack([row[4] for row in rows]),
        np.stack([row[5] for row in rows]) if known else None,
        view.ranges(),
    )


def session_name(view: PolicyView, episode: int, tag: str = "a") -> str:
    """Return an evaluator's session name for an episode of the data set: a replaying policy finds its recording."""
    described = (view.dataset.source or {}).get("episodes") or []
    entry = described[episode] if episode < len(described) and isinstance(described[episode], dict) else {}
    return f"audit.{entry.get('task', 0)}.{entry.get('episode', episode)}.1.{tag}"


def _choose(view: PolicyView, limit: int) -> list[tuple[int, int, str]]:
    """Return (episode, length, instruction) of up to `limit` episodes, the tasks in turn."""
    by_task: dict[str, list[Episode]] = {}
    for episode in view.dataset.episodes:
        if episode.length >= MIN_STEPS and episode.tasks:
            by_task.setdefault(episode.tasks[0], []).append(episode)
    if not by_task:
        raise ValueError(
            f"data set {view.dataset.name} has no episode of {MIN_STEPS} steps or more with an instruction; "
            "record some: ./lab record SUITE"
        )
    depth = max(map(len, by_task.values()))
    turns = [group[index] for index in range(depth) for group in by_task.values() if index < len(group)]
    return [(episode.index, episode.length, episode.tasks[0]) for episode in turns[:limit]]


def _window(rows: np.ndarray, step: int, horizon: int) -> np.ndarray:
    """Return rows from AROUND before `step` to AROUND after the chunk; NaN outside."""
    wanted = np.arange(step - AROUND, step + horizon + AROUND)
    inside = (wanted >= 0) & (wanted < len(rows))
    window = np.full((len(wanted), rows.shape[1]), np.nan)
    window[inside] = rows[wanted[inside]]
    return window


def _poses(view: PolicyView, episode: int) -> np.ndarray | None:
    """Return position and axis-angle of the hand, [T, 6], where the data set's state is HAND_STATE."""
    if view.info.action[: len(OSC_POSE)] != OSC_POSE:
        return None
    states = np.asarray(view.dataset.columns(episode).get(STATE, np.zeros((0, 0))), np.float64)
    return states[:, :6] if states.ndim == 2 and states.shape[1] == total(HAND_STATE) else None
