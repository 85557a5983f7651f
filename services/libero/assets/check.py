"""Check that a LIBERO task can be built from an asset directory, started at an official init state, and settles."""

from __future__ import annotations

import numpy as np

from services.libero.simulator import suites

WAIT_STEPS = 10  # objects fall a few centimetres, or rise out of the floor, before a policy acts
IDLE_STEPS = 50
IDLE_ACTION = np.array([0, 0, 0, 0, 0, 0, -1.0])
THROWN_M = 0.10  # sideways in the wait steps; a cream cheese of libero_90 starts in a juice carton and is pushed 9 cm
DRIFT_M = 0.01
TILT_DEG = 5.0


def problems(env, task: suites.Task, episode: int = 0) -> list[str]:
    """Return a message for each problem of a task at its init state `episode`.

    `env` is a LiberoEnv. Checks: the size of the state, the goal is not met already, no object is thrown in the wait
    steps, and none drifts, tips, sinks or becomes NaN while the arm stands still.
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
    faults = ["the goal is met without any action"] if any(solved) else []
    if not np.isfinite(env.sim_state()).all():
        return [*faults, "the state is not finite"]
    for name, (pos, rot) in end.items():
        thrown = np.linalg.norm(settled[name][0][:2] - start[name][0][:2])
        drift = np.linalg.norm(pos - settled[name][0])
        cosine = (np.trace(settled[name][1].T @ rot) - 1) / 2
        tilt = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
        if thrown > THROWN_M:
            faults.append(f"{name} is thrown {thrown * 100:.1f} cm aside while settling")
        if drift > DRIFT_M or tilt > TILT_DEG:
            faults.append(
                f"{name} does not rest: {drift * 100:.1f} cm and {tilt:.1f} degrees in {IDLE_STEPS} idle steps"
            )
        if pos[2] < -0.02:
            faults.append(f"{name} sank to z = {pos[2]:.3f} m")
    return faults


def _poses(env) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return position [3] (m) and rotation [3, 3] of every movable object."""
    domain = env.domain
    data = domain.sim.data
    bodies = {name: domain.obj_body_id[name] for name in domain.objects_dict}
    return {n: (np.array(data.body_xpos[b]), np.array(data.body_xmat[b]).reshape(3, 3)) for n, b in bodies.items()}
