"""Steps of an image's build that need this environment's Python: the same bytecode always, and official assets."""

import importlib.util
import marshal
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.libero.assets import content, official

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "images" / "common" / "python"
pytestmark = pytest.mark.skipif(not STEPS.exists(), reason="an image does not hold the steps of its own build")
ODD = (
    "def f(x, *, y={1: 2}):\n"
    "    return x in {None, 'a', 'b', 3.5, -0.0, 0.0, 2**70, -(2**40), 1j, (1, 'a'), b'a', True, ...}\n"
    "name = 'é\\ud800' + 'a' * 300\n"
)


def load(path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location(f"step_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_310 = pytest.mark.skipif(sys.version_info[:2] != (3, 10), reason="images run Python 3.10; this is another one")


@needs_310
def test_bytecode_is_the_code_that_python_compiles(monkeypatch):
    bytecode = load(STEPS / "bytecode.py", monkeypatch)
    sources = [path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))[:80]]
    for source in (ODD.encode(), *sources):
        expected = compile(source, "module.py", "exec", dont_inherit=True)
        written = bytecode.bytecode(source, "module.py")
        assert written[:4] == importlib.util.MAGIC_NUMBER
        assert marshal.loads(written[16:]) == expected
    assert bytecode.bytecode(b"{{ a template }", "template.py") is None


@needs_310
def test_bytecode_depends_on_nothing_but_its_source():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from bytecode import bytecode; "
        "sys.stdout.buffer.write(bytecode(sys.stdin.buffer.read(), 'm.py'))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", f"import {extra}; {code}", str(STEPS)], input=ODD.encode(), capture_output=True,
            check=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2", "random")
        for extra in ("sys", "json")
    }  # fmt: skip
    assert len(seen) == 1


@needs_310
def test_a_settled_folder_runs_from_its_bytecode_and_has_one_date(tmp_path):
    package = tmp_path / "lib" / "python3.10" / "site-packages" / "package"
    (package / "tests").mkdir(parents=True)
    for name in ("__init__.py", "module.py", "tests/__init__.py"):
        (package / name).write_text("answer = 42\n")
    subprocess.run([sys.executable, STEPS / "settle.py", tmp_path], check=True, capture_output=True)
    assert not (package / "tests").exists()
    assert len({path.stat().st_mtime for path in (tmp_path, *tmp_path.rglob("*"))}) == 1
    (package / "module.py").write_text("answer = 43\n")  # the bytecode is not compared with it
    done = subprocess.run(
        [sys.executable, "-c", "from package.module import answer; print(answer)"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
    )  # fmt: skip
    assert done.stdout == "42\n"


def test_assets_are_official_when_every_file_is_the_commits(monkeypatch, tmp_path, capsys):
    step = load(ROOT / "images" / "libero" / "assets.py", monkeypatch)
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "scenes").mkdir(parents=True)
    (source / "scenes" / "room.xml").write_text("<mujoco/>")
    entry = content.Entry("scenes/room.xml", content.git_sha1(source / "scenes" / "room.xml"), 9)
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
    assert capsys.readouterr().out.startswith("assets: a folder; 1 files are not those of")
