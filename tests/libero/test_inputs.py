"""What a policy gets instead of the true observation: other sentences, and inputs taken away."""

import json
from dataclasses import replace

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.simulator import suites
from tests.libero.harness import LightEvaluation, LightRecording, PolicyService
from vla_evaluation import inputs
from vla_evaluation.config import EvalConfig, RecordConfig
from vla_evaluation.recording.demonstrations import Demonstrations
from vla_evaluation.runs import leaderboard
from vla_evaluation.runs.directories import find_runs
from vla_evaluation.store.runstore import RunStore

OWN = {"0": ["open it", "pull the middle drawer"], "put_the_bowl_on_the_stove": "the bowl, on the stove"}
LENGTH = ("--max-steps", "12", "--tasks", "0,1", "--workers", "1")


def test_a_disturbed_suite_can_have_the_words_of_its_base():
    base = suites.load_suite("libero_goal").tasks
    for suite in ("libero_goal_swap", "libero_goal_lan", "libero_goal_shuffled"):
        tasks = BENCHMARK.tasks(suite)
        sentences = inputs.read_instructions(BENCHMARK, EvalConfig(suite=suite, instructions="base"), tasks)
        assert sentences == {str(task.index): (base[task.index].instruction,) for task in tasks}
    plus = next(task for task in BENCHMARK.tasks("libero_goal_plus_language"))
    assert BENCHMARK.base_instruction(plus) in [task.instruction for task in base] and plus.instruction not in base
    with pytest.raises(ValueError, match="another goal than its base"):
        config = RecordConfig(suite="libero_goal_task", instructions="base")
        inputs.read_instructions(BENCHMARK, config, BENCHMARK.tasks("libero_goal_task"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "must be JSON"),
        ("[]", "got a list"),
        ('{"0": "x"}', "none for task 1, put_the_bowl_on_the_stove"),
        ('{"0": "x", "1": []}', "the sentences of '1' are"),
        ('{"0": "x", "1": "y", "put_the_bowl_on_the_stov": "z"}', "did you mean 'put_the_bowl_on_the_stove'"),
    ],
)
def test_a_file_of_sentences_that_does_not_fit_is_refused(tmp_path, text, message):
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        config = EvalConfig(suite="libero_goal", instructions_file=path)
        inputs.read_instructions(BENCHMARK, config, BENCHMARK.tasks("libero_goal")[:2])


def actions(directory, task, episode):
    with np.load(directory / "episodes" / f"{task:02d}-{episode:02d}.npz") as file:
        return file["actions"]


@pytest.fixture(scope="module")
def ablated(tmp_path_factory):
    """A run of a policy whose actions depend on the instruction and the images, and its ablations."""
    root = tmp_path_factory.mktemp("volume")
    (root / "own.json").write_text(json.dumps(OWN))
    with PolicyService(root / "policy.txt", "--looks", "--camera", "agentview") as policy:
        flags = (*LENGTH, "--policy-url", policy.url, "--trials", "3")
        own = (*flags, "--instructions-file", str(root / "own.json"))
        with LightEvaluation(root / "runs", "plain", *flags) as run:
            run.end()
        with LightEvaluation(root / "runs", "own", *own) as run:
            run.end()
        with LightEvaluation(root / "runs", "own", *own, "--ablate", "images,language", "--resume", "own") as run:
            said = run.end()
    return root / "runs", said


def test_sentences_are_used_in_turn_and_stand_in_identity_and_report(ablated):
    root, _ = ablated
    rows = [json.loads(line) for line in (root / "own" / "episodes.jsonl").read_text().splitlines()]
    used = {(row["task"], row["episode"]): row["instruction"] for row in rows}
    assert [used[0, episode] for episode in range(3)] == ["open it", "pull the middle drawer", "open it"]
    assert {used[1, episode] for episode in range(3)} == {"the bowl, on the stove"}
    config = json.loads((root / "own" / "config.json").read_text())
    assert config["instructions"] == {"0": ["open it", "pull the middle drawer"], "1": ["the bowl, on the stove"]}
    assert "instructions" not in json.loads((root / "plain" / "config.json").read_text())
    assert not np.array_equal(actions(root / "own", 1, 0), actions(root / "plain", 1, 0))
    page = (root / "own" / "report.html").read_text()
    assert "pull the middle drawer" in page and "not the suite" in page


def test_each_ablation_takes_away_what_it_says(ablated):
    root, _ = ablated
    parts = root / "own" / "ablations"
    for episode in range(3):  # task 1 has one sentence: its actions differ by the images alone
        other = (episode + 1) % 3
        assert np.array_equal(actions(parts / "other-images", 1, episode), actions(root / "own", 1, other))
        assert np.array_equal(actions(parts / "black-images", 1, episode), actions(parts / "black-images", 1, 0))
        assert not np.array_equal(actions(parts / "black-images", 1, episode), actions(root / "own", 1, episode))
        assert not np.array_equal(actions(parts / "other-instruction", 1, episode), actions(root / "own", 1, episode))


def test_ablations_are_paired_with_the_run_and_in_no_list(ablated):
    root, said = ablated
    summary = json.loads((root / "own" / "summary.json").read_text())
    assert list(summary["ablations"]) == list(inputs.ABLATIONS)
    for name, text in inputs.ABLATIONS.items():
        assert summary["ablations"][name]["episodes"] == 6 and summary["ablations"][name]["p_value"] == 1.0
        assert f"{text}: 0.0 % (0/6)" in said and "exact p = 1" in said
        part = json.loads((root / "own" / "ablations" / name / "summary.json").read_text())
        assert part["ablation"] == text and not part["comparable_with_published"]
        assert part["provenance"]["ablation"] == name
    assert "another episode&#39;s images" in (root / "own" / "report.html").read_text()
    assert "--ablate images,language --resume" in (root / "plain" / "report.html").read_text()
    assert {directory.name for directory in find_runs(root)} == {"plain", "own"}
    board = leaderboard.read_board(root, ())
    assert [entry["run"] for entry in board["left_out"]] == ["own"]
    (root / "board").mkdir()
    (root / "own" / "ablations" / "black-images").rename(root / "board" / "black")
    assert [entry["why"] for entry in leaderboard.read_board(root / "board", ())["left_out"]] == [
        "the policy's inputs were ablated"
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--ablate", "images", "--trials", "1", "--camera"), "two or more episodes"),
        (("--ablate", "images", "--trials", "2"), "requests no images"),
        (("--ablate", "sound"), "must name images, language or both"),
    ],
)
def test_an_impossible_ablation_is_refused_before_the_run(tmp_path, flags, message):
    has_camera = flags[-1] == "--camera"
    with PolicyService(tmp_path / "policy.txt", *(("--camera", "agentview") if has_camera else ())) as policy:
        flags = tuple(flag for flag in flags if flag != "--camera")
        with LightEvaluation(tmp_path / "runs", "x", "--policy-url", policy.url, *flags) as run:
            assert message in " ".join(run.end(2).replace("│", " ").split())
    assert not (tmp_path / "runs" / "x").exists()


def test_a_recording_of_a_disturbed_suite_has_the_words_of_its_base(tmp_path):
    with PolicyService(tmp_path / "policy.txt") as policy:
        flags = ("--policy-url", policy.url, "--tasks", "2", "--episodes", "1", "--instructions", "base")
        with LightRecording(tmp_path / "made", "x", *flags, "--keep-failures", suite="libero_goal_lan") as run:
            run.end()
    (episode,) = Demonstrations(tmp_path / "made" / "x").episodes
    assert episode.instruction == suites.load_suite("libero_goal").tasks[2].instruction
    with RunStore(tmp_path / "made" / "x" / "run.sqlite", readonly=True) as store:
        assert store.meta("identity")["instructions"] == {"2": [episode.instruction]}


def test_the_next_task_with_other_words_gives_the_sentence():
    tasks = {task.index: task for task in suites.load_suite("libero_goal").tasks}
    assert inputs.of_another_task(tasks, 9) == tasks[0].instruction
    same = {index: replace(task, instruction="x") for index, task in tasks.items()}
    with pytest.raises(ValueError, match="the same instruction"):
        inputs.of_another_task(same, 0)
