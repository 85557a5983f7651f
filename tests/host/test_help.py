"""What `./lab` alone and `./lab TASK --help` show in a terminal of 80 columns."""

import re
import sys

import pytest

from tests.screen import show
from vlalab import cli
from vlalab.commands import course, programs
from vlalab.host.paths import ROOT
from vlalab.tasks import GROUPS

LAB = [sys.executable, "-I", "-m", "vlalab"]
ALL = cli.TASKS


END = "-- end of a help --"
HELP_OF_ALL = f"""
import sys
from vlalab import cli
for name in sys.argv[1:]:
    cli.run([name, "--help"])
    print({END!r})
"""


def shown(*words: str, columns: int = 80) -> list[str]:
    """Returns all lines that a command prints in a terminal of that width."""
    return show([*LAB, *words], columns=columns, cwd=ROOT).transcript.splitlines()


@pytest.fixture(scope="module")
def help_of() -> dict[str, list[str]]:
    """The lines of each task's help in a terminal of 80 columns, in which one program says all of them."""
    said = show([sys.executable, "-I", "-c", HELP_OF_ALL, *ALL], cwd=ROOT)
    assert said.process.returncode == 0, said.transcript
    found: dict[str, list[str]] = {name: [] for name in ALL}
    names = iter(ALL)
    name = next(names)
    for line in said.transcript.splitlines():
        if line == END:
            name = next(names, "")
        else:
            found[name].append(line)
    assert name == "" and all(found.values())
    return found


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_every_task_in_its_group_is_seen_at_once():
    lines = shown()
    assert len(lines) <= 25, "more than 25 rows"
    assert all(command in lines[-1] for command in ("./lab eval libero_goal --trials 2", "./lab up ui", "--help"))
    assert [line.split()[0] for line in lines if line[:1].islower()] == list(GROUPS)
    for name, one in ALL.items():
        assert any(re.search(rf"(^|\s){name} +{re.escape(one.short)}(\s|$)", line) for line in lines), name


def test_a_narrow_terminal_gets_one_column():
    lines = shown(columns=50)
    assert [re.split(r"\s+", line[max(map(len, GROUPS)) :].strip())[0] for line in lines[: len(ALL)]] == list(ALL)


@pytest.mark.parametrize("name", ALL)
def test_help_fits_the_terminal_and_its_flags_stand_in_their_order(help_of, name):
    lines = help_of[name]
    assert "\n".join(lines).strip() == cli.Parser(ALL[name]).full_help().strip(), "a line is too long"
    begins = [line.strip() for line in lines if line.startswith("  ") and not line.startswith("   ")]
    places = [next(at for at, one in enumerate(begins) if one.startswith(flag.usage)) for flag in ALL[name].flags]
    assert places == sorted(places)


def test_evals_common_flags_come_first_and_the_rest_is_called_advanced(help_of):
    lines = help_of["eval"]
    at = lines.index("Advanced:")
    common = [line.split()[0] for line in lines[:at] if line.startswith("  --")]
    assert common == [f"--{name}" for name in (
        "policy", "tasks", "workers", "profile", "trials", "episodes", "video", "resume", "run-id", "ablate", "gpu",
        "runtime", "dry-run", "no-check",
    )]  # fmt: skip
    assert any(line.startswith("  --ensemble-weight ") for line in lines[at:])


@pytest.mark.parametrize("name", ALL)
def test_flags_with_values_have_a_metavar_and_a_default(name):
    for flag in ALL[name].flags:
        if flag.type is not bool and not flag.is_positional:
            assert flag.usage.startswith(f"--{flag.flag} ") and flag.values.metavar
            assert not (isinstance(flag.default, (str, int)) and flag.default) or "; default: " in flag.help


def test_the_help_of_bench_lists_every_benchmark_with_what_it_measures(help_of):
    text = "\n".join(help_of["bench"])
    assert len(programs.benchmarks()) > 5
    for name, meaning in programs.described_benchmarks():
        assert re.search(rf"(?m)^  {name} +{re.escape(meaning.split()[0])}", text), name


@pytest.mark.parametrize("lab", course.labs())
def test_the_help_of_train_lists_every_setting_with_its_default_and_its_meaning(help_of, lab):
    text = " ".join("\n".join(help_of["train"]).split())
    own_flags = {flag.name for flag in ALL["train"].flags}
    for name, field in course.settings(lab).items():
        if field.name not in own_flags:
            assert field.summary, f"{lab}: {name} has no help"
            number = isinstance(field.default, int) and not isinstance(field.default, bool)
            assert (f" {name}={field.default} " if number else f" {name}") in text, name
