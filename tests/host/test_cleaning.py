"""`clean`: what it finds, that it asks, and that it takes nothing else."""

import io
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vlalab.engine import cleaning
from vlalab.host import paths, state
from vlalab.host.console import LabError

USAGE = {
    "Images": [
        {"ID": "sha256:" + "a" * 64, "UniqueSize": "1.5GB"},
        {"ID": "sha256:" + "b" * 64, "UniqueSize": "200MB"},
        {"ID": "sha256:" + "c" * 64, "UniqueSize": "12.5kB"},
    ],
    "BuildCache": [
        {"Size": "2GB", "InUse": "false", "Shared": "false"},
        {"Size": "9GB", "InUse": "false", "Shared": "true"},
        {"Size": "5GB", "InUse": "true", "Shared": "false"},
    ],
}


def row(letter: str, repository: str, tag: str) -> dict:
    return {"ID": "sha256:" + letter * 64, "Repository": repository, "Tag": tag}


@pytest.fixture
def engine(speaking, tmp_path, monkeypatch):
    """An engine with one image in use, an old tag, and one without a name; it writes down what it is told to remove."""
    monkeypatch.delenv("VLALAB_TAG", raising=False)
    monkeypatch.setenv("STATE", str(tmp_path))
    rows = [row("a", "vla-lab/libero", "dev"), row("b", "vla-lab/libero", "2025"), row("c", "<none>", "<none>")]
    speaking(f"""case "$1 $2" in
version*) echo '{{"Server": {{"Version": "26.1"}}}}' ;;
"system df") echo '{json.dumps(USAGE)}' ;;
"image ls") printf '%s\\n' '{json.dumps(rows[0])}' '{json.dumps(rows[1])}' '{json.dumps(rows[2])}' ;;
*) echo "$@" >> "$STATE/told" ;;
esac""")
    return tmp_path / "told"


def told(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("all_users", [False, True])
def test_others_images_are_left_alone_unless_told(speaking, all_users, monkeypatch):
    """The engine filters by label, so what it is asked for decides; tests/docker sees that it does."""
    monkeypatch.delenv("VLALAB_TAG", raising=False)
    mine, theirs = row("b", "vla-lab/libero", "2025"), row("c", "<none>", "<none>")
    both = f"printf '%s\\n' '{json.dumps(mine)}' '{json.dumps(theirs)}'"
    speaking(f"""case "$*" in
version*) echo '{{"Server": {{"Version": "26.1"}}}}' ;;
*label=vla-lab.built-by={state.owner()}*) echo '{json.dumps(mine)}' ;;
*label=vla-lab.env*) {both} ;;
*) exit 1 ;;
esac""")
    found = [name for _, name in cleaning.old_images(all_users)]
    assert found == ["vla-lab/libero:2025", *(["sha256:" + "c" * 64] if all_users else [])]


def test_everything_is_shown_largest_first_with_what_its_loss_costs(engine, capsys):
    cleaning.clean(dry_run=True)
    first, second = capsys.readouterr().out.splitlines()
    assert first.strip().startswith("2.0 GB  the build cache") and "downloads everything again" in first
    assert second.strip().startswith("200 MB  2 old images (vla-lab/libero:2025)") and "tag dev stay" in second
    assert told(engine) == []


def test_without_anyone_to_ask_nothing_is_removed(engine, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(LabError, match="--yes"):
        cleaning.clean()
    assert told(engine) == []


def test_yes_removes_old_images_and_the_cache_and_no_image_in_use(engine):
    assert cleaning.clean(yes=True) == 2
    assert told(engine) == ["buildx prune --all --force", "image rm vla-lab/libero:2025", f"image rm sha256:{'c' * 64}"]


@pytest.mark.parametrize(("answers", "removed"), [("y\nn\n", 1), ("n\nyes\n", 1), ("\n\n", 0), ("", 0), ("Y\ny\n", 2)])
def test_each_kind_is_requested(engine, monkeypatch, answers, removed):
    terminal = io.StringIO(answers)
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert cleaning.clean() == removed
    assert bool(told(engine)) == bool(removed)


def test_an_image_that_a_container_uses_stays_and_is_reported(speaking, capsys):
    speaking("""[ "$1" = version ] && echo '{"Server": {"Version": "26.1"}}' || { echo "in use" >&2; exit 1; }""")
    cleaning._remove_images(["vla-lab/ui:old"])
    assert "vla-lab/ui:old stays: in use" in capsys.readouterr().err


# --- local environments -------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A root with one environment beside the admins', and no docker command."""
    venv = tmp_path / "images" / "small" / ".venv" / "bin"
    venv.mkdir(parents=True)
    (tmp_path / "admin" / ".venv").mkdir(parents=True)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "hub").mkdir()
    for directory, name in itertools.product(
        ("images/small", "admin", "cluster", "hub"), ("requirements.in", "requirements.lock")
    ):
        (tmp_path / directory / name).write_text("")
    (tmp_path / "shared" / "volume" / "runs").mkdir(parents=True)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_environments_go_only_when_requested_and_the_volume_never(tree, capsys):
    assert cleaning.clean(yes=True) == 0
    assert (tree / "images/small/.venv").exists()
    assert cleaning.clean(venvs=True, yes=True) == 2
    assert not (tree / "images/small/.venv").exists() and not (tree / "admin/.venv").exists()
    assert (tree / "images/small/requirements.lock").exists() and (tree / "shared/volume/runs").exists()
    assert "./lab env small installs it again" in capsys.readouterr().out


def test_an_environment_that_a_program_runs_from_stays(tree, capsys):
    python = tree / "images/small/.venv/bin/python"
    python.symlink_to(sys.executable)
    program = [str(python), "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"up\n"  # /proc shows no command line while a program is being loaded
            assert cleaning.clean(venvs=True, yes=True) == 1, "the admins' goes"
        finally:
            process.communicate(b"\n")
    assert python.is_symlink()
    assert "'small' stays: programs run from it" in capsys.readouterr().err
