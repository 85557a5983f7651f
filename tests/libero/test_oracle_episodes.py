"""The oracle in the real simulator, over real HTTP, by the evaluator's own loop: one episode per family of skills."""

from __future__ import annotations

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.simulator.suites import init_states, load_suite
from tests.libero.test_policies import served
from vla_contract.protocol import codec

EPISODES = {  # family: (suite, task, init state)
    "on an object": ("libero_goal", 8, 0),
    "on a region": ("libero_goal", 1, 1),
    "on something small": ("libero_goal", 6, 0),
    "into a basket": ("libero_object", 0, 0),
    "out of a drawer": ("libero_spatial", 4, 0),
    "two things": ("libero_10", 0, 0),
}


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    with served(tmp_path_factory.mktemp("oracle") / "log.txt", "oracle") as client:
        yield client


@pytest.fixture
def scene_at_rest(libero_env):
    """Return a task's problem after the wait steps of the profile, ready to be observed."""

    def make(suite: str, task: int, episode: int = 0):
        chosen = load_suite(suite).tasks[task]
        libero_env.load_task(chosen, seed=0)
        libero_env.reset(episode, init_states(chosen)[episode])
        for _ in range(10):
            libero_env.step([0, 0, 0, 0, 0, 0, -1])
        return libero_env

    return make


@pytest.mark.parametrize("family", EPISODES)
def test_the_oracle_solves_an_episode_of_every_family(family, libero_env, oracle):
    from vla_evaluation.config import EvalConfig
    from vla_evaluation.plan import make_plan, specify
    from vla_evaluation.rollout import run_episode

    suite, index, episode = EPISODES[family]
    task, plan = load_suite(suite).tasks[index], make_plan(BENCHMARK, EvalConfig(suite=suite))
    spec = specify(plan, oracle.info())
    libero_env.load_task(task, spec.seed)
    record = run_episode(
        libero_env,
        episode,
        init_states(task)[episode],
        act=oracle.act,
        spec=spec,
        session=f"{suite}/{index}/{episode}/0",
    )
    assert record.success
    assert record.steps == record.requests == len(record.actions) < 0.8 * spec.max_steps


@pytest.mark.parametrize("suite", ("libero_spatial", "libero_object", "libero_goal", "libero_10"))
def test_privileged_state_is_plain_small_and_complete(suite, scene_at_rest):
    from services.libero.oracle.scene import SceneState, World
    from services.libero.simulator.privileged import observe

    env = scene_at_rest(suite, 0)
    first, later = observe(env.domain, static=True), observe(env.domain, static=False)
    assert len(codec.pack(later)) < 6_000 and len(codec.pack(first)) < 100_000  # bytes
    arrived = codec.unpack(codec.pack(first))
    world = World.from_static(arrived["static"])
    scene = SceneState.from_state(world, arrived, 0)
    assert world.goals and all(
        name in world.objects or name in world.regions for goal in world.goals for name in goal.args
    )
    for name, body in env.domain.obj_body_id.items():
        np.testing.assert_allclose(scene.pose(name).pos, env.domain.sim.data.body_xpos[body])
    for name in world.regions:
        np.testing.assert_allclose(scene.site(name).pos, env.domain.sim.data.get_site_xpos(name), atol=1e-6)
    for name in world.joints:
        np.testing.assert_allclose(scene.joint(world.joints[name]), env.domain.sim.data.get_joint_qpos(name))


def test_observing_does_not_disturb_the_simulation(scene_at_rest):
    from services.libero.simulator.privileged import observe

    def drive(watch: bool) -> np.ndarray:
        env = scene_at_rest("libero_goal", 8)
        for step in range(20):
            if watch:
                observe(env.domain, static=step == 0)
            env.step([0.3, 0.1, -0.5, 0, 0, 0.2, 1 if step > 10 else -1])
        return env.sim_state()

    np.testing.assert_array_equal(drive(watch=True), drive(watch=False))
