"""Errors of a policy's actions against recorded ones: per dimension, part and episode, raw and normalised."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from vla_contract import PolicyClient
from vla_contract.protocol.parts import Part
from vla_datasets.metadata import Episode
from vla_evaluation.offline.policy_view import PolicyView

METRICS = ("mse", "mae", "mse_normalised", "mae_normalised")
MAX_CONCURRENT = 8  # requests to a stateless policy, which may batch them
UNRELATED_INSTRUCTION = "stay where you are and do nothing"  # if all episodes of a set have one task


@dataclass(frozen=True)
class ScoredEpisode:
    """One episode: recorded and predicted actions, float64 [T, n].

    predicted     with the recorded instruction
    with_swapped  with the instruction `swapped`
    reseeded      with the recorded instruction and the next seed
    """

    index: int
    instruction: str
    swapped: str
    recorded: np.ndarray
    predicted: np.ndarray
    with_swapped: np.ndarray
    reseeded: np.ndarray


def score_episode(
    client: PolicyClient, view: PolicyView, episode: Episode, swapped: str, seed: int, every: int, steps: int | None
) -> ScoredEpisode:
    """Score an episode over its first `steps` steps, all by default; the policy is queried every `every` steps."""
    instruction = episode.tasks[0] if episode.tasks else ""
    recorded = view.recorded_actions(episode.index)[:steps]
    requests = ((instruction, seed), (swapped, seed), (instruction, seed + 1))
    predicted = (predict(client, view, episode.index, len(recorded), text, number, every) for text, number in requests)
    return ScoredEpisode(episode.index, instruction, swapped, recorded, *predicted)


def swap_instruction(episodes: Sequence[Episode], episode: Episode) -> str:
    """Return another instruction than the episode's: the data set's next one in alphabetical order."""
    instruction = episode.tasks[0] if episode.tasks else ""
    texts = sorted({text for episode in episodes for text in episode.tasks} - {instruction})
    return next((text for text in texts if text > instruction), texts[0] if texts else UNRELATED_INSTRUCTION)


def predict(
    client: PolicyClient, view: PolicyView, episode: int, length: int, instruction: str, seed: int, every: int
) -> np.ndarray:
    """Return the policy's actions for an episode's first `length` steps, float64 [length, n].

    It is queried at every `every`-th step, and its actions are used until the next one. Raises ValueError if a chunk is
    shorter.
    """
    steps, chunks = range(0, length, every), []
    at_once = 1 if view.info.stateful else min(view.info.max_batch, MAX_CONCURRENT)
    observations = view.observations(episode, steps, instruction, session_name(seed, episode))
    with ThreadPoolExecutor(at_once) as pool:
        while group := list(islice(observations, at_once)):
            chunks += [chunk.actions[:every] for chunk in pool.map(client.act, group)]
    for step, chunk in zip(steps, chunks, strict=True):
        if len(chunk) < min(every, length - step):
            raise ValueError(
                f"the policy returned {len(chunk)} actions at step {step}, expected {every}; use --execute {len(chunk)}"
            )
    return np.concatenate(chunks)[:length].astype(np.float64)


def session_name(seed: int, episode: int) -> str:
    """Return a session name in the evaluator's form; a policy that samples noise derives it from seed and episode."""
    return f"offline.{seed}.{episode}.0.x"


def errors(predicted: np.ndarray, recorded: np.ndarray, width: np.ndarray) -> dict[str, np.ndarray]:
    """Return each of METRICS by dimension, float64 [n], of actions [T, n].

    Normalised: `width`, the data set's range of each dimension, becomes 2; a dimension that never changes has no error.
    """
    difference = predicted - recorded
    normalised = np.divide(2 * difference, width, out=np.zeros_like(difference), where=width > 0)
    values = ((difference**2), np.abs(difference), normalised**2, np.abs(normalised))
    return {metric: value.mean(0) for metric, value in zip(METRICS, values, strict=True)}


def average(by_dimension: dict[str, np.ndarray], dimensions: slice = slice(None)) -> dict[str, float]:
    """Return each metric over some dimensions."""
    return {metric: float(by_dimension[metric][dimensions].mean()) for metric in METRICS}


def dimension_names(parts: Sequence[Part]) -> list[str]:
    """Return a name for each number: "gripper", "position delta 2"."""
    return [part.name if part.size == 1 else f"{part.name} {i}" for part in parts for i in range(part.size)]


def tables(by_dimension: dict[str, np.ndarray], parts: Sequence[Part]) -> dict[str, Any]:
    """Return the metrics over all dimensions, per part ("keys") and per dimension."""
    keys, dimensions, names = [], [], dimension_names(parts)
    for part in parts:
        start = len(dimensions)
        keys.append({"key": part.name, "size": part.size, **average(by_dimension, slice(start, start + part.size))})
        for i in range(start, start + part.size):
            dimensions.append({"dimension": names[i], "key": part.name, **average(by_dimension, slice(i, i + 1))})
    return {"overall": average(by_dimension), "keys": keys, "dimensions": dimensions}


def summarize(episodes: Sequence[ScoredEpisode], parts: Sequence[Part], width: np.ndarray) -> dict[str, Any]:
    """Return all figures as JSON types; every step counts once."""
    names = ("recorded", "predicted", "with_swapped", "reseeded")
    recorded, predicted, with_swapped, reseeded = (
        np.concatenate([getattr(episode, name) for episode in episodes]) for name in names
    )
    rows = []
    for result in episodes:
        swapped = {"instruction": result.swapped, **average(errors(result.with_swapped, result.recorded, width))}
        row = {"episode": result.index, "steps": len(result.recorded), "instruction": result.instruction}
        rows.append({**row, **average(errors(result.predicted, result.recorded, width)), "swapped": swapped})
    return {
        "steps": len(recorded),
        **tables(errors(predicted, recorded, width), parts),
        "episodes": rows,
        "swapped": average(errors(with_swapped, recorded, width)),
        "moved_by_instruction": average(errors(with_swapped, predicted, width)),
        "moved_by_noise": average(errors(reseeded, predicted, width)),
    }


def describe_listening(figures: dict[str, Any]) -> str:
    """Return whether the instruction changes the actions by more than noise does, as text."""
    instruction, noise = (figures[name]["mae_normalised"] for name in ("moved_by_instruction", "moved_by_noise"))
    numbers = f"another instruction changes an action by {instruction:.3g} of [-1, 1], other noise by {noise:.3g}"
    if instruction == 0:
        return f"the policy ignores the instruction: {numbers}"
    follows = instruction > 1.5 * noise
    return f"{'the policy follows the instruction' if follows else 'not distinguishable from noise'}: {numbers}"
