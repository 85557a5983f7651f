"""Each suite's tasks, their instructions and their variations, against the package's own."""

import numpy as np
import pytest

from services.metaworld import variations
from services.metaworld.benchmark import BENCHMARK
from services.metaworld.profiles import PROFILES
from services.metaworld.tasks import INSTRUCTIONS, SUITES
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import make_plan

GROUPS = ("metaworld_easy", "metaworld_medium", "metaworld_hard", "metaworld_very_hard")


@pytest.fixture(scope="module")
def package(env):
    from metaworld import env_dict

    return {
        "metaworld_mt10": env_dict.MT10_V3,
        "metaworld_mt50": env_dict.MT50_V3,
        "metaworld_ml10_train": env_dict.ML10_V3["train"],
        "metaworld_ml10_test": env_dict.ML10_V3["test"],
        "metaworld_ml45_train": env_dict.ML45_V3["train"],
        "metaworld_ml45_test": env_dict.ML45_V3["test"],
    }


def test_suites_are_the_packages_own(package):
    for suite, classes in package.items():
        assert [task.name for task in SUITES[suite]] == list(classes), suite
    assert {*package, *GROUPS} == set(SUITES)


def test_the_groups_by_difficulty_are_a_partition_of_all_tasks():
    names = [task.name for suite in GROUPS for task in SUITES[suite]]
    assert [len(SUITES[suite]) for suite in GROUPS] == [28, 11, 6, 5]
    assert sorted(names) == sorted(INSTRUCTIONS)


def test_every_task_has_its_place_and_an_instruction():
    for suite in BENCHMARK.suites:
        for place, task in enumerate(BENCHMARK.tasks(suite)):
            assert (task.index, task.instruction) == (place, INSTRUCTIONS[task.name])
        assert all(profile.steps_for(suite) == 500 for profile in PROFILES.values())


def test_variations_are_fifty_different_ones_within_the_tasks_space(env):
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(variations._all()) == set(INSTRUCTIONS) == set(ALL_V3_ENVIRONMENTS)
    for task in SUITES["metaworld_mt50"]:
        vectors = BENCHMARK.init_states(task)
        assert len(np.unique(vectors, axis=0)) == 50 and vectors.shape[1] in (3, 6), task.name


def test_variations_are_those_that_the_package_draws_with_seed_42(env):
    task = "door-open-v3"
    assert np.array_equal(variations.make(task), variations.of(task))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"suite": "metaworld_mt11"}, "did you mean 'metaworld_mt10'"),
        ({"suite": "metaworld_mt10", "tasks": "reach-v2"}, "did you mean 'reach-v3'"),
        ({"suite": "metaworld_mt10", "tasks": "3-10"}, "has tasks 0-9"),
        ({"suite": "metaworld_mt10", "profile": "openvla"}, "known: "),
        ({"suite": "metaworld_mt10", "cameras": "agentview"}, "camera 'agentview' not found"),
        ({"suite": "metaworld_mt10", "episodes": "0-50"}, "50"),
    ],
)
def test_what_there_is_not_is_refused_in_one_sentence(config, says):
    with pytest.raises(ValueError, match="(?i)" + says.replace("(", r"\(")) as refused:
        make_plan(BENCHMARK, EvalConfig(**config))
    assert "\n" not in str(refused.value)


def test_other_assets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="come with its package"):
        BENCHMARK.assets("kit", tmp_path)
    found = BENCHMARK.assets(None, tmp_path)
    assert found == BENCHMARK.assets(found.kind, tmp_path) == BENCHMARK.assets(str(found.path), tmp_path)
