"""The step of an image's build that needs this environment's Python: official assets."""

import importlib.util
from pathlib import Path

import pytest

from services.libero.assets import content, official

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "images" / "common" / "python"
pytestmark = pytest.mark.skipif(not STEPS.exists(), reason="an image does not hold the steps of its own build")


def load(path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"step_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_assets_are_official_when_every_file_is_the_commits(monkeypatch, tmp_path, capsys):
    step = load(ROOT / "images" / "libero" / "assets.py", monkeypatch)
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "scenes").mkdir(parents=True)
    (source / "scenes" / "room.xml").write_text("<mujoco/>")
    entry = content.AssetFile("scenes/room.xml", content.git_sha1(b"<mujoco/>"), 9)
    monkeypatch.setattr(official, "manifest", lambda: (entry,))
    monkeypatch.setattr(step, "SOURCE", source)
    monkeypatch.setattr(step, "BAKED", target)
    step.main()
    assert official.problems(target) == []
    assert capsys.readouterr().out == "assets: the official files\n"
    (source / "scenes" / "room.xml").write_text("<mujoco></mujoco>")
    monkeypatch.setattr(step, "BAKED", tmp_path / "other")
    step.main()
    assert official.problems(tmp_path / "other") == ["scenes/room.xml"]
    assert capsys.readouterr().out.startswith("assets: a directory; 1 files are not those of")
