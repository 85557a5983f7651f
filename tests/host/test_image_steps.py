"""The steps of an image's build that are Python: what they accept, what they refuse, and what they leave behind."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.ports import refusing
from vlalab.paths import ROOT

DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))


def load(path: str, name: str):
    """Returns a build step as a module; it is no package, since the build mounts single files."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "images" / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(tmp_path, monkeypatch):
    step = load("gr00t/place.py", "place_step")
    monkeypatch.setattr(step, "SOURCE", tmp_path / "source")
    monkeypatch.setattr(step, "TARGET", tmp_path / "target")
    (tmp_path / "source" / "gr00t" / "model").mkdir(parents=True)
    (tmp_path / "source" / "gr00t" / "__init__.py").write_text("")
    (tmp_path / "source" / "gr00t" / "model" / "policy.py").write_text("answer = 42\n")
    return step


@pytest.fixture
def flash(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "images" / "common" / "python"))
    step = load("common/flash/install.py", "flash_step")
    monkeypatch.setattr(step, "_torch", lambda: {"torch": "2.2", "cxx11abi": "FALSE"})
    monkeypatch.setattr(step, "FOLDER", tmp_path)
    return step


PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
FITTING = f"flash_attn-2.5.5+cu122torch2.2cxx11abiFALSE-{PYTHON}-{PYTHON}-linux_x86_64.whl"


def test_a_wheel_for_this_python_torch_and_abi_is_taken(flash, tmp_path):
    (tmp_path / FITTING).write_bytes(b"wheel")
    path, origin = flash.wheel("")
    assert (flash.check_name(path), origin) == ("2.5.5", "folder")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (FITTING.replace("torch2.2", "torch2.3"), "torch 2.3"),
        (FITTING.replace("FALSE", "TRUE"), "cxx11abi TRUE"),
        (FITTING.replace(PYTHON, "cp27"), "cp27"),
        ("torch-2.2.0-cp310-cp310-linux_x86_64.whl", "no wheel of flash-attn"),
    ],
)
def test_a_wheel_for_something_else_is_refused_by_name(flash, tmp_path, name, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        flash.check_name(tmp_path / name)


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
        pytest.raises(OSError, match=r"FLASH_ATTN_URL.*flash-attn-wheel=FOLDER.*--flash-attn none"),
    ):
        flash.wheel(f"{nobody}/flash_attn.whl")


def test_two_wheels_in_a_folder_are_one_too_many(flash, tmp_path):
    for name in ("a.whl", "b.whl"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match="2 wheels"):
        flash.wheel("")


def test_the_digest_of_a_package_is_made_of_gits_own_hashes(place, tmp_path):
    package = tmp_path / "source" / "gr00t"
    file = package / "model" / "policy.py"
    asked = subprocess.run(["git", "hash-object", str(file)], capture_output=True, text=True, check=True)
    assert place.blob_hash(file) == asked.stdout.strip()
    before = place.digest(package)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "x.pyc").write_bytes(b"bytecode")
    assert place.digest(package) == before
    file.write_text("answer = 43\n")
    assert place.digest(package) != before


def test_a_package_of_the_commit_is_placed_and_another_one_refused(place, tmp_path):
    expected = place.digest(tmp_path / "source" / "gr00t")
    with pytest.raises(ValueError, match="GR00T_DIGEST= "):
        place.place("commit", "0" * 64)
    assert place.place("commit", expected) == "commit checked"
    assert (tmp_path / "target" / "gr00t" / "model" / "policy.py").read_text() == "answer = 42\n"


def test_an_unchecked_package_is_noted_as_such(place):
    assert re.fullmatch(r"mine unchecked, digest [0-9a-f]{64}", place.place("mine", ""))


def test_an_empty_package_is_an_image_without_it_and_a_missing_one_an_error(place, tmp_path):
    for file in (tmp_path / "source" / "gr00t").rglob("*.py"):
        file.unlink()
    (tmp_path / "source" / "gr00t" / "model").rmdir()
    assert place.place("commit", "0" * 64) == "none"
    assert not any((tmp_path / "target").iterdir())
    (tmp_path / "source" / "gr00t").rmdir()
    with pytest.raises(ValueError, match="no folder gr00t/"):
        place.place("commit", "")


def test_the_image_states_the_locks_own_hash(tmp_path, monkeypatch):
    record = load("common/record.py", "record_step")
    monkeypatch.setattr(record, "ROOT", tmp_path)
    folder = tmp_path / "images" / "ui"
    folder.mkdir(parents=True)
    (folder / "requirements.lock").write_text("one==1\n")
    monkeypatch.setenv("LOCK_HASH", "")
    found = record.lock_hash("ui")
    monkeypatch.setenv("LOCK_HASH", found)
    assert record.lock_hash("ui") == found
    monkeypatch.setenv("LOCK_HASH", "another")
    with pytest.raises(ValueError, match="LOCK_HASH is another"):
        record.lock_hash("ui")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_a_dockerfile_mounts_or_copies_is_there_and_is_sent(dockerfile):
    text = dockerfile.read_text().replace("\\\n", " ")
    mounted = re.findall(r"--mount=type=bind,source=([^,\s]+)", text)
    copied = [word for line in re.findall(r"(?m)^COPY (?!--from)(.+)", text) for word in line.split()[:-1]]
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert mounted and copied
    for name in (*mounted, *copied):
        assert (ROOT / name).exists(), name
        assert any(name == allowed or name.startswith(f"{allowed}/") for allowed in sent), name


def test_all_dockerfiles_share_their_first_stages():
    """Only the distribution's packages, the lock and the finishing step differ until the environment is made."""

    def common(path):
        text = path.read_text()
        steps = text[text.index("FROM ${BASE}") : text.index("ENV PATH")].replace(f"images/{path.parent.name}/", "")
        lines = [re.sub(r"(system\.sh) .*", r"\1", line.strip()) for line in steps.splitlines() if "/build/" in line]
        return [line for line in lines if "finish.py" not in line]

    first, *others = [common(path) for path in DOCKERFILES]
    assert len(first) > 10
    assert others and all(other == first for other in others)


def test_flash_attn_is_one_version_in_lock_and_wheel():
    for env in ("openvla", "gr00t"):
        folder = ROOT / "images" / env
        pinned = re.search(r"(?m)^flash-attn==(\S+)", (folder / "flash-attn.lock").read_text())[1]
        url = re.search(r"FLASH_ATTN_URL=(\S+)", (folder / "Dockerfile").read_text())[1]
        torch = re.search(r"(?m)^torch==(\d+\.\d+)", (folder / "requirements.lock").read_text())[1]
        assert f"/v{pinned}/flash_attn-{pinned}%2B" in url
        assert f"torch{torch}cxx11abiFALSE-cp310" in url


def test_selftests_read_every_pin_of_their_lock(tmp_path):
    code = (
        "import json, sys; sys.path.insert(0, '.'); from images.common.selftest import pins; "
        "print(json.dumps({e: len(pins(e)) for e in sys.argv[1:]}))"
    )
    names = [path.parent.name for path in DOCKERFILES]
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    for name, count in json.loads(done.stdout).items():
        lines = re.findall(r"(?m)^[A-Za-z0-9][^\s\\]*==", (ROOT / "images" / name / "requirements.lock").read_text())
        assert 0.8 * len(lines) < count <= len(lines)
