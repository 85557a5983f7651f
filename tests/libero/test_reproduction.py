"""The verdict on a run of known rate against OpenVLA's published 79.2 % of 1,500 episodes."""

import json

import pytest

from tests.libero.invented import make_run
from vla_evaluation.runs import __main__ as runs

MODEL = "OpenVLA 7B, fine-tuned per suite"


def judge(root, *names: str) -> int:
    return runs.main(["--run-dir", str(root), "verdict", *names])


@pytest.mark.parametrize(
    ("per_task", "p_value", "compatible"),  # scipy 1.17: fisher_exact([[n, 500 - n], [1188, 312]])
    [(37, 0.017944484954409586, False), (40, 0.7496166340013174, True), (43, 0.000784888879149221, False)],
)
def test_verdict_follows_from_both_numbers_of_episodes(tmp_path, capsys, per_task, p_value, compatible):
    make_run(tmp_path, outcome=lambda task, episode: episode < per_task)
    assert judge(tmp_path, "run", MODEL) == 0
    verdict = json.loads((tmp_path / "run" / "reproduction.json").read_text())
    assert verdict["p_value"] == pytest.approx(p_value, rel=1e-9) and verdict["compatible"] is compatible
    assert (verdict["successes"], verdict["episodes"], verdict["published_episodes"]) == (10 * per_task, 500, 1500)
    assert verdict["differences"] == [] and verdict["source"] == "arXiv:2406.09246"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"verdict:   {'' if compatible else 'not '}compatible (Fisher's exact test, two-sided: p = ")


def test_differing_settings_and_assets_are_listed(tmp_path, capsys):
    make_run(tmp_path, trials=10, episodes="0-9", max_steps=200, assets={"kind": "kit", "digest": "k"})
    assert judge(tmp_path, "run", MODEL) == 0
    differences = [line for line in capsys.readouterr().out.splitlines() if line.startswith("differs:")]
    assert "assets: kit" in differences[0] and "another step limit" in differences[2]
    assert differences[1].endswith("not the first 50 init states")


def test_an_incomplete_run_and_an_unknown_row_have_no_verdict(tmp_path, capsys):
    make_run(tmp_path, "part", trials=1, left=4)
    make_run(tmp_path, "whole", trials=1)
    assert judge(tmp_path, "part", MODEL) == 2 and "6 of 10 episodes; resume it first" in capsys.readouterr().err
    assert judge(tmp_path, "whole", "OpenVLA 8B") == 2 and MODEL in capsys.readouterr().err
    assert not list(tmp_path.glob("*/reproduction.json"))
