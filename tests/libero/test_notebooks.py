"""LIBERO's notebooks run, against a policy that is up as against an oracle of their own."""

import pytest

from services.libero import playing
from tests import notebooks


@pytest.mark.parametrize("path", notebooks.of("libero"), ids=notebooks.name_of)
def test_a_notebook_runs_and_ends_in_a_video(path, tmp_path, libero_assets):
    cells = notebooks.executed(path, tmp_path, VLALAB_LIBERO_ASSETS=str(libero_assets))
    assert "image/gif" in cells[-1].outputs[-1].data


def test_a_policy_that_answers_is_queried_and_one_that_does_not_is_replaced(capsys, monkeypatch):
    monkeypatch.delenv("VLALAB_TOKEN", raising=False)
    nobody = playing.find_policy("http://127.0.0.1:9")
    assert "using an oracle instead" in capsys.readouterr().out
    assert nobody.info().name == "oracle"
    monkeypatch.setenv(playing.POLICY, nobody.base_url)
    assert playing.find_policy().base_url == nobody.base_url and capsys.readouterr().out == ""


def test_a_plot_writes_hangul(tmp_path):
    notebooks.plot_hangul(tmp_path)
