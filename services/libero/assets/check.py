"""Does an asset folder carry LIBERO's tasks? Builds each, starts it at an official init state and lets it stand.

`python -m services.libero.assets.check libero_goal libero_10 --assets kit`: about two seconds per task, no rendering.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from services.libero.assets import resolve
from services.libero.benchmark import BENCHMARK
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume
from vla_evaluation import provenance

WAIT_STEPS = 10  # things fall from a few centimetres, or rise out of the floor, before a policy acts
IDLE_STEPS = 50
IDLE_ACTION = np.array([0, 0, 0, 0, 0, 0, -1.0])
THROWN_M = 0.10  # sideways in the wait steps; a cream cheese of libero_90 starts in a juice carton and is pushed 9 cm
DRIFT_M = 0.01
TILT_DEG = 5.0


def problems(env, task: suites.Task, episode: int = 0) -> list[str]:
    """Returns what is wrong with a task at init state `episode` of it, in words; an empty list is good.

    `env` is a LiberoEnv. Looked at: the state's size, that the goal is not met already, that nothing is thrown in the
    wait steps, and that nothing drifts, tips, sinks or turns into NaN while the arm stands still.
    """
    env.load_task(task)
    state = suites.init_states(task)[episode]
    if state.size and env.sim_state().size != state.size:
        return [f"the model's state has {env.sim_state().size} numbers, the init file {state.size}"]
    env.reset(episode, state)
    start = _poses(env)
    solved = [env.step(IDLE_ACTION) for _ in range(WAIT_STEPS)]
    settled = _poses(env)
    solved += [env.step(IDLE_ACTION) for _ in range(IDLE_STEPS)]
    end = _poses(env)
    found = ["the goal is met without doing anything"] if any(solved) else []
    if not np.isfinite(env.sim_state()).all():
        return [*found, "the state is not finite"]
    for name, (pos, rot) in end.items():
        thrown = np.linalg.norm(settled[name][0][:2] - start[name][0][:2])
        drift = np.linalg.norm(pos - settled[name][0])
        cosine = (np.trace(settled[name][1].T @ rot) - 1) / 2
        tilt = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
        if thrown > THROWN_M:
            found.append(f"{name} is thrown {thrown * 100:.1f} cm aside while settling")
        if drift > DRIFT_M or tilt > TILT_DEG:
            found.append(
                f"{name} does not rest: {drift * 100:.1f} cm and {tilt:.1f} degrees in {IDLE_STEPS} idle steps"
            )
        if pos[2] < -0.02:
            found.append(f"{name} sank to z = {pos[2]:.3f} m")
    return found


def _poses(env) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns position [3] (m) and rotation [3, 3] of every movable object."""
    domain = env.domain
    data = domain.sim.data
    bodies = {name: domain.obj_body_id[name] for name in domain.objects_dict}
    return {n: (np.array(data.body_xpos[b]), np.array(data.body_xmat[b]).reshape(3, 3)) for n, b in bodies.items()}


@dataclass
class CheckCommand:
    """Checks an asset folder against the tasks of LIBERO's suites."""

    suite: Annotated[tuple[str, ...], tyro.conf.Positional] = (
        "libero_spatial",
        "libero_object",
        "libero_goal",
        "libero_10",
    )
    assets: str | None = None  # a folder, "official" or "kit"; default as for an evaluation
    episode: int = 0  # the init state to start from


def main(command: CheckCommand) -> int:
    """Returns the number of tasks with problems, after printing one line per task."""
    provenance.check_simulator(BENCHMARK, print)
    source = resolve(command.assets, Volume().root)
    print(f"assets: {source.kind}\nfolder: {source.path}")
    bad = 0
    with tempfile.TemporaryDirectory() as work:
        runtime.configure(source.path, Path(work), render="none")
        from services.libero.simulator.env import LiberoEnv

        env = LiberoEnv(source.path, cameras=())
        for name in command.suite:
            for task in suites.load_suite(name).tasks:
                found = problems(env, task, command.episode)
                bad += bool(found)
                print(f"{name} {task.index:2d} {'; '.join(found) or 'ok'}  {task.instruction}", flush=True)
        env.close()
    print(f"{bad} tasks with problems")
    return bad


if __name__ == "__main__":
    sys.exit(min(main(tyro.cli(CheckCommand)), 1))
