"""Every task of the four suites on the assets under test: builds, takes its official init state, and comes to rest."""

import pytest

from services.libero.assets import check
from services.libero.simulator import suites

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
TASKS = [task for suite in SUITES for task in suites.load_suite(suite).tasks]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.suite}-{task.index}")
def test_task_builds_takes_its_init_state_and_rests(libero_env, task):
    assert check.problems(libero_env, task) == []
