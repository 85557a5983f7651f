"""fast_libero's Gymnasium environments: Gymnasium's own checks, seeds, autoreset, processes with shared memory."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import fast_libero.gym  # noqa: F401  registers the ids
from services.libero.simulator import suites

NAME = "fast_libero/libero_object-v0"
OPTIONS = {"task": 3, "size": 64, "cameras": ("agentview",)}


def episode(env, actions, **reset):
    observation, info = env.reset(**reset)
    return [observation, *(env.step(action)[0] for action in actions)], info


def same(one, other):
    return all(np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_it_passes_gymnasiums_checks_and_depends_on_its_seed(libero_runtime):
    env = gymnasium.make(NAME, render_mode="rgb_array", **OPTIONS)
    check_env(env.unwrapped, skip_render_check=True)
    actions = [np.full(7, 0.4, np.float32)] * 2
    first, info = episode(env, actions, seed=4)
    np.random.seed(8)
    np.random.rand(3)  # of another user of the global generator
    again, _ = episode(env, actions, seed=4)
    assert same(first, again)
    other, chosen = episode(env, actions, seed=4, options={"init_state": (info["init_state"] + 1) % 50})
    assert not same(first, other) and chosen["init_state"] != info["init_state"]
    assert info["instruction"] == suites.load_suite("libero_object").tasks[3].instruction
    assert np.array_equal(env.render(), other[-1]["agentview_image"][::-1])
    env.close()
    with pytest.raises(IndexError, match="task 10 not found; libero_object has 0 to 9"):
        gymnasium.make(NAME, task=10).reset()


def test_success_ends_an_episode(libero_runtime):
    env = gymnasium.make("fast_libero/libero_goal-v0", task=0, size=64)
    env.reset(seed=0)
    inner = env.unwrapped._env.env
    inner._check_success = lambda: True
    *_, reward, terminated, truncated, info = env.step(np.zeros(7, np.float32))
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    env.close()


def test_processes_see_what_one_sees_and_start_again(libero_runtime):
    made = []
    for mode in ("sync", "async"):
        envs = gymnasium.make_vec(NAME, num_envs=2, vectorization_mode=mode, max_episode_steps=2, **OPTIONS)
        seen = [envs.reset(seed=[1, 2])[0]]
        for _ in range(3):
            observation, _, _, truncated, _ = envs.step(np.full((2, 7), 0.2, np.float32))
            seen.append({**{name: value.copy() for name, value in observation.items()}, "truncated": truncated})
        made.append(seen)
        envs.close()
    assert same(*made)
    assert [step["truncated"].tolist() for step in made[0][1:]] == [[False] * 2, [True] * 2, [False] * 2]
