"""Documentation stays short: words per page, words per sentence, English text only."""

import re
from pathlib import Path

import pytest

from vlalab.host import paths

PAGES = [paths.ROOT / "README.md", *sorted((paths.ROOT / "docs").glob("*.md"))]
MAX_WORDS, MAX_WORDS_OF = 1500, {"architecture.md": 2500}
MAX_SENTENCE, MAX_AVERAGE = 45, 20  # words
MAX_ENGLISH_WORDS = 36_500  # of all pages: with a Latin letter and without Hangul; code blocks and tables included


def sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence in a page's paragraphs and lists; no code, tables, headings or Korean."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        prose = " ".join(line for line in block.splitlines() if not line.lstrip().startswith(("|", "#")))
        if not re.search("[가-힣]", prose):
            prose = re.sub(r"`[^`]*`", "code", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose))
            found += [words for one in re.split(r"(?<=[.!?])\s+", prose) if (words := one.split())]
    return found


def test_sentences_are_counted_as_a_reader_counts_them():
    page = "# A title\n\nOne `a b`\n[two three](x y)? Four.\n\n여섯 일곱.\n- Eight.\n\n| no | one |\n```\nno\n```\n"
    assert sentences(page) == [["One", "code", "two", "three?"], ["Four."], ["-", "Eight."]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_and_its_sentences_are_short(page: Path):
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= MAX_WORDS_OF.get(page.name, MAX_WORDS)
    lengths = [len(words) for words in sentences(text)] or [0]
    assert max(lengths) <= MAX_SENTENCE, " ".join(max(sentences(text), key=len))
    assert sum(lengths) / len(lengths) <= MAX_AVERAGE


def test_all_pages_together_are_short():
    words = [word for page in PAGES for word in page.read_text(encoding="utf-8").split()]
    english = [word for word in words if re.search("[A-Za-z]", word) and not re.search("[가-힣]", word)]
    assert len(english) <= MAX_ENGLISH_WORDS
