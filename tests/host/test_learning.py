"""`learn`: four stages one after the other, of which none is done twice, and whose settings stay what they were."""

import itertools
import json
from dataclasses import asdict, replace

import pytest

from vlalab.commands import evaluation, learning
from vlalab.commands.evaluation import INTERRUPTED, EvaluationRequest
from vlalab.commands.learning import Learning, LearningPlan, load_progress
from vlalab.host.console import LabError

PLAN = LearningPlan("libero_object", "mine", 30, "tiny", None, 40, 2, ["draws=1"])
STAGES = ["record", "dataset", "train", "evaluate"]


@pytest.fixture(autouse=True)
def volume(tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    return tmp_path


class Walk(Learning):
    """Learning whose stages make their result, or are stopped, and note that they ran."""

    def stages(self):
        return {name: (place, self.job(name, place)) for name, (place, _) in super().stages().items()}

    def job(self, name: str, place: str):
        def run() -> int:
            ran.append(name)
            (learning.paths.volume() / place).mkdir(parents=True, exist_ok=True)
            return stopped.get(name, 0)

        return run

    def print_summary(self) -> None:
        ran.append("told")


ran: list[str] = []
stopped: dict[str, int] = {}


def walk(**stops: int) -> tuple[int, list[str]]:
    """Returns the exit code, and what ran."""
    ran.clear()
    stopped.clear()
    stopped.update(stops)
    return Walk(load_progress(PLAN), None, None, "local", False, "./lab learn libero_object").run(), list(ran)


@pytest.mark.parametrize("number", range(4))
def test_resume_continues_the_interrupted_stage(number, capsys):
    assert walk(**{STAGES[number]: INTERRUPTED}) == (INTERRUPTED, STAGES[: number + 1])
    assert f"stopped in stage {STAGES[number]}. To resume:\n  ./lab learn" in capsys.readouterr().err
    assert walk() == (0, [*STAGES[number:], "told"])
    assert walk() == (0, ["told"])


def test_a_failed_stage_ends_it_and_is_not_taken_for_finished():
    assert walk(record=1) == (1, ["record"])
    assert walk()[1] == [*STAGES, "told"]


def test_a_result_that_was_deleted_is_made_again(volume):
    walk()
    (volume / "datasets" / "mine").rmdir()
    assert walk() == (0, ["dataset", "told"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"minutes": 60}, "minutes 30, got minutes 60"),
        ({"settings": ["draws=2"]}, r"settings \['draws=1'\], got settings \['draws=2'\]"),
        ({"suite": "libero_goal", "trials": 3}, "suite libero_object, trials 2, got suite libero_goal, tri"),
    ],
)
def test_resume_with_other_settings_is_rejected(change, words):
    walk(record=INTERRUPTED)
    with pytest.raises(LabError, match=f"mine was started with {words}.*--name"):
        load_progress(replace(PLAN, **change))


def test_resume_with_fewer_cores_keeps_the_number_of_demonstrations():
    walk(train=INTERRUPTED)
    fewer = replace(PLAN, demonstrations=20)
    assert load_progress(fewer, counted=False).plan == PLAN
    with pytest.raises(LabError, match="demonstrations 40, got demonstrations 20"):
        load_progress(fewer)
    assert load_progress(replace(fewer, name="new"), counted=False).plan.demonstrations == 20


def test_unreadable_progress_is_reported():
    walk()
    path = load_progress(PLAN).path
    path.write_text(json.dumps({"plan": asdict(PLAN) | {"colour": "red"}}))
    with pytest.raises(LabError, match="logs/learn/mine.json cannot be read"):
        load_progress(PLAN)


def commands(capsys, spent_s: float = 0) -> list[str]:
    progress = load_progress(PLAN)
    progress.spent_s = spent_s
    assert Learning(progress, 1, None, "local", True, "").run() == 0
    printed = capsys.readouterr()
    assert "40 demonstrations in up to 6.7 min, then up to 23.3 min training, 30.0 in all" in printed.err
    return printed.out.splitlines()


def test_a_dry_run_shows_the_four_programs_and_writes_nothing(volume, capsys, monkeypatch):
    monkeypatch.setattr(learning.time, "monotonic", itertools.count(0, 60).__next__)  # s; a slow machine
    record, dataset, train, evaluate = (line for line in commands(capsys) if "--host" not in line)
    assert (
        "record libero_object" in record and "--name mine --episodes 40 --noise 0.6 --starts wide --workers 1" in record
    )
    assert dataset.endswith("mine --format lerobot --size 128 --workers 1 --scenes 60 --scenes-only")
    assert train.endswith("--data mine --name mine --size tiny --minutes 23.33 --draws=1")
    assert evaluate.endswith("--trials 2 --run-id learn-mine --ablate images,language --ablate-trials 2 --workers 1")
    assert not list(volume.iterdir())


@pytest.mark.parametrize(("spent_s", "left"), [(600, "20"), (1800, "3"), (9000, "3")])
def test_training_has_what_the_demonstrations_left_and_a_tenth_at_least(spent_s, left, capsys):
    assert any(f"--minutes {left} " in line for line in commands(capsys, spent_s))


def test_demonstrations_follow_from_the_minutes():
    counts = [learning.demonstrations(minutes, 2) for minutes in (0.1, 6, 90)]
    assert counts == [1, 24, 200]


@pytest.mark.parametrize(
    ("typed", "words"), [("minutes=3", "--set minutes .*remove it"), ("chunks=3", "did you mean 'chunk'")]
)
def test_unknown_and_derived_settings_are_rejected(typed, words):
    assert learning.settings(["head=flow"]) == ["head=flow"]
    with pytest.raises(LabError, match=words):
        learning.settings([typed])


def test_the_policy_it_starts_is_the_one_that_was_trained():
    own = {"VLALAB_MINIVLA_NAME": "mine"}
    assert evaluation._settings("minivla", EvaluationRequest("libero_object", "minivla", policy_variables=own)) == own
