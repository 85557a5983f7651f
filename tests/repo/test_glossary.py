"""docs/glossary.md names files and what is in them: both are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| term |")
]


def test_it_has_rows_of_three():
    assert len(ROWS) > 40 and {len(row) for row in ROWS} == {3}
    terms = [row[0] for row in ROWS]
    assert len(set(terms)) == len(terms)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row):
    path, *names = re.findall("`([^`]+)`", row[2])
    text = (ROOT / path).read_text()
    for name in names:
        assert re.search(rf"^\s*(class|def) {name}\b|^\s*{name}\s*[:=]", text, re.MULTILINE), (
            f"{path} defines no {name}"
        )
