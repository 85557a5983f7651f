"""`reproduce`: every published figure names what exists, and what it prints before a run."""

import re
import shlex
from types import SimpleNamespace

import pytest

from vlalab.cli import TASKS
from vlalab.commands import evaluation, reproduction
from vlalab.description import manifests, service_settings
from vlalab.host.console import LabError

FIGURES = reproduction.figures()


@pytest.mark.parametrize("key", FIGURES, ids=" ".join)
def test_every_figure_names_a_service_a_pinned_checkpoint_and_known_flags(key):
    figure = FIGURES[key]
    recipe = figure.row.reproduction
    assert figure.percent > 0 and figure.row.trials > 0 and figure.max_steps > 0
    assert (
        manifests.job_of(figure.suite) == figure.job
        and figure.profile.name in manifests.benchmarks()[figure.job].profiles
    )
    known = {f"--{flag.flag}" for flag in TASKS["eval"].flags}
    assert {word for word in recipe.flags if word.startswith("--")} <= known
    if not recipe.service:
        assert not recipe.checkpoint and not figure.variables
        return
    assert recipe.service in evaluation.policies()
    words = shlex.split(figure.filled(recipe.checkpoint))
    assert {word for word in words if word.startswith("--")} <= {
        f"--{flag.flag}" for flag in TASKS["checkpoint"].flags
    } | {"--revision"}
    if "--suite" not in words:  # those of suites are pinned by the model's table
        assert re.fullmatch("[0-9a-f]{40}", words[words.index("--revision") + 1])
        assert figure.checkpoint == words[words.index("--repo") + 1].partition("/")[2]
    assert figure.variables[service_settings.variable(recipe.service, "CHECKPOINT")] == figure.checkpoint


def test_the_known_figures():
    percent = {key: figure.percent for key, figure in FIGURES.items()}
    assert percent["openvla", "libero_goal"] == 79.2 and percent["gr00t", "libero_10"] == 76.0
    assert percent["openpi", "libero_10"] == 92.4 and percent["pi05", "libero_object"] == 99.0
    assert percent["smolvla", "libero_10"] == 71.0
    assert FIGURES["gr00t", "libero_goal"].variables["VLALAB_GR00T_DENOISING_STEPS"] == "8"
    assert ("gr00t", "libero_90") not in FIGURES, "its checkpoint is not published"


@pytest.mark.parametrize(
    ("policy", "suite", "says"),
    [
        ("openvl", "libero_goal", "did you mean 'openvla'? Known: openvla, openvla-oft, gr00t, openpi, pi05, smolvla"),
        ("openvla", "libero_90", "openvla for suite 'libero_90' not found"),
        ("openvla", "libero_long", "did you mean 'libero_10'"),
        ("openvla", "pusht", "Known: libero_spatial, libero_object, libero_goal, libero_10"),
    ],
)
def test_what_has_no_figure_is_refused_with_those_that_have(policy, suite, says):
    with pytest.raises(LabError, match=re.escape(says)):
        reproduction.figure(policy, suite)


def test_the_expected_episode_follows_from_short_ones():
    figure = SimpleNamespace(max_steps=300, percent=80.0, profile=SimpleNamespace(wait_steps=10))
    row = {"steps": 10, "timings_ms": {"reset": 50.0, "sim": 200.0, "total": 1050.0}}
    # 50 ms reset, 10 wait steps of 10 ms, and 180 steps of 10 ms simulation and 80 ms of everything else
    assert reproduction.episode_s(figure, [row, row]) == pytest.approx(0.05 + 10 * 0.01 + 180 * 0.09)


def test_a_dry_run_prints_the_commands(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    figure = reproduction.figure("openvla", "libero_goal")
    (tmp_path / "checkpoints" / str(figure.checkpoint)).mkdir(parents=True)
    assert reproduction.run(figure, None, None, None, "local", dry_run=True) == 0
    assets, checkpoint, _, evaluator = capsys.readouterr().out.splitlines()
    assert assets == "python -m services.libero.assets official"
    assert checkpoint == "python -m services.openvla.checkpoints --suite libero_goal"
    assert evaluator.endswith(
        "--profile openvla --assets official --trials 50 --run-id libero_goal-openvla-reproduce-50"
    )
    assert not (tmp_path / "runs").exists()


def test_a_server_of_another_project_needs_its_address(capsys):
    figure = reproduction.figure("openpi", "libero_10")
    with pytest.raises(LabError, match="--url ws://HOST:PORT"):
        reproduction.run(figure, None, None, None, "local", dry_run=True)
    assert reproduction.run(figure, 5, "http://gpu01:8000", None, "local", dry_run=True) == 0
    assert "--policy-url http://gpu01:8000 --profile openpi" in capsys.readouterr().out
