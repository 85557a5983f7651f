"""Runs with invented results, for what is made of a run's store: no simulator."""

import re
from copy import deepcopy
from fractions import Fraction
from pathlib import Path

import numpy as np

from services.libero.benchmark import ASSET_NOTES, BENCHMARK
from vla_evaluation.benchmark import Assets
from vla_evaluation.config import EvalConfig, config_hash
from vla_evaluation.pictures import video
from vla_evaluation.plan import describe, make_plan
from vla_evaluation.store.runstore import RunStore

IDENTITY = {
    "suite": "libero_goal", "tasks": list(range(10)), "episodes": "0-49", "profile": "openvla", "seed": 0,
    "max_steps": 300, "execute": None, "cameras": ["agentview"], "unnorm_key": "libero_goal", "render": "auto",
    "policy": {"name": "vla", "needs_privileged": False, "checkpoint": {"repo": "lab/vla", "revision": "abc"}},
    "assets": {"kind": "official", "digest": "d"}, "code": "c", "lock": "l",
    "versions": {"mujoco": "3.2.3", "robosuite": "1.4.0", "hf-libero": "0.1.4", "bddl": "1.0.1"}, "off_lock": [],
}  # fmt: skip

ASSETS = {kind: Assets(kind, Path(), "d", **ASSET_NOTES.get(kind, {})) for kind in ("official", "kit", "folder")}


def episode_result(success, steps=100, **facts):
    timings = {"sim": 5.0 * steps, "render": 20.0 * steps, "policy": 9.0 * steps, "wire": 1.0 * steps,
               "server_infer": 8.0 * steps, "total": 36.0 * steps}  # fmt: skip
    return {"success": success, "steps": steps, "requests": steps, "timings_ms": timings, "start_hash": "s"} | facts


def make_run(
    root, name="run", outcome=lambda task, episode: True, trials=50, task_count=10, files=0, frames=4, left=0, **changes
):
    """Writes a run with invented results; `files` episodes get a real video of so many frames, `left` are not done."""
    identity = deepcopy(IDENTITY) | changes
    directory = root / name
    for sub in ("videos", "episodes", "logs"):
        (directory / sub).mkdir(parents=True)
    plan = [(task, episode) for task in range(task_count) for episode in range(trials)]
    made = make_plan(BENCHMARK, EvalConfig(suite=identity["suite"], profile=identity["profile"]))
    about = describe(made, ASSETS[identity["assets"]["kind"]])
    meta = {"identity": identity, "created": 1.0, "about": about}
    store = RunStore.create(
        directory / "run.sqlite", suite=identity["suite"], config_hash=config_hash(identity), plan=plan, meta=meta
    )
    store.db.execute("PRAGMA synchronous = OFF")  # hundreds of invented results need not reach the disk one by one
    invocation = store.begin_invocation(0.0, {"workers": 2, "commit": "f00", "machine": {"cores": 2}, "drift": []})
    for count in range(len(plan) - left):
        lease = store.lease("w", invocation, 0.0, 60.0, prefer_task=plan[count][0])
        result = episode_result(outcome(lease.task, lease.episode), start_hash=f"{lease.task}.{lease.episode}")
        if count < files:
            stem = f"videos/{lease.task:02d}-{lease.episode:02d}"
            images = np.random.default_rng(count).integers(0, 255, (frames, 64, 64, 3), np.uint8)
            video.write(directory / f"{stem}.mp4", directory / f"{stem}.jpg", iter(images), Fraction(10))
            result |= {"video": f"{stem}.mp4", "still": f"{stem}.jpg"}
        store.finish(lease, result, 1.0)
    if not left:
        store.end_invocation(invocation, 60.0, "complete")
    return directory, store


def markup(directory):
    """Return the page without its scripts, which hold all its texts in Korean."""
    return re.sub("<script .*?</script>", "", (directory / "report.html").read_text(), flags=re.DOTALL)
