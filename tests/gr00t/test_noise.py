"""The flow's noise: from seed, instruction, episode and step, and from nothing else."""

import pytest
import torch

from tests.gr00t.harness import layout_of, observe
from vla_modelkit import noise

SIZES = layout_of("libero", side=8)


def seed(session="run-a.3.7.0.xyz", step=4, instruction="open the drawer", number=0):
    return noise.seed_of(observe(SIZES, session=session, step=step, instruction=instruction), number)


def test_a_further_attempt_in_another_run_starts_from_the_same_noise():
    assert seed() == seed(session="run-b.3.7.2.other") != seed(session="run-a.3.8.0.xyz")


@pytest.mark.parametrize(
    "change", [{"step": 5}, {"instruction": "close the drawer"}, {"number": 1}, {"session": "free"}]
)
def test_anything_else_changes_it(change):
    assert seed(**change) != seed()


def test_rows_do_not_depend_on_each_other_or_on_the_global_generator():
    together = noise.draw([1, 2, 3], 16, 32)
    torch.manual_seed(9)
    assert torch.equal(together[1], noise.draw([2], 16, 32)[0])
    assert not torch.equal(together[0], together[1])


def test_it_is_standard_normal():
    values = noise.draw(list(range(200)), 16, 32)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
