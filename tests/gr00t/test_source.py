"""A checkout of Isaac-GR00T is compared with the pinned commit by the digest of its files."""

import re

import pytest

from tests.gr00t.upstream import source


@pytest.fixture
def package(tmp_path):
    """A directory with two files."""
    (tmp_path / "gr00t" / "model").mkdir(parents=True)
    (tmp_path / "gr00t" / "__init__.py").write_text("# init")
    (tmp_path / "gr00t" / "model" / "policy.py").write_text("answer = 42")
    return tmp_path / "gr00t"


def test_a_changed_source_is_refused(package, monkeypatch):
    assert re.search("has digest [0-9a-f]{64}; commit 4af2b622892f", source.changed(package))
    monkeypatch.setattr(source, "DIGEST", source.digest(package))
    assert source.changed(package) is None
    (package / "model" / "policy.py").write_text("answer = 43")
    assert "check that commit out without changes" in source.changed(package)


def test_bytecode_is_none_of_the_source(package):
    before = source.digest(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert source.digest(package) == before
