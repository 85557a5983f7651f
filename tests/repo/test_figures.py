"""The lessons' figures are what their code draws, and a page shows each."""

import importlib.util
from xml.etree import ElementTree

import pytest

from vlalab.host import paths

DOCS = paths.ROOT / "docs"
spec = importlib.util.spec_from_file_location("figures", DOCS / "img" / "figures.py")
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_what_its_code_draws_and_is_shown(name):
    text = (DOCS / "img" / name).read_text(encoding="utf-8")
    assert text == figures.FIGURES[name](), "run: python3 docs/img/figures.py"
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for pages in (DOCS, DOCS / "ko"):
        assert any(f"img/{name})" in page.read_text(encoding="utf-8") for page in pages.glob("*.md"))
