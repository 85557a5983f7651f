"""The steps of an image's build that are Python: what they accept, what they refuse, and what they leave behind."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.ports import refusing
from vlalab.engine import images
from vlalab.host.paths import ROOT

DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text().replace("\\\n", " ")
NAMES = images.buildable()


def load(path: str, name: str):
    """Returns a build step as a module; it is no package, since the build mounts single files."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "images" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def flash(monkeypatch, tmp_path):
    step = load("common/flash/install.py", "flash_step")
    monkeypatch.setattr(step, "DIRECTORY", tmp_path)
    return step


PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
FITTING = f"flash_attn-2.5.5+cu122torch2.2cxx11abiFALSE-{PYTHON}-{PYTHON}-linux_x86_64.whl"


def test_a_directorys_wheel_is_taken(flash, tmp_path):
    (tmp_path / FITTING).write_bytes(b"wheel")
    assert flash.wheel("") == (tmp_path / FITTING, "folder")


def test_a_wheel_must_have_the_sha256_that_was_given(flash, tmp_path, capsys):
    wheel = tmp_path / FITTING
    wheel.write_bytes(b"wheel")
    found = flash.check_hash(wheel, "")
    assert found in capsys.readouterr().out  # unchecked: the build says so, and what to give next time
    assert flash.check_hash(wheel, found.upper()) == found
    with pytest.raises(ValueError, match=f"{found}.*not installed"):
        flash.check_hash(wheel, "0" * 64)


def test_a_wheel_that_cannot_be_had_names_the_ways_out(flash):
    with (
        refusing() as nobody,
        pytest.raises(OSError, match=r"FLASH_ATTN_URL.*flash-attn-wheel=DIRECTORY.*--flash-attn none"),
    ):
        flash.wheel(f"{nobody}/flash_attn.whl")


def test_the_image_states_the_locks_own_hash(tmp_path, monkeypatch):
    record = load("common/record.py", "record_step")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    directory = tmp_path / "images" / "ui"
    directory.mkdir(parents=True)
    (directory / "requirements.lock").write_text("one==1\n")
    monkeypatch.setenv("VLALAB_VARIANT", "")
    monkeypatch.setattr(record.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, "a\t1\n"))
    monkeypatch.setenv("LOCK_HASH", "")
    monkeypatch.setenv("LOCK_HASH", record.record("ui")["lock"])
    assert record.record("ui")["system"] == {"a": "1"}
    monkeypatch.setenv("LOCK_HASH", "another")
    with pytest.raises(ValueError, match="LOCK_HASH is another"):
        record.record("ui")


@pytest.mark.parametrize("name", NAMES)
def test_what_the_dockerfile_mounts_or_copies_exists_and_is_sent(name):
    text = DOCKERFILE.replace("${ENVIRONMENT}", name).replace("/${VARIANT}", "")
    mounted = re.findall(r"--mount=type=bind,source=([^,\s]+)", text)
    copied = [word for line in re.findall(r"(?m)^COPY (?!--from)(.+)", text) for word in line.split()[:-1]]
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert mounted and copied
    for path in (*mounted, *copied):
        optional = path.endswith("]") or path == f"images/{name}/flash-attn.lock"  # for images with flash-attn
        assert optional or (ROOT / path).exists(), path
        assert any(path == allowed or path.startswith(f"{allowed}/") for allowed in sent), path
    assert ("FLASH_ATTN" in images.arguments(name)) == (ROOT / "images" / name / "flash-attn.lock").exists()


def test_layers_with_equal_pins_are_one(tmp_path):
    """No step before the environment's own knows its name: BuildKit makes a layer once for equal files."""
    shared = DOCKERFILE[DOCKERFILE.index("FROM system AS nvidia") : DOCKERFILE.index("FROM torch AS dependencies")]
    assert "ENVIRONMENT" not in shared
    layers = load("common/python/layers.py", "layers_step")
    for name in ("gr00t", "ws_mdl"):
        layers.write(ROOT / "images" / name / "requirements.lock", tmp_path / name)
    ours, theirs = ((tmp_path / name / "nvidia" / "requirements.lock").read_bytes() for name in ("gr00t", "ws_mdl"))
    assert ours == theirs and len(re.findall(rb"(?m)^nvidia-", ours)) == 12


LOCK = """\
# fingerprint: of something
numpy==1.26.4 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via torch
nvidia-nccl-cu12==2.21.5 ; sys_platform == 'linux' \\
    --hash=sha256:cc
    # via
    #   torch
torch==2.6.0 \\
    --hash=sha256:dd \\
    --hash=sha256:ee
torchvision==0.21.0 \\
    --hash=sha256:ff
"""


def test_a_lock_is_cut_with_markers_and_hashes_and_without_comments():
    assert load("common/python/layers.py", "layers_step").cut(LOCK) == {
        "nvidia": "nvidia-nccl-cu12==2.21.5 ; sys_platform == 'linux' \\\n    --hash=sha256:cc\n",
        "torch": "torch==2.6.0 \\\n    --hash=sha256:dd \\\n    --hash=sha256:ee\n",
    }


def test_a_layer_compiles_what_is_new_and_touches_nothing_below_it(tmp_path):
    def state(path):
        return path.stat().st_ino, path.stat().st_mtime_ns, path.stat().st_ctime_ns

    def compile_layer() -> set[float]:
        subprocess.run(["sh", ROOT / "images/common/python/compile.sh", tmp_path], check=True)
        return {path.lstat().st_mtime for path in (tmp_path, *tmp_path.rglob("*"))}

    site = tmp_path / "lib" / "python3.10" / "site-packages"
    for name in ("old/__init__.py", "old/tests/__init__.py", "old/deep/tests/__init__.py", "old/tests/data/a.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("a = 1\n")
    (site / "old" / "template.py").write_text("{{ name }")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    dates = compile_layer()
    assert len(dates) == 1 and not list(site.rglob("tests"))
    below = {path: state(path) for path in site.rglob("*") if path.is_file()}
    assert len(below) == 3, "two modules, and the bytecode of the one that is Python"
    (site / "new.py").write_text("b = 2\n")
    assert compile_layer() == dates
    assert {path: state(path) for path in below} == below
    assert len(list(site.rglob("*.pyc"))) == 2


def test_flash_attn_is_one_version_in_lock_and_wheel():
    for env in ("openvla", "gr00t"):
        directory = ROOT / "images" / env
        pinned = re.search(r"(?m)^flash-attn==(\S+)", (directory / "flash-attn.lock").read_text())[1]
        url = images.arguments(env)["FLASH_ATTN_URL"]
        torch = re.search(r"(?m)^torch==(\d+\.\d+)", (directory / "requirements.lock").read_text())[1]
        assert f"/v{pinned}/flash_attn-{pinned}%2B" in url
        assert f"torch{torch}cxx11abiFALSE-cp310" in url


def test_selftests_read_every_pin_of_their_lock(tmp_path):
    code = (
        "import json, sys; sys.path.insert(0, '.'); from images.common.selftest import pins; "
        "print(json.dumps({e: len(pins(e)) for e in sys.argv[1:]}))"
    )
    done = subprocess.run([sys.executable, "-c", code, *NAMES], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, count in json.loads(done.stdout).items():
        lines = re.findall(r"(?m)^[A-Za-z0-9][^\s\\]*==", (ROOT / "images" / name / "requirements.lock").read_text())
        assert 0.8 * len(lines) < count <= len(lines)
