"""Environments from locks: made once, brought up to a new lock, repaired, hash-checked; the search for a Python."""

import importlib.util
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tests.host.conftest import pins
from vlalab.description import manifests
from vlalab.environments import pythons, venvs
from vlalab.host.console import LabError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(tmp_path) -> Path:
    """The folder of an environment with one small package."""
    if not any(pythons.find(version) for version in manifests.PYTHONS):
        pytest.skip("no Python 3.10 or 3.11 at hand")
    directory = tmp_path / "images" / "tiny"
    directory.mkdir(parents=True)
    (directory / "requirements.lock").write_text(pins("iniconfig"))
    (directory / "manifest.yaml").write_text("{about: tests, venv_gb: 0.1, image_gb: 1}")
    return directory


def ensure(tiny: Path) -> venvs.LocalEnvironment:
    return venvs.ensure("tiny", root=tiny.parents[1])


def imports(env: venvs.LocalEnvironment, name: str) -> bool:
    return subprocess.run([env.python, "-I", "-c", f"import {name}"], capture_output=True).returncode == 0


def test_made_once_and_then_left_alone(tiny):
    env = ensure(tiny)
    assert env.is_ready() and imports(env, "iniconfig")
    assert not imports(env, "pip")  # nothing but the lock
    before = (env.venv / ".stamp").stat().st_mtime_ns
    assert ensure(tiny) == env
    assert (env.venv / ".stamp").stat().st_mtime_ns == before


def test_follows_its_lock(tiny):
    ensure(tiny)
    (tiny / "requirements.lock").write_text(pins("iniconfig", "idna"))
    assert not venvs.get("tiny", tiny.parents[1]).is_ready()
    assert imports(ensure(tiny), "idna")
    (tiny / "requirements.lock").write_text(pins("idna"))
    assert not imports(ensure(tiny), "iniconfig")


def test_an_interrupted_set_up_is_done_again(tiny):
    env = ensure(tiny)
    (env.venv / ".stamp").unlink()
    (env.venv / "half").write_text("left by the interrupted one")
    env = ensure(tiny)
    assert env.is_ready() and imports(env, "iniconfig")
    assert not (env.venv / "half").exists()


def test_a_package_that_does_not_match_its_hash_is_refused(tiny):
    wrong = re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, pins("idna"))
    (tiny / "requirements.lock").write_text(wrong)
    with pytest.raises(LabError, match="idna"):
        ensure(tiny)
    assert not venvs.get("tiny", tiny.parents[1]).is_ready()


def test_the_finishing_step_runs_inside_and_counts(tiny):
    (tiny / "finish.py").write_text("import iniconfig, pathlib, sys; pathlib.Path(sys.prefix, 'finished').touch()")
    assert (ensure(tiny).venv / "finished").exists()
    (tiny / "finish.py").write_text("raise SystemExit('no macros here')")
    with pytest.raises(LabError, match="no macros here"):
        ensure(tiny)
    assert not venvs.get("tiny", tiny.parents[1]).is_ready()


def test_a_second_lock_goes_into_a_directory_next_to_and_is_not_imported(tiny):
    ensure(tiny)
    (tiny / "beside.lock").write_text(pins("idna"))
    assert not venvs.get("tiny", tiny.parents[1]).is_ready()
    env = ensure(tiny)
    assert (env.venv / "beside" / "idna" / "__init__.py").is_file() and not imports(env, "idna")
    (tiny / "beside.lock").write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, pins("idna")))
    with pytest.raises(LabError, match="idna"):
        ensure(tiny)
    assert not venvs.get("tiny", tiny.parents[1]).is_ready()


def test_two_calls_at_once_make_it_once(tiny, monkeypatch):
    made = []
    real = venvs._make
    monkeypatch.setattr(venvs, "_make", lambda env: (made.append(env), real(env)))
    threads = [threading.Thread(target=ensure, args=(tiny,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert venvs.get("tiny", tiny.parents[1]).is_ready()


def test_an_unknown_environment_lists_the_known_ones():
    with pytest.raises(LabError, match="libero"):
        venvs.get("liberoo")


def test_a_full_disk_is_reported_before_anything_is_written(tiny):
    (tiny / "manifest.yaml").write_text("{about: tests, venv_gb: 1000000000, image_gb: 1}")
    with pytest.raises(LabError, match="GB free"):
        ensure(tiny)
    assert not (tiny / ".venv").exists()


# --- Pythons ------------------------------------------------------------------------------------------------


def test_the_python_of_an_environment_is_printed_with_the_reason(tiny, tmp_path, monkeypatch, capsys):
    """3.10 in a closed home serves a clone that is as closed; a clone that others read gets a Python that they run."""
    closed, open_to_all = str(tmp_path / "python3.10"), "/bin/sh"
    Path(closed).touch(mode=0o755)
    installed = {"3.10": closed, "3.11": open_to_all}
    monkeypatch.setattr(pythons, "find", lambda version, _: installed.get(version))
    monkeypatch.setattr(pythons, "runs_as", lambda path, version: path == installed.get(version))
    alone = venvs.LocalEnvironment("tiny", tiny)
    assert venvs._interpreter(alone) == closed
    assert capsys.readouterr().err == f"lab: environment 'tiny' uses {closed}\n"

    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        shared = venvs.LocalEnvironment("tiny", Path(directory, "tiny"))
        shutil.copytree(tiny, shared.directory)
        assert venvs._interpreter(shared) == open_to_all
        printed = capsys.readouterr().err
        assert f"uses {open_to_all}" in printed


# --- images/libero/finish.py --------------------------------------------------------------------------------


@pytest.fixture
def robosuite(tmp_path, monkeypatch):
    """A package of robosuite's shape, whose import would warn."""
    directory = tmp_path / "robosuite"
    directory.mkdir()
    (directory / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return directory


def finish():
    spec = importlib.util.spec_from_file_location("finish", ROOT / "images" / "libero" / "finish.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_robosuites_settings_are_its_own_with_file_logging_off(robosuite):
    (robosuite / "macros.py").write_text('A = 1\nFILE_LOGGING_LEVEL = "DEBUG"\nB = 2\n')
    step = finish()
    assert step.package_directory("robosuite") == robosuite
    assert step.write_macros(robosuite).read_text() == "A = 1\nFILE_LOGGING_LEVEL = None\nB = 2\n"


def test_meshes_that_no_task_loads_are_removed_and_the_rest_stays(tmp_path):
    step = finish()
    for name in (*step.UNUSED, "robots/panda/meshes"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "arm.stl").write_bytes(b"12345")
    assert step.remove_unused(tmp_path) == 5 * len(step.UNUSED)
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.stl")] == ["robots/panda/meshes/arm.stl"]
    assert step.remove_unused(tmp_path) == 0
