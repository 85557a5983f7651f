"""What a policy sees of an episode: other instructions than the task's, or inputs taken away (ablations).

The benchmark and the policy know nothing of it: the worker changes the observation in between. Both stand in the run's
identity. An ablation is a run of its own in the directory `ablations` of the run whose episodes it repeats, so no
leaderboard and no list of runs has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vla_contract import Observation
from vla_contract.protocol.errors import did_you_mean
from vla_evaluation.benchmark import Benchmark, Task
from vla_evaluation.config import RunConfig
from vla_evaluation.spec import RunSpec

DIRECTORY = "ablations"
BLACK_IMAGES, OTHER_IMAGES, OTHER_INSTRUCTION = "black-images", "other-images", "other-instruction"
ABLATIONS = {  # name → its text in reports
    BLACK_IMAGES: "black images",
    OTHER_IMAGES: "another episode's images",
    OTHER_INSTRUCTION: "another task's instruction",
}
GROUPS = {"images": (BLACK_IMAGES, OTHER_IMAGES), "language": (OTHER_INSTRUCTION,)}  # values of --ablate
Sentences = Mapping[str, Sequence[str]]  # by the task's index as text


def read_instructions(benchmark: Benchmark, config: RunConfig, tasks: Sequence[Task]) -> Sentences | None:
    """Return the sentences of --instructions or --instructions-file for each task; None: the tasks' own.

    ValueError for a file that does not fit, and for a task without an instruction of its base.
    """
    if path := getattr(config, "instructions_file", None):
        return _of_file(Path(path), tasks)
    if config.instructions == "suite":
        return None
    find = getattr(benchmark, "base_instruction", None)
    if find is None:
        raise ValueError(f"--instructions base needs a suite that disturbs another one; {config.suite} has its own")
    return {str(task.index): (find(task),) for task in tasks}


def _of_file(path: Path, tasks: Sequence[Task]) -> Sentences:
    expected = f'{path} must be JSON like {{"TASK": ["a sentence", "another"]}} with the index or name of every task'
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{expected}: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{expected}; got a {type(entries).__name__}")
    sentences: dict[str, tuple[str, ...]] = {}
    unused = set(entries)
    for task in tasks:
        names = [name for name in (str(task.index), task.name, task.instruction) if name in entries]
        if not names:
            raise ValueError(f"{expected}; it has none for task {task.index}, {task.name}")
        value = entries[names[0]]
        lines = [value] if isinstance(value, str) else value
        if not (isinstance(lines, list) and lines and all(isinstance(line, str) and line.strip() for line in lines)):
            raise ValueError(f"{expected}; the sentences of {names[0]!r} are {value!r}")
        sentences[str(task.index)] = tuple(line.strip() for line in lines)
        unused -= set(names)
    if unused:
        name = min(unused)
        known = [task.name for task in tasks]
        raise ValueError(
            f"{path} has sentences for {name!r}, which is not among the run's tasks{did_you_mean(name, known)}"
        )
    return sentences


def instruction(sentences: Sentences | None, task: int, episode: int, own: str) -> str:
    """Return what the policy is told in an episode: a task's sentences in turn, or its own."""
    choices = (sentences or {}).get(str(task))
    return choices[episode % len(choices)] if choices else own


def of_another_task(tasks: Mapping[int, Task], index: int) -> str:
    """Return the instruction of the next task of the suite that has a different one; ValueError if there is none."""
    own = tasks[index].instruction
    following = [tasks[(index + step) % len(tasks)].instruction for step in range(1, len(tasks))]
    for sentence in following:
        if sentence != own:
            return sentence
    raise ValueError("all tasks of the suite have the same instruction; use --ablate images")


def another_episode(episodes: Sequence[int], episode: int) -> int:
    """Return the episode whose images `episode` gets: the next one of the run. ValueError if there is only one."""
    if len(episodes) < 2:
        raise ValueError("--ablate images needs two or more episodes per task; use a larger --trials")
    return episodes[(episodes.index(episode) + 1) % len(episodes)]


def present(
    observation: Observation, spec: RunSpec, sentence: str, frames: Sequence[Mapping[str, np.ndarray]]
) -> Observation:
    """Return the observation as the policy gets it. `frames`: another episode's images by step, for its ablation."""
    images = observation.images
    if spec.ablation == BLACK_IMAGES:
        images = {camera: np.zeros_like(image) for camera, image in images.items()}
    elif spec.ablation == OTHER_IMAGES:
        images = frames[min(observation.step, len(frames) - 1)]
    return replace(observation, images=images, instruction=sentence)
