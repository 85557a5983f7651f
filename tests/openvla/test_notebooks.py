"""OpenVLA's notebook runs, and its viewer says of each token what the codec says."""

import re

import numpy as np
import pytest

from services.openvla import viewers
from services.openvla.checkpoint import tiny
from services.openvla.decoding.actions import ActionCodec, unnormalise
from tests import notebooks

STATS = tiny.statistics(("libero_goal",))["libero_goal_no_noops"]["action"]
TOKENS = [31999, 31745, 31744, 31872, 31900, 31800, 31999]


@pytest.mark.parametrize("path", notebooks.of("openvla"), ids=notebooks.name_of)
def test_a_notebook_runs_and_ends_in_an_image(path, tmp_path):
    assert notebooks.shows_image(notebooks.executed(path, tmp_path)[-1])


def test_the_drawing_says_token_bin_value_and_meaning():
    codec = ActionCodec()
    told = re.findall(r"token (\d+) · bin (\d+) · ([-+.\d]+) → ([-+.\d]+)", viewers.table(TOKENS, codec, STATS))
    values = codec.values(np.array(TOKENS))
    assert [int(row[0]) for row in told] == TOKENS
    assert [codec.centres[int(row[1])] for row in told] == values.tolist()
    assert [float(row[2]) for row in told] == pytest.approx(values, abs=5e-4)
    assert [float(row[3]) for row in told] == pytest.approx(unnormalise(values, STATS), abs=5e-4)


def test_a_bin_that_is_chosen_replaces_the_token():
    box = viewers.bins(TOKENS, ActionCodec(), STATS)
    which, bin_number, screen = box.children
    which.value, bin_number.value = 3, 17
    assert "token 31982 · bin 17" in screen.value and "token 31872" not in screen.value
    bin_number.value = -1
    assert screen.value == viewers.table(TOKENS, ActionCodec(), STATS)
