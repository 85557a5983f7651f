"""The package of Isaac-GR00T is held against the pinned commit, by the same digest as the image's build has."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from services.gr00t.upstream import package as upstream
from services.gr00t.upstream import source

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that looks like upstream's package, found by its variable."""
    folder = tmp_path / "gr00t"
    (folder / "model" / "backbone" / "eagle2_hg_model").mkdir(parents=True)
    for name in ("__init__.py", "model/__init__.py", "model/backbone/__init__.py"):
        (folder / name).write_text(f"# {name}")
    monkeypatch.delenv(source.NAME_VARIABLE, raising=False)
    monkeypatch.setenv(upstream.SOURCE_VARIABLE, str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    if Path(importlib.util.find_spec("gr00t").origin) != folder / "__init__.py":
        pytest.skip("the real package is here and comes first")
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "gr00t"]:
        del sys.modules[name]  # who asks next whether the package is there must not find this one


def test_a_changed_source_is_refused_unless_it_has_a_name(package, monkeypatch):
    assert re.search("has digest [0-9a-f]{64}; commit 4af2b622892f", upstream.missing())
    monkeypatch.setattr(source, "DIGEST", source.digest(package))
    assert upstream.missing() is None and upstream.version() == source.COMMIT
    (package / "model" / "policy.py").write_text("changed = True")
    assert "check that commit out without changes" in upstream.missing()
    monkeypatch.setenv(source.NAME_VARIABLE, "mine")
    assert upstream.missing() is None and upstream.version() == "mine"


def test_bytecode_is_none_of_the_source(package):
    before = source.digest(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert source.digest(package) == before


@pytest.mark.skipif(not (ROOT / "images" / "bake.json").is_file(), reason="no image holds its own description")
def test_the_image_and_the_local_runtime_pin_the_same(package):
    given = json.loads((ROOT / "images" / "bake.json").read_text())["target"]["gr00t"]["args"]
    assert (given["GR00T_COMMIT"], given["GR00T_DIGEST"]) == (source.COMMIT, source.DIGEST)
    spec = importlib.util.spec_from_file_location("place", ROOT / "images" / "gr00t" / "place.py")
    place = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(place)
    assert place.digest(package) == source.digest(package)
