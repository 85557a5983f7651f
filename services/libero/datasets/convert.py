"""Turn episodes into data sets: planned first, rendered in parallel, each written at once; the same command resumes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from services.libero.simulator import suites
from vla_common.durations import show_seconds
from vla_common.volume import require_space, shown
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS
from vla_datasets import libero, metadata
from vla_datasets.errors import DatasetError
from vla_datasets.hdf5 import DemoWriter
from vla_datasets.writing import PIECES, Place, Writer, draft
from vla_evaluation.recording import Demonstration, draw
from vla_evaluation.recording.sources import Episodes
from vla_evaluation.terminal import say

PLAN = "plan.json"  # in an unfinished set: what it is made of
PIXEL_BYTES = {"lerobot": 0.16, "hdf5": 3.0}  # of a picture, per pixel; a film's, measured on LIBERO's scenes
SPARE = 2**27  # bytes that stay free
REPORT_INTERVAL_S = 20.0  # between two lines of progress
KEPT = ("task", "episode", "seed", "success", "steps")  # of each episode, in meta/source.json


def places(episodes: Sequence[Demonstration]) -> dict[int, Place]:
    """Return where each episode belongs, by its index: so its rows do not depend on which is written first."""
    found, row, texts = {}, 0, {}
    for episode in episodes:
        task = texts.setdefault(episode.instruction, len(texts))
        name = suites.load_suite(episode.suite).tasks[episode.task].name
        found[episode.index] = Place(episode.index, row, task, episode.instruction, f"{name}_demo.hdf5")
        row += episode.steps
    return found


def convert(
    found: Episodes,
    episodes: Sequence[Demonstration],
    directory: Path,
    layout: str,
    cameras: tuple[str, ...],
    size: int,
    workers: int,
) -> Path:
    """Make the data set at `folder`; return it.

    Raises ValueError where one exists or a part cannot be rendered, VolumeError where the disk is too small.
    """
    source = describe(found, episodes, cameras, size, layout)
    writer = make_writer(directory, layout, cameras, size, source, episodes)
    require_same_plan(directory, source)
    done = writer.written()
    left = [episode for episode in episodes if episode.index not in done]
    steps = sum(one.steps for one in left)
    bytes_needed = int(steps * len(cameras) * size**2 * PIXEL_BYTES[layout])
    require_space(directory, bytes_needed + SPARE)
    already = f", {len(done)} of them there already" if done else ""
    say(f"data set {directory.name} of {found.kind} {found.name}: {len(episodes)} episodes{already}")
    say(f"{steps:,} steps to draw, about {bytes_needed / 1e6:,.0f} MB, into {shown(directory)}")
    if found.facts["starts"] == "evaluation":
        say(
            "its episodes begin where evaluations begin: good for looking and for offline evaluation, not to learn from"
        )
    metadata.write_json(writer.draft / PIECES / PLAN, source)
    then = partial(put, writer, places(episodes))
    start = reported = time.monotonic()
    rendered = 0
    for count, (one, _) in enumerate(draw(left, cameras, size, workers, then), len(done) + 1):
        rendered, now = rendered + one.steps, time.monotonic()
        if now - reported >= REPORT_INTERVAL_S and count < len(episodes):
            reported = now
            remaining_s = (steps - rendered) * (now - start) / rendered
            say(f"{count} of {len(episodes)} episodes, {show_seconds(remaining_s)} left")
    writer.finish()
    return directory


def make_writer(
    directory: Path,
    layout: str,
    cameras: tuple[str, ...],
    size: int,
    source: Mapping[str, Any],
    episodes: Sequence[Demonstration],
) -> Writer | DemoWriter:
    """Return what writes the layout; it keeps what an interrupted one has written."""
    if layout == "hdf5":
        chosen = {(episode.suite, episode.task) for episode in episodes}
        tasks = [suites.load_suite(suite).tasks[task] for suite, task in sorted(chosen)]
        return DemoWriter(directory, {f"{task.name}_demo.hdf5": _problem(task) for task in tasks}, source, resume=True)
    features, modality = libero.features(cameras, size), libero.modality(cameras)
    return Writer(directory, libero.ROBOT, libero.FPS, features, modality, source, resume=True)


def _problem(task: suites.Task) -> dict[str, Any]:
    """Return the attributes of a task's file that LIBERO's own readers look at."""
    content = task.bddl()
    problem = content.split("(problem", 1)[-1].split(")", 1)[0].strip()
    told = {"problem_name": problem, "domain_name": "robosuite", "language_instruction": task.instruction}
    name = f"{task.suite}/{task.name}.bddl"
    environment = {"type": 1, "env_name": problem, "problem_name": problem, "bddl_file": name}
    return {"problem_info": told, "env_args": environment, "bddl_file_name": name, "bddl_file_content": content}


def describe(
    found: Episodes, episodes: Sequence[Demonstration], cameras: tuple[str, ...], size: int, layout: str
) -> dict[str, Any]:
    """Return what the set keeps of where it is from: enough to say what a model has learned from."""
    action = found.facts["action"]
    if layout == "lerobot":
        action = [GRIPPER_OPENS if part == GRIPPER_CLOSES else part for part in action]
    name = libero.video_key if layout == "lerobot" else libero.hdf5_key
    return {
        **found.facts,
        "action": [asdict(part) for part in action],
        "state": [asdict(part) for part in found.facts["state"]],
        "cameras": {name(camera): camera for camera in cameras},
        "size": size,
        "turned_180": layout == "lerobot",
        "episodes": [{name: getattr(episode, name) for name in KEPT} for episode in episodes],
    }


def require_same_plan(directory: Path, source: Mapping[str, Any]) -> None:
    """Raise DatasetError where an unfinished set of the same name is of something else."""
    path = draft(directory) / PIECES / PLAN
    if not path.exists():
        return
    before = metadata.read_json(path)
    now = {name: list(value) if isinstance(value, tuple) else value for name, value in source.items()}
    odd = [name for name in source if before.get(name) != now[name]]
    if odd:
        raise DatasetError(
            f"an unfinished set {directory.name} was begun with other {', '.join(odd)}; give the same command as then, "
            f"choose another --name, or remove {shown(draft(directory))}"
        )


def put(
    writer: Writer | DemoWriter, where: Mapping[int, Place], one: Demonstration, drawn: Mapping[str, np.ndarray]
) -> None:
    """Write an episode that was just drawn, in the process that drew it."""
    if isinstance(writer, DemoWriter):
        writer.write(where[one.index], demo_arrays(one), {libero.hdf5_key(name): of for name, of in drawn.items()})
        return
    columns = {libero.STATE: one.states, libero.ACTION: libero.gripper_opens(one.actions)}
    videos = {libero.video_key(name): np.ascontiguousarray(of[:, ::-1, ::-1]) for name, of in drawn.items()}
    writer.write(where[one.index], columns, videos)


def demo_arrays(one: Demonstration) -> dict[str, np.ndarray]:
    """Return an episode as LIBERO's files hold it. Its joints are those that the pictures show."""
    position, rotation, fingers = np.split(one.states.astype(np.float64), (3, 6), axis=1)
    last = np.zeros(one.steps, np.uint8)
    last[-1] = 1
    return {
        "actions": one.actions.astype(np.float64),
        "states": one.sim_states,
        "robot_states": np.concatenate([fingers, position, _quat_xyzw(rotation)], axis=1),
        "rewards": last * np.uint8(one.success),
        "dones": last,
        "obs/ee_pos": position,
        "obs/ee_ori": rotation,
        "obs/ee_states": np.concatenate([position, rotation], axis=1),
        "obs/gripper_states": fingers,
        "obs/joint_states": one.views[:, :7],  # the Panda comes first in LIBERO's scenes
    }


def _quat_xyzw(rotation: np.ndarray) -> np.ndarray:
    """Return unit quaternions [T, 4] of rotation vectors [T, 3]."""
    angle = np.linalg.norm(rotation, axis=1, keepdims=True)
    axis = np.divide(rotation, angle, out=np.zeros_like(rotation), where=angle > 0)
    return np.concatenate([axis * np.sin(angle / 2), np.cos(angle / 2)], axis=1)
