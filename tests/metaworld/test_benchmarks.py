"""That the sides of `./lab bench meta_world` step different environments."""

import gymnasium
import numpy as np

from bench import meta_world
from services.metaworld.benchmark import BENCHMARK
from tests.calls import count_calls


def test_meta_world_steps_the_packages_environment_on_one_side_and_the_labs_on_the_other(make_env, monkeypatch):
    task = BENCHMARK.tasks("metaworld_mt50")[0]
    vector = BENCHMARK.init_states(task)[0]
    sides = {
        "ours": meta_world.Lab(make_env, task, vector, 64, False),
        "gymnasium": meta_world.Stock(task, vector, 64, False),
    }
    labs = count_calls(monkeypatch, type(sides["ours"].env), "step")
    actions = np.zeros((2, 4), np.float32)
    stepped = {}
    for name, side in sides.items():
        side.reset()
        labs.clear()
        side.play(actions)
        stepped[name] = len(labs)
    assert stepped == {"ours": 2, "gymnasium": 0}
    assert isinstance(sides["gymnasium"].env, gymnasium.Env) and not isinstance(sides["ours"].env, gymnasium.Env)
