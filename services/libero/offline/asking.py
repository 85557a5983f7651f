"""What a policy answers along a recorded episode: asked once per chunk, at the states that were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from services.libero.offline.views import View
from vla_contract import Observation, PolicyClient

AT_ONCE = 8  # requests that wait for a stateless policy, which answers them together where it can


def session(seed: int, episode: int) -> str:
    """Returns the session's name, of an evaluator's form: a policy that draws noise draws it from seed and episode."""
    return f"offline.{seed}.{episode}.0.x"


def predict(
    client: PolicyClient, view: View, episode: int, length: int, instruction: str, seed: int, every: int
) -> np.ndarray:
    """Returns what the policy would have done in an episode's first `length` steps, float64 [length, n].

    At every `every`-th step it is asked, and as many of its actions are taken as there are until the next one, or until
    the end: what lies beyond is not there. Raises ValueError where it answers fewer.
    """
    steps = list(range(0, length, every))
    asked = _observations(view, episode, steps, instruction, session(seed, episode))
    chunks = [chunk[:every] for chunk in answers(client, asked, 1 if view.info.stateful else view.info.max_batch)]
    short = next((i for i, one in enumerate(chunks) if len(one) < min(every, length - steps[i])), None)
    if short is not None:
        raise ValueError(
            f"the policy answered {len(chunks[short])} actions at step {steps[short]} and is asked every {every}; "
            f"ask at least every {len(chunks[short])}: --execute {len(chunks[short])}"
        )
    return np.concatenate(chunks)[:length].astype(np.float64)


def answers(client: PolicyClient, asked: Iterator[Observation], at_once: int) -> Iterator[np.ndarray]:
    """Yields the policy's actions float32 [H, n] for each observation, in their order."""
    with ThreadPoolExecutor(min(at_once, AT_ONCE)) as pool:
        while group := list(islice(asked, min(at_once, AT_ONCE))):
            yield from (chunk.actions for chunk in pool.map(client.act, group))


def _observations(view: View, episode: int, steps: Sequence[int], instruction: str, name: str) -> Iterator[Observation]:
    states = view.states(episode)
    for begin in range(0, len(steps), AT_ONCE):
        part = steps[begin : begin + AT_ONCE]
        for step, pictures in zip(part, view.pictures(episode, part), strict=True):
            yield view.observation(pictures, states[step], step, instruction, name)
