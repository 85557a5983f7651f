"""Exercises: blanks and wrong solutions fail, right ones pass, and a student's file cannot harm the grader."""

import ast
import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from lessons.exercises import NAMES, check
from lessons.exercises.grader import Verdict, judge
from lessons.exercises.runner import check as run_file
from lessons.exercises.source import BLANK, EXERCISES, apply_mistake, blank, definition, exercise, file_for, run
from tests.ws_mdl.exercise_solutions import RIGHT, WRONG

EVERY = pytest.mark.parametrize("chosen", EXERCISES.values(), ids=EXERCISES)
MISTAKES = [(each, mistake) for each in EXERCISES.values() for mistake in each.mistakes]
ATTENTION = exercise("transformer.attention")


def solved(chosen) -> str:
    """Return the student's file with the lesson's code in it."""
    given = file_for(chosen)
    code = definition(chosen)
    broken = apply_mistake(code, chosen.mistake(chosen.bug)) if chosen.bug else blank(code)
    assert broken in given
    return given.replace(broken, code)


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def load(text: str, target: str):
    names = {}
    exec(compile(text, "student.py", "exec"), names)
    return names[target]


def test_every_exercise_is_listed_once_and_reports_it_in_both_languages():
    assert tuple(EXERCISES) == NAMES
    for each in EXERCISES.values():
        assert len(each.mistakes) >= 4, f"{each.name}: four typical mistakes at least"
        texts = [each.text, each.hint, *(mistake.advice for mistake in each.mistakes)]
        assert all(text.en and any("가" <= letter <= "힣" for letter in text.ko) for text in texts), each.name
        assert len({mistake.name for mistake in each.mistakes}) == len(each.mistakes)


@EVERY
def test_the_file_as_it_is_given_is_not_right(chosen):
    given = file_for(chosen)
    assert ast.get_docstring(ast.parse(given)) and chosen.text.ko in given
    verdict = judge(chosen, load(given, chosen.target))
    assert (verdict.state, verdict.mistake) == (("wrong", chosen.bug) if chosen.bug else ("blank", ""))
    assert (BLANK in given) != bool(chosen.bug)


@EVERY
def test_the_lesson_itself_is_right_in_the_students_file(chosen):
    assert judge(chosen, load(solved(chosen), chosen.target)).state == "right"


@pytest.mark.parametrize(
    ("chosen", "mistake"), MISTAKES, ids=[f"{each.name}: {mistake.name}" for each, mistake in MISTAKES]
)
def test_a_mistake_is_known_by_its_name(chosen, mistake):
    verdict = judge(chosen, run(chosen, apply_mistake(definition(chosen), mistake)))
    assert (verdict.state, verdict.mistake, verdict.advice) == ("wrong", mistake.name, mistake.advice)
    assert verdict.call and verdict.message.en and verdict.message.ko
    added = [new for _, new in mistake.edits]
    assert not any(old and old in verdict.message.en + mistake.advice.en for old, _ in mistake.edits), (
        f"gives away: {added}"
    )


def attention(*changes: tuple[str, str]):
    """Return the verdict on the lesson's attention with changes."""
    text = solved(ATTENTION)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return judge(ATTENTION, load(text, "attention"))


def test_what_no_mistake_explains_is_reported_by_shape_type_and_first_number():
    assert attention(("return weights @ value", "return (weights @ value).sum(0)")).message.en == (
        "the shape is (3, 5, 64); expected (2, 3, 5, 64)"
    )
    assert attention(("    return weights @ value", "    weights @ value")).message.en.startswith(
        "the code returns nothing"
    )
    assert (
        attention(("return weights @ value", "return 'attention'")).message.en
        == "the code returns a str; expected a tensor"
    )
    assert attention(("return weights @ value", "return (weights @ value) > 0")).message.en == (
        "the dtype is bool; expected float32"
    )
    off = attention(("return weights @ value", "return weights @ value + 1"))
    assert (
        off.mistake == ""
        and off.message.en.startswith("the value at [0, 0, 0, 0] is ")
        and "(1920 of 1920" in off.message.en
    )
    assert attention(("weights @ value", "weights @ values")).message.en.startswith(
        "the code fails with NameError: name 'values'"
    )


@pytest.fixture
def grad_enabled():
    """Restore what a solution may turn off for its whole process."""
    yield
    torch.set_grad_enabled(True)


def cases(table: dict[str, dict]) -> list:
    return [
        pytest.param(exercise(name), case, id=f"{name}: {label}")
        for name, row in table.items()
        for label, case in row.items()
    ]


@pytest.mark.parametrize(("chosen", "case"), cases(WRONG))
def test_a_wrong_solution_is_refused_and_only_a_mistake_that_it_is_gets_named(chosen, case, grad_enabled):
    *edits, expected = case
    code = definition(chosen)
    for old, new in [tuple(edits)] if isinstance(edits[0], str) else edits:
        assert old in code
        code = code.replace(old, new)
    verdict = judge(chosen, run(chosen, code))
    assert verdict.state == "wrong"
    if verdict.mistake:
        assert verdict.mistake == expected
    else:
        assert expected in verdict.message.en and verdict.advice.en


@pytest.mark.parametrize(("chosen", "code"), cases(RIGHT))
def test_another_way_to_the_same_numbers_is_right(chosen, code):
    assert judge(chosen, run(chosen, code.strip())) == Verdict("right")


def test_every_exercise_has_wrong_and_right_solutions():
    targets = {each.target for each in EXERCISES.values()}
    for table in (WRONG, RIGHT):
        assert {exercise(name).target for name in table} == targets


@pytest.mark.parametrize("end", ["weights.detach() @ value", "weights.numpy() @ value.numpy()"])
def test_a_cut_gradient_is_explained(end):
    verdict = attention(("weights @ value", end))
    assert all(word in verdict.advice.en for word in (".item()", ".detach()", "numpy", "no_grad"))


def test_two_mistakes_at_once_are_not_named_as_one():
    verdict = attention(("math.sqrt(d_k)", "math.sqrt(query.shape[1] * d_k)"), ("mask == 0", "mask == 1"))
    assert (verdict.state, verdict.mistake) == ("wrong", "")


def test_a_hint_on_masks_needs_a_call_with_a_mask():
    without = attention(("math.sqrt(d_k)", "3"))
    assert "without a mask" in without.call and "mask" not in without.advice.en
    masked = attention(("-1e9", "-5"))
    assert "causal mask" in masked.call and "masked_fill" in masked.advice.en


# --- a process of its own -----------------------------------------------------------------------------------

HARMFUL = {
    "never ends": ("    while True: pass", "did not end within 3 s"),
    "exits": ("    import os; os._exit(3)", "exit code 3"),
    "leaves by sys.exit": ("    import sys; sys.exit(0)", "exits the program"),
    "asks": ("    input('?')", "EOFError"),
    "recurses": ("    return attention(query, key, value, mask)", "RecursionError"),
    "takes all memory": ("    return bytearray(1 << 40)", "MemoryError"),
    "prints without end": ("    while True: print('x' * 10**6)", "OSError"),
    "ends who started it": ("    import os; os.kill(os.getppid(), 9); os._exit(3)", "process ended before"),
}


@pytest.mark.parametrize(("body", "said"), HARMFUL.values(), ids=HARMFUL)
def test_a_file_that_does_harm_is_wrong_and_the_grader_continues(tmp_path, body, said):
    path = written(tmp_path, ATTENTION.name, file_for(ATTENTION).replace(f"    {BLANK}", body))
    verdict, _ = run_file(ATTENTION.name, path, limit_s=3 if "3 s" in said else 60)
    assert verdict.state == "wrong" and said in verdict.message.en


SPOILS = """import math, os, sys, torch
print(hasattr(torch, "mine"), "MINE" in os.environ, math.sqrt is None, os.getcwd() == "/")
torch.mine, os.environ["MINE"], math.sqrt = 1, "1", None
os.chdir("/")
if (left := os.fork()) == 0:
    while True: pass
print(left)
"""


def is_running(number: int) -> bool:
    """Return whether that process runs; one that has ended may still wait for who takes up orphans."""
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_what_one_file_changes_or_leaves_running_the_next_does_not_meet(tmp_path):
    path = written(tmp_path, "spoils", SPOILS)
    for _ in range(2):
        verdict, printed = run_file(ATTENTION.name, path)
        met, left = printed.splitlines()
        assert (verdict.message.en, met) == ("the file does not define attention", "False False False False")
        until = time.monotonic() + 30
        while is_running(int(left)):  # told to end it is, and a busy machine comes to it later
            assert time.monotonic() < until
            time.sleep(0.01)


def test_where_files_are_tried_may_end_between_two_of_them(tmp_path):
    path = written(tmp_path, "a", solved(ATTENTION))
    assert run_file(ATTENTION.name, path)[0].state == "right"
    for child in psutil.Process().children():
        if "multiprocessing.forkserver" in " ".join(child.cmdline()):
            child.kill()
            while is_running(child.pid):
                time.sleep(0.01)
    assert run_file(ATTENTION.name, path)[0].state == "right"


def test_a_file_that_is_not_a_python_and_one_without_the_function_are_reported(tmp_path):
    verdict, _ = run_file(ATTENTION.name, written(tmp_path, "a", "x = 1\ndef attention(:\n"))
    assert verdict.message.en.startswith("line 2 is not valid Python")
    verdict, printed = run_file(ATTENTION.name, written(tmp_path, "b", "print('here')\ndef attend(): pass\n"))
    assert verdict.message.en == "the file does not define attention" and printed == "here\n"
    verdict, _ = run_file(ATTENTION.name, written(tmp_path, "c", "import nowhere\n"))
    assert "ModuleNotFoundError" in verdict.message.en


def test_an_error_is_reported_with_its_line_in_the_students_file(tmp_path):
    text = file_for(ATTENTION).replace(BLANK, "return query @ key")
    verdict, _ = run_file(ATTENTION.name, written(tmp_path, "a", text))
    line = 1 + text.splitlines().index("    return query @ key")
    assert f"in line {line} with RuntimeError" in verdict.message.en


# --- the program --------------------------------------------------------------------------------------------


def test_the_first_call_makes_the_file_the_second_checks_it_and_progress_is_kept(tmp_path, capsys):
    directory = tmp_path / "exercises"
    words = ["--directory", str(directory), "--name", "transformer.mask"]
    assert check.main(words) == 0
    path = directory / "transformer.mask.py"
    assert path.read_text() == file_for(exercise("transformer.mask")) and str(path) in capsys.readouterr().out
    assert check.main(words) == 1
    assert "not written yet" in capsys.readouterr().out
    path.write_text(solved(exercise("transformer.mask")).replace("diagonal=1", "diagonal=0"))
    assert check.main(words) == 1
    out = capsys.readouterr().out
    assert "wrong" in out and "looks like: the diagonal is masked too" in out and "diagonal은" in out
    check.main(["--directory", str(directory)])
    assert "transformer.mask            wrong: the diagonal is masked too" in capsys.readouterr().out
    path.write_text(solved(exercise("transformer.mask")))
    check.main(["--directory", str(directory)])
    assert "changed since it was checked" in capsys.readouterr().out
    assert check.main(words) == 0
    assert "right" in capsys.readouterr().out
    assert json.loads((directory / check.PROGRESS).read_text())["transformer.mask"]["state"] == "right"


def test_a_file_is_never_written_over(tmp_path):
    path = written(tmp_path, "transformer.mask", "# mine\n")
    assert check.main(["--directory", str(tmp_path), "--name", "transformer.mask"]) == 1
    assert path.read_text() == "# mine\n"


def test_a_class_is_a_table_of_its_students(tmp_path, capsys):
    for student in ("kim", "lee"):
        (tmp_path / student).mkdir()
    scaled = definition(ATTENTION)
    written(tmp_path / "kim", "transformer.attention", solved(ATTENTION))
    mistake = ATTENTION.mistake("√d_model for √d_k")
    written(
        tmp_path / "lee", "transformer.attention", solved(ATTENTION).replace(scaled, apply_mistake(scaled, mistake))
    )
    written(tmp_path / "lee", "vla.gripper", file_for(exercise("vla.gripper")))
    table = tmp_path / "table.csv"
    assert check.main(["--directory", str(tmp_path), "--all", str(tmp_path), "--csv", str(table)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"kim   1 of {len(NAMES)} right, 1 submitted",
        f"lee   0 of {len(NAMES)} right, 2 submitted",
        "       transformer.attention: √d_model for √d_k",
        "       vla.gripper: not written yet",
        "",
        "right, submitted (맞음, 제출):",
        "   1    2  transformer.attention",
        "   0    1  vla.gripper",
    ]
    rows = list(csv.reader(table.read_text(encoding="utf-8-sig").splitlines()))
    assert [dict(zip(rows[0], row, strict=True))["transformer.attention"] for row in rows[1:]] == ["right", "wrong"]
    assert [row[0] for row in rows] == ["student", "kim", "lee"]


def test_a_name_that_is_not_known_is_reported_with_the_nearest(tmp_path, capsys):
    assert check.main(["--directory", str(tmp_path), "--name", "transformer.atention"]) == 1
    assert "did you mean 'transformer.attention'?" in capsys.readouterr().err


def test_the_program_itself_runs_nothing_of_a_students_file(tmp_path):
    """It only starts processes: torch is not even imported in it."""
    path = written(tmp_path, "transformer.mask", "import os\nos.environ['SEEN'] = '1'\n")
    program = f"""
import os, sys
from lessons.exercises import check
check.main(["--directory", {str(tmp_path)!r}, "--name", "transformer.mask", "--file", {str(path)!r}])
print("torch" in sys.modules, "SEEN" in os.environ)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False False", done.stderr
