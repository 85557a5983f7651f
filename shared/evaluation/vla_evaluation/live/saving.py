"""Save a session's episode: as a video, or as a demonstration like those of `./lab record`."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vla_common.volume import Volume, require_space
from vla_evaluation.benchmark import Benchmark, Environment
from vla_evaluation.config import RecordConfig, config_hash
from vla_evaluation.pictures import video
from vla_evaluation.recording import record
from vla_evaluation.runs.directories import STORE, Run, RunUnusable, open_run
from vla_evaluation.store.remote import save_episode
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.job import InvocationClock

if TYPE_CHECKING:
    from vla_evaluation.live.simulation import Simulation

LOCK_TIMEOUT_S = 5.0  # another session saves a demonstration in the same recording
LEASE_S = 60.0


def render_video(env: Environment, benchmark: Benchmark, states: np.ndarray, work: Path) -> bytes:
    """Return an mp4 of the episode that `env` has just run, two cameras side by side."""
    every = video.stride(benchmark.control_hz)
    views = [video.render_frames(env, camera, states, {}, every) for camera in benchmark.cameras[:2]]
    with tempfile.TemporaryDirectory(dir=work) as directory:
        path = Path(directory) / "film.mp4"
        frames = (np.concatenate(pair, axis=1) for pair in zip(*views, strict=True))
        video.write(path, path.with_suffix(".jpg"), frames, Fraction(str(benchmark.control_hz)) / every)
        return path.read_bytes()


def save_demonstration(session: Simulation) -> str:
    """Add the episode that a session has just run to a recording, whole or not at all; return the recording's name.

    Each driver has a recording: SUITE-person, SUITE-POLICY-live, SUITE-POLICY-and-person. A recording of another
    version of the lab stays unchanged, and a new one is started. A person's steps that do nothing are dropped, as with
    `record --drop-noops`.
    """
    suite, info, by_person = session.request.suite, session.info, session.person_steps
    driver = info.name if not by_person else "person"
    if 0 < by_person < len(session.actions):
        driver = f"{info.name}-and-person"
    name = f"{suite}-{driver}" + ("" if by_person else "-live")
    root, task, benchmark = Volume().demonstrations, session.task.index, session.benchmark
    require_space(root, record.DEMONSTRATION_BYTES)
    config = RecordConfig(suite, episodes=len(benchmark.tasks(suite)), drop_noops=bool(by_person))
    plan = record.make_plan(benchmark, config, session.spec.profile)
    spec = replace(session.spec, seed=0, policy=replace(info, name=driver))
    with ExitStack() as stack:
        run = _open(stack, root, name, record.identify_recording(plan, spec, session.assets))
        targets = {count: counts["successes"] for count, counts in run.store.counts().items()}
        targets[task] = targets.get(task, 0) + 1
        run.store.plan_successes({task: targets[task]}, 1)
        record.describe_recording(run.store, plan, spec, session.assets, targets)
        clock = InvocationClock.start()
        invocation = run.store.begin_invocation(clock.now(), {"workers": 1})
        lease = run.store.lease("live", invocation, clock.now(), LEASE_S, task)
        arrays = session.trajectory.arrays(drop_noops=bool(by_person))
        result = session.record.summary() | {"seed": session.seed, "kept_steps": len(arrays["actions"])}
        result["by_person"] = by_person
        arrays |= {"end": session.record.states[-1]}
        arrays |= {f"fixture_{fixture}": pose for fixture, pose in session.env.fixture_poses().items()}
        save_episode(run.store, run.directory, lease, result, arrays, clock.now)
        run.store.end_invocation(invocation, clock.now(), "complete")
        return run.id


def _open(stack: ExitStack, root: Path, stem: str, identity: dict) -> Run:
    """Open the recording of that name and identity, else the first of stem-2, stem-3, … that fits or is free."""
    name, number, until = stem, 1, time.monotonic() + LOCK_TIMEOUT_S
    while (store := root / name / STORE).exists():
        with RunStore(store, readonly=True) as opened:
            if opened.config_hash == config_hash(identity):
                break
        number += 1
        name = f"{stem}-{number}"
    record.require_recording_directory(root / name)
    while True:
        try:
            return stack.enter_context(open_run(root, identity, [], run_id=name, resume=None, label=name))
        except RunUnusable:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
