"""Student-facing pages in two languages: no page's twin is older than the page itself.

The first line of a page in docs/ko names the English page and the digest of the text that it was translated from.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from vlalab.host import paths

ROOT, KOREAN = paths.ROOT, paths.ROOT / "docs" / "ko"
STUDENTS = (
    "README.md",
    "course.md",
    "diffusion.md",
    "errata.md",
    "handout.md",
    "minivla.md",
    "openvla.md",
    "practice.md",
    "transformer.md",
)
BOTH_IN_ONE = ("exercises.md", "notebooks.md")  # English and Korean side by side
PAGES = sorted(page.name for page in KOREAN.glob("*.md"))


def source(name: str) -> Path:
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def text_of(name: str) -> str:
    """Returns the English text that is translated; of the README, what a first hour needs."""
    text = source(name).read_text(encoding="utf-8")
    return text.split("\n## Tasks")[0] if name == "README.md" else text


def first_line(name: str) -> str:
    """Returns what the first line of a translation has to be."""
    digest = hashlib.sha256(text_of(name).encode()).hexdigest()[:16]
    return f"<!-- {source(name).relative_to(ROOT)} {digest} -->"


def test_every_page_for_students_has_a_twin():
    assert set(STUDENTS) <= set(PAGES)
    assert all(re.search("[가-힣]", (ROOT / "docs" / name).read_text(encoding="utf-8")) for name in BOTH_IN_ONE)


@pytest.mark.parametrize("name", PAGES)
def test_no_twin_is_older_than_its_page(name):
    text = (KOREAN / name).read_text(encoding="utf-8")
    assert text.splitlines()[0] == first_line(name), (
        f"docs/ko/{name} was translated from another text of {source(name).relative_to(ROOT)}; bring it up to date, "
        f"and then let its first line be: {first_line(name)}"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_twin_has_the_same_parts(name):
    """As many headings, rows, pictures, and the same blocks of code, but for what they say in words."""
    ours, theirs = (KOREAN / name).read_text(encoding="utf-8"), text_of(name)
    assert shape(ours) == shape(theirs)
    assert set(re.findall(r"\./lab [a-z]+", ours)) <= set(re.findall(r"\./lab [a-z]+", theirs))


def shape(text: str) -> dict[str, int]:
    patterns = {"headings": r"(?m)^#+ ", "rows": r"(?m)^\|", "pictures": r"!\[", "blocks": "```"}
    return {name: len(re.findall(pattern, text)) for name, pattern in patterns.items()}


@pytest.mark.parametrize("name", PAGES)
def test_its_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)#]+)", (KOREAN / name).read_text(encoding="utf-8")):
        assert target.startswith(("http://", "https://")) or (KOREAN / target).exists(), f"{name} links to {target}"
