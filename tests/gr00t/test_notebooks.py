"""GR00T's notebooks run on tiny checkpoints."""

import pytest

from tests import notebooks


@pytest.mark.parametrize("path", notebooks.of("gr00t"), ids=notebooks.name_of)
def test_a_notebook_runs_and_ends_in_an_image(path, tmp_path):
    assert notebooks.shows_image(notebooks.executed(path, tmp_path)[-1])


def test_a_plot_writes_hangul(tmp_path):
    notebooks.plot_hangul(tmp_path)
