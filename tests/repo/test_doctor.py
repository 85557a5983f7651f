"""docs/doctor.md and tests/host/machines/README.md against the code: a table of checks, and functions that are named.

`.venv/bin/python -m tests.repo.test_doctor` writes the table.
"""

import ast
import re

import pytest

from vlalab.doctor import runner
from vlalab.host import paths

PAGE = paths.ROOT / "docs" / "doctor.md"
TEXT = PAGE.read_text()
BEGIN, END = "<!-- checks -->\n", "<!-- end of checks -->"
KNOWN = (paths.ROOT / "tests/host/machines/README.md").read_text()  # problems of real machines
ROWS = [line for line in KNOWN.splitlines() if line.startswith("| ")][1:]


def with_checks(text: str) -> str:
    """Return the page with the current table of checks."""
    rows = ["| check | what it means when it is not in order | worst | in general | before |", "|---|---|---|---|---|"]
    rows += [
        f"| `{check.id}` | {check.meaning} | {check.severity} | `{check.fix}` | {', '.join(check.before)} |"
        for check in runner.checks()
    ]
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n".join(rows) + "\n" + END + rest.split(END)[1]


def test_the_table_of_checks_is_the_checks():
    assert with_checks(TEXT) == TEXT, "run: .venv/bin/python -m tests.repo.test_doctor"


def test_everything_that_goes_wrong_on_real_machines_has_a_place():
    assert len(ROWS) == 34


@pytest.mark.parametrize("row", ROWS)
def test_every_place_that_is_named_exists(row):
    places = re.findall(r"`([^`]+)`", row.split("|")[2])
    assert places
    for place in places:
        path, _, name = place.partition(":")
        if "/" in path:
            defined = ast.walk(ast.parse((paths.ROOT / path).read_text()))
            assert name in {getattr(node, "name", "") for node in defined}, place
        elif place != "shm_size":
            assert runner.checks_by_id([place]), place


def test_the_checks_before_a_task_are_those_of_tasks_that_ask():
    from vlalab import cli

    asking = {name for name, task in cli.TASKS.items() if "no-check" in task.shared}
    assert {task for check in runner.checks() for task in check.before} == asking
    for name in asking:
        assert f"`{name}`" in TEXT.split("## Before other tasks")[1].split("\n## ")[0]


if __name__ == "__main__":
    PAGE.write_text(with_checks(TEXT))
