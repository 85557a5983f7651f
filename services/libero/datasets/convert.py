"""Turn episodes into data sets: rendered in parallel, each written when ready; the same command resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vla_datasets.scenes
from services.libero.datasets.scenes import render as render_scenes
from services.libero.simulator import suites
from vla_common.durations import format_duration
from vla_common.volume import display_path, require_space
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS
from vla_datasets import libero, metadata
from vla_datasets.conversion import WRITERS
from vla_datasets.errors import DatasetError
from vla_datasets.hdf5 import DemoWriter
from vla_datasets.writing import PIECES, EpisodeSlot, Writer, episode_slots
from vla_evaluation.recording import Demonstration, draw
from vla_evaluation.recording.sources import Episodes
from vla_evaluation.terminal import say

PLAN = "plan.json"  # the source of an unfinished set
DEFAULTS = {"format": "lerobot", "scenes": 0, "videos": True}  # of plans by older versions
# Per pixel of an image; for video as measured on LIBERO's scenes, twice in v3.0 until its files are joined.
PIXEL_BYTES = {"lerobot": 0.16, "lerobot-v3.0": 0.32, "hdf5": 3.0}
SCENE_PIXEL_BYTES = 1.2
SPARE = 2**27  # bytes to leave free on the disk
REPORT_INTERVAL_S = 20.0  # between two lines of progress


def _file_of(episode: Demonstration) -> str:
    return f"{suites.load_suite(episode.suite).tasks[episode.task].name}_demo.hdf5"


def convert(
    recorded: Episodes,
    episodes: Sequence[Demonstration],
    directory: Path,
    layout: str,
    cameras: tuple[str, ...],
    size: int,
    workers: int,
    scenes: int = 0,
    videos: bool = True,
) -> Path:
    """Make the data set at `directory`, with so many scenes per episode; return that path.

    videos: False for a set of numbers and scenes alone.

    Raises ValueError if it exists or an episode cannot be rendered, VolumeError if the disk is too small.
    """
    filmed = cameras if videos else ()
    source = describe(recorded, episodes, filmed, size, layout)
    writer = make_writer(directory, layout, filmed, size, source, episodes)
    plan = source | {"format": layout, "scenes": scenes, "videos": videos}
    path = writer.draft / PIECES / PLAN
    if path.exists():
        before = metadata.read_json(path)
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plan.items()}
        different = [name for name in plain if before.get(name, DEFAULTS.get(name)) != plain[name]]
        if different:
            raise DatasetError(
                f"unfinished set {directory.name} was started with different {', '.join(different)}; repeat that "
                f"command, choose another --name, or remove {display_path(writer.draft)}"
            )
    done = writer.written()
    left = [episode for episode in episodes if episode.index not in done]
    steps = sum(demo.steps for demo in left)
    scene_bytes = len(left) * scenes * len(cameras) * SCENE_PIXEL_BYTES
    bytes_needed = int((steps * len(filmed) * PIXEL_BYTES[layout] + scene_bytes) * size**2)
    require_space(directory, bytes_needed + SPARE)
    already = f", {len(done)} of them done" if done else ""
    say(f"data set {directory.name} of {recorded.kind} {recorded.name}: {len(episodes)} episodes{already}")
    rendered = f"{steps:,} steps" if videos else f"{len(left) * scenes:,} scenes"
    say(f"{rendered} to render, about {bytes_needed / 1e6:,.0f} MB, into {display_path(directory)}")
    if recorded.facts["starts"] == "evaluation":
        say(
            "its episodes start where evaluations start: use it to inspect and for offline evaluation, not for training"
        )
    metadata.write_json(path, plan)
    arranged = partial(render_scenes, cameras=cameras, size=size, count=scenes) if scenes else None
    write_episode = partial(put, writer, episode_slots(episodes, _file_of), arranged)
    start = reported = time.monotonic()
    finished = 0
    for count, (demo, _) in enumerate(draw(left, filmed, size, workers, write_episode), len(done) + 1):
        finished, now = finished + demo.steps, time.monotonic()
        if now - reported >= REPORT_INTERVAL_S and count < len(episodes):
            reported = now
            remaining_s = (steps - finished) * (now - start) / finished
            say(f"{count} of {len(episodes)} episodes, {format_duration(remaining_s)} remaining")
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
    """Return the writer of the layout; it keeps the episodes that an interrupted call has written."""
    if layout == "hdf5":
        pairs = {(episode.suite, episode.task) for episode in episodes}
        tasks = [suites.load_suite(suite).tasks[task] for suite, task in sorted(pairs)]
        return DemoWriter(directory, {f"{task.name}_demo.hdf5": _problem(task) for task in tasks}, source, resume=True)
    features, modality = libero.features(cameras, size), libero.modality(cameras) if cameras else None
    return WRITERS[layout](directory, libero.ROBOT, libero.FPS, features, modality, source, resume=True)


def _problem(task: suites.Task) -> dict[str, Any]:
    """Return the HDF5 attributes of a task's file that LIBERO's readers use."""
    content = task.bddl()
    problem = content.split("(problem", 1)[-1].split(")", 1)[0].strip()
    info = {"problem_name": problem, "domain_name": "robosuite", "language_instruction": task.instruction}
    name = f"{task.suite}/{task.name}.bddl"
    environment = {"type": 1, "env_name": problem, "problem_name": problem, "bddl_file": name}
    return {"problem_info": info, "env_args": environment, "bddl_file_name": name, "bddl_file_content": content}


def describe(
    recorded: Episodes, episodes: Sequence[Demonstration], cameras: tuple[str, ...], size: int, layout: str
) -> dict[str, Any]:
    """Return the provenance stored with the set; in LeRobot's layouts 1 opens the gripper."""
    is_hdf5 = layout == "hdf5"
    key = libero.hdf5_key if is_hdf5 else libero.video_key
    source = recorded.provenance(episodes, {key(camera): camera for camera in cameras}, size, not is_hdf5)
    if not is_hdf5:
        action = [GRIPPER_OPENS if part == GRIPPER_CLOSES else part for part in recorded.facts["action"]]
        source["action"] = [asdict(part) for part in action]
    return source


def put(
    writer: Writer | DemoWriter,
    slots: Mapping[int, EpisodeSlot],
    arranged: Callable[[Demonstration], Mapping[str, np.ndarray]] | None,
    demo: Demonstration,
    images: Mapping[str, np.ndarray],
) -> None:
    """Write a rendered episode, and its scenes before it, in the process that rendered it."""
    if arranged is not None:
        vla_datasets.scenes.write(writer.draft, slots[demo.index].episode, arranged(demo))
    if isinstance(writer, DemoWriter):
        writer.write(slots[demo.index], demo_arrays(demo), {libero.hdf5_key(name): of for name, of in images.items()})
        return
    columns = {libero.STATE: demo.states, libero.ACTION: libero.gripper_opens(demo.actions)}
    videos = {libero.video_key(name): np.ascontiguousarray(of[:, ::-1, ::-1]) for name, of in images.items()}
    writer.write(slots[demo.index], columns, videos)


def demo_arrays(demo: Demonstration) -> dict[str, np.ndarray]:
    """Return an episode in the layout of LIBERO's files; its joints are those at the time of the images."""
    position, rotation, fingers = np.split(demo.states.astype(np.float64), (3, 6), axis=1)
    angle = np.linalg.norm(rotation, axis=1, keepdims=True)
    axis = np.divide(rotation, angle, out=np.zeros_like(rotation), where=angle > 0)
    quat_xyzw = np.concatenate([axis * np.sin(angle / 2), np.cos(angle / 2)], axis=1)
    last = np.zeros(demo.steps, np.uint8)
    last[-1] = 1
    return {
        "actions": demo.actions.astype(np.float64),
        "states": demo.sim_states,
        "robot_states": np.concatenate([fingers, position, quat_xyzw], axis=1),
        "rewards": last * np.uint8(demo.success),
        "dones": last,
        "obs/ee_pos": position,
        "obs/ee_ori": rotation,
        "obs/ee_states": np.concatenate([position, rotation], axis=1),
        "obs/gripper_states": fingers,
        "obs/joint_states": demo.views[:, :7],  # the Panda comes first in LIBERO's scenes
    }
