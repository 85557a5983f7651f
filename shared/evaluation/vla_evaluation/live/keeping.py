"""What an episode of a session leaves: a film, or a demonstration as `./lab record` keeps them."""

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
from vla_evaluation.plan import describe, make_job
from vla_evaluation.recording import record, worker
from vla_evaluation.runs.folders import STORE, Run, RunRefused, open_run
from vla_evaluation.store.remote import save_episode
from vla_evaluation.store.runstore import RunStore
from vla_evaluation.workers.job import InvocationClock

if TYPE_CHECKING:
    from vla_evaluation.live.player import Player

LOCKED_S = 5.0  # another session keeps a demonstration in the same recording
LEASE_S = 60.0


def film(env: Environment, benchmark: Benchmark, states: np.ndarray, work: Path) -> bytes:
    """Returns an mp4 of an episode that `env` has just run, both cameras beside each other."""
    every = video.stride(benchmark.control_hz)
    views = [video.draw(env, camera, states, {}, every) for camera in benchmark.cameras[:2]]
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = Path(folder) / "film.mp4"
        frames = (np.concatenate(pair, axis=1) for pair in zip(*views, strict=True))
        video.write(path, path.with_suffix(".jpg"), frames, Fraction(str(benchmark.control_hz)) / every)
        return path.read_bytes()


def demonstration(player: Player) -> str:
    """Returns the name of the recording that the episode, which was solved, is now a demonstration of.

    Recordings are by who drove: SUITE-person, SUITE-POLICY-and-person; one that was made with another version of the
    lab is left alone, and another begun beside it. Steps of a person's that do nothing are left out, as with
    `record --drop-noops`.
    """
    driver = player.info.name if not player.by_person else "person"
    if 0 < player.by_person < len(player.actions):
        driver = f"{player.info.name}-and-person"
    suite, root = player.opening.suite, Volume().demonstrations
    require_space(root, record.DEMONSTRATION_BYTES)
    config = RecordConfig(suite, episodes=len(player.benchmark.tasks(suite)), drop_noops=bool(player.by_person))
    plan = record.make_plan(player.benchmark, config, player.spec.profile)
    spec = replace(player.spec, seed=0, policy=replace(player.info, name=driver))
    identity = record.identify_recording(plan, spec, player.assets)
    with ExitStack() as stack:
        run = _open(stack, root, f"{suite}-{driver}" + ("" if player.by_person else "-live"), identity)
        about = describe(plan, player.assets)
        run.store.set_meta("about", {**about, "recording": record.what_is_kept(player.benchmark)})
        kept = {task: counts["successes"] for task, counts in run.store.counts().items()}
        wanted = {player.task.index: kept.get(player.task.index, 0) + 1}
        run.store.want(wanted, 1)
        facts = {"wanted": {str(task): count for task, count in {**kept, **wanted}.items()}}
        job = make_job(plan, spec, player.assets, worker.RecordingJob, **facts)
        run.store.set_meta("job", job.to_json())
        _add(run, player)
        return run.id


def _add(run: Run, player: Player) -> None:
    """Adds the episode, whole or not at all."""
    clock = InvocationClock.start()
    invocation = run.store.begin_invocation(clock.now(), {"workers": 1})
    lease = run.store.lease("live", invocation, clock.now(), LEASE_S, player.task.index)
    poses = {f"fixture_{name}": pose for name, pose in player.env.fixture_poses().items()}
    arrays = player.tape.arrays(drop_noops=bool(player.by_person))
    result = player.record.summary() | {"seed": player.seed, "kept_steps": len(arrays["actions"])}
    result["by_person"] = player.by_person
    save_episode(run.store, run.folder, lease, result, {**arrays, "end": player.record.states[-1], **poses}, clock.now)
    run.store.end_invocation(invocation, clock.now(), "complete")


def _open(stack: ExitStack, root: Path, stem: str, identity: dict) -> Run:
    """Returns the recording of that name and identity, else the first of stem-2, stem-3 … that is there or free."""
    name, number, until = stem, 1, time.monotonic() + LOCKED_S
    while (root / name / STORE).exists() and _hash(root / name / STORE) != config_hash(identity):
        number += 1
        name = f"{stem}-{number}"
    record.refuse_foreign(root / name)
    while True:
        try:
            return stack.enter_context(open_run(root, identity, [], run_id=name, resume=None, label=name))
        except RunRefused:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _hash(store: Path) -> str:
    with RunStore(store, readonly=True) as opened:
        return opened.config_hash
