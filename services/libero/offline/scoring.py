"""A whole data set scored: every episode as it was told to the robot, told something else, and with other noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.libero.offline import scores
from services.libero.offline.asking import predict
from services.libero.offline.scores import Ruler
from services.libero.offline.views import View
from vla_contract import PolicyClient
from vla_datasets.metadata import Episode

SOMETHING_ELSE = "stay where you are and do nothing"  # where all of a set's episodes have one task


@dataclass(frozen=True)
class Scored:
    """One episode: what was done and what the policy would have done, float64 [T, n], under each telling."""

    episode: int
    instruction: str
    swapped: str
    true: np.ndarray
    own: np.ndarray
    other: np.ndarray
    again: np.ndarray


def score_episode(
    client: PolicyClient, view: View, episode: Episode, swapped: str, seed: int, every: int, steps: int | None
) -> Scored:
    """Returns an episode scored over its first `steps` steps, all by default."""
    told = episode.tasks[0] if episode.tasks else ""
    tellings = ((told, seed), (swapped, seed), (told, seed + 1))
    true = view.true_actions(episode.index)[:steps]
    made = (predict(client, view, episode.index, len(true), text, noise, every) for text, noise in tellings)
    return Scored(episode.index, told, swapped, true, *made)


def swapped(episodes: Sequence[Episode], told: Sequence[str], one: Episode, wanted: str = "") -> str:
    """Returns the instruction an episode is told instead of its own: as wanted, else the set's next other one."""
    own = one.tasks[0] if one.tasks else ""
    known = sorted(dict.fromkeys(told))
    after = [text for text in (*known[known.index(own) + 1 :], *known) if text != own] if own in known else known
    return wanted or (after[0] if after else SOMETHING_ELSE)


def summary(done: Sequence[Scored], view: View, ruler: Ruler) -> dict[str, Any]:
    """Returns all figures of some episodes, as JSON holds them; every step counts once."""
    parts = view.info.action
    together = {
        name: np.concatenate([getattr(one, name) for one in done]) for name in ("true", "own", "other", "again")
    }
    own = scores.errors(together["own"], together["true"], ruler)
    return {
        "steps": len(together["true"]),
        "overall": scores.means(own),
        "keys": scores.by_key(own, parts),
        "dimensions": scores.by_dimension(own, parts),
        "episodes": [_episode(one, ruler) for one in done],
        "swapped": scores.means(scores.errors(together["other"], together["true"], ruler)),
        "moved_by_instruction": scores.means(scores.errors(together["other"], together["own"], ruler)),
        "moved_by_noise": scores.means(scores.errors(together["again"], together["own"], ruler)),
    }


def _episode(one: Scored, ruler: Ruler) -> dict[str, Any]:
    figures = scores.means(scores.errors(one.own, one.true, ruler))
    return {
        "episode": one.episode, "steps": len(one.true), "instruction": one.instruction, **figures,
        "swapped": {"instruction": one.swapped, **scores.means(scores.errors(one.other, one.true, ruler))},
    }  # fmt: skip


def listens(figures: dict[str, Any]) -> str:
    """Returns in words whether the instruction moves the actions by more than noise does."""
    told, noise = (figures[name]["mae_normalised"] for name in ("moved_by_instruction", "moved_by_noise"))
    numbers = f"another instruction moves an action by {told:.3g} of [-1, 1], other noise by {noise:.3g}"
    if told == 0:
        return f"it does not listen: {numbers}"
    return f"it listens: {numbers}" if told > 1.5 * noise else f"not to be told from noise: {numbers}"
