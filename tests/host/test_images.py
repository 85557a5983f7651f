"""Images: what the engine's records mean, what a build is given, and what stops it before it starts."""

import json
import re
import shutil
import subprocess
from datetime import datetime, timezone
from itertools import pairwise

import pytest

from tests.lab import run_lab
from vlalab.description import manifests
from vlalab.engine import building, images
from vlalab.engine.building import BuildOptions
from vlalab.environments import venvs
from vlalab.host import paths, shared_code
from vlalab.host.console import LabError

NAMES = images.buildable()


@pytest.fixture(autouse=True)
def no_variables_of_the_caller(monkeypatch):
    for name in ("VLALAB_TAG", "VLALAB_BASE", "VLALAB_BASE_DEVEL", "VLALAB_INDEX", *building.BUNDLE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(building, "ADDED_BY_ADMINS", ())


def record(name: str, tag: str = "dev", lock: str | None = None, revision: str = "abc") -> dict:
    """Returns an engine's record of an image."""
    labels = {
        images.ENV_LABEL: name,
        "vla-lab.lock": venvs.get(name).lock_hash if lock is None else lock,
        "org.opencontainers.image.revision": revision,
    }
    return {
        "Id": "sha256:1", "RepoTags": [f"vla-lab/{name}:{tag}"], "Size": 1_460_000_000,
        "Created": "2026-11-20T12:56:54.123456789Z", "Config": {"Labels": labels},
    }  # fmt: skip


def engine(*records: dict) -> str:
    """Returns the lines of an engine that has those images, and says so as `docker image inspect` does."""
    return f"""case "$1" in
version) echo '{{"Server": {{"Version": "26.1"}}}}' ;;
image) echo '{json.dumps(list(records))}'; echo "Error: No such image: x" >&2; exit 1 ;;
esac"""


# --- what there is ------------------------------------------------------------------------------------------


def test_an_image_says_when_and_from_what_it_was_built(speaking):
    speaking(engine(record("libero", revision="abc-dirty")))
    image = images.existing(["libero"])["libero"]
    assert image.created == datetime(2026, 11, 20, 12, 56, 54, tzinfo=timezone.utc)
    assert (image.size, image.revision, image.reference) == (1_460_000_000, "abc-dirty", "vla-lab/libero:dev")
    assert image.fits() and images.unusable("libero", image) is None


@pytest.mark.parametrize("lock", ["", "0" * 64])
def test_an_image_of_another_lock_or_of_none_does_not_fit(speaking, lock):
    speaking(engine(record("libero", lock=lock)))
    image = images.existing(["libero"])["libero"]
    assert not image.fits()
    assert "another lock" in images.unusable("libero", image) and "./lab build libero" in images.unusable(
        "libero", image
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T00:00:01Z", 1),
        ("2026-01-01T00:00:01.999999999Z", 1),
        ("2026-01-01T01:00:01+01:00", 1),
        ("2025-12-31T16:00:01.5-08:00", 1),
    ],
)
def test_times_of_every_engine(text, seconds):
    assert images.parse_time(text) == datetime(2026, 1, 1, 0, 0, seconds, tzinfo=timezone.utc)


# --- what a build is given ----------------------------------------------------------------------------------


def given(words: list[str]) -> dict[str, str]:
    """Returns what a build is told: target.key → value."""
    return dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "--set")


@pytest.mark.parametrize("name", NAMES)
def test_every_build_gets_its_lock_and_commit_and_only_what_is_described(name):
    told = given(building.arguments([name], BuildOptions(flash_attn="none")))
    args = {key.split(".")[2] for key in told if key.startswith(f"{name}.args.")}
    assert {"LOCK_HASH", "COMMIT"} <= args <= set(images.arguments(name))
    assert told[f"{name}.args.LOCK_HASH"] == venvs.get(name).lock_hash
    assert told[f"{name}.args.VERSION"] == shared_code.version()
    assert told[f"{name}.tags"] == f"vla-lab/{name}:dev"
    assert told["*.context"] == str(paths.ROOT)


def test_a_directory_replaces_its_stage_where_there_is_one(tmp_path):
    options = BuildOptions(stages={"flash-attn-wheel": str(tmp_path), "libero-assets": "official"})
    told = given(building.arguments(["gr00t", "libero", "ui"], options))
    assert {key: value for key, value in told.items() if ".contexts." in key} == {
        "gr00t.contexts.flash-attn-wheel": str(tmp_path)
    }
    assert told["libero.args.LIBERO_ASSETS"] == "official"


def test_the_base_of_one_environment_comes_before_the_base_of_all(monkeypatch):
    monkeypatch.setenv("VLALAB_BASE", "all")
    monkeypatch.setenv("VLALAB_BASE_LIBERO", "own")
    bases = [building.build_arguments(name, BuildOptions())["BASE"] for name in ("ui", "libero")]
    assert bases == ["all", "own"]
    assert building.build_arguments("libero", BuildOptions(base="flag"))["BASE"] == "flag"


def test_an_index_is_a_secret_and_never_an_argument(monkeypatch, tmp_path):
    address = "https://user:word@mirror.example/index"
    monkeypatch.setenv("VLALAB_INDEX", address)
    words = building.arguments(["ui"], BuildOptions())
    assert "*.secrets=id=index,env=VLALAB_INDEX" in words
    (tmp_path / "url").write_text(address + "\n")
    words += building.arguments(["ui"], BuildOptions(index=str(tmp_path / "url")))
    assert f"*.secrets=id=index,src={tmp_path}/url" in words
    assert "user:word" not in " ".join(words)


def test_what_is_not_an_address_is_reported_without_repeating_it(monkeypatch):
    monkeypatch.setenv("VLALAB_INDEX", "user:word@mirror")
    with pytest.raises(LabError, match="VLALAB_INDEX has no URL") as told:
        building.arguments(["ui"], BuildOptions())
    assert "word@" not in str(told.value)


def test_the_ca_bundle_is_ones_own_else_the_systems_where_an_admin_added_to_it(tmp_path, monkeypatch):
    own, system, added = tmp_path / "own.pem", tmp_path / "system.pem", tmp_path / "added"
    own.write_text("x"), system.write_text("x"), added.mkdir()
    monkeypatch.setattr(building, "SYSTEM_BUNDLES", (str(system),))
    monkeypatch.setattr(building, "ADDED_BY_ADMINS", (str(added),))
    assert building.ca_bundle(None) is None
    (added / "firm.crt").write_text("x")
    assert building.ca_bundle(None) == system
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "gone"))
    assert building.ca_bundle(None) == system
    monkeypatch.setenv("PIP_CERT", str(own))
    assert building.ca_bundle("auto") == building.ca_bundle(str(own)) == own and building.ca_bundle("none") is None


@pytest.mark.parametrize(
    ("options", "names", "says"),
    [
        (BuildOptions(flash_attn="none"), ["ui", "libero"], "--flash-attn does not apply to ui, libero"),
        (BuildOptions(stages={"flash-attn-wheel": "/tmp"}), ["ui"], "--flash-attn-wheel does not apply to ui"),
        (
            BuildOptions(stages={"libero-assets": "/nowhere"}),
            ["libero"],
            "--libero-assets /nowhere not found; expected a",
        ),
        (BuildOptions(ca_bundle="/nowhere"), ["ui"], "--ca-bundle /nowhere not found"),
        (BuildOptions(index="/nowhere"), ["ui"], "--index /nowhere not found"),
        (BuildOptions(arguments=("MAX_JOB=2",)), ["gr00t"], "did you mean 'MAX_JOBS'"),
        (BuildOptions(), ["libro"], "did you mean 'libero'"),
    ],
)
def test_mistakes_are_reported_before_anything_is_built(options, names, says):
    with pytest.raises(LabError, match=says):
        building.build(names, options)


def test_a_dry_run_prints_the_command_and_needs_no_engine(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert building.build(["all"], BuildOptions(dry_run=True)) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("docker buildx bake --file ") and line.endswith(" ".join(NAMES))


# --- building -----------------------------------------------------------------------------------------------


def builder(directory, code: int) -> str:
    """Returns the lines of an engine whose builds say one line and end with that code."""
    about = json.dumps({"DockerRootDir": str(directory)})
    return f"""case "$1 $2" in
version*) echo '{{"Server": {{"Version": "26.1"}}}}' ;;
"buildx version") echo "buildx v0.13.0" ;;
info*) echo '{about}' ;;
buildx*) echo "#5 pulling: no such host" >&2; exit {code} ;;
image*) echo '{json.dumps([record("ui")])}' ;;
esac"""


def test_a_build_returns_its_image_and_prints_its_size(speaking, tmp_path, capsys):
    speaking(builder(tmp_path, 0))
    (built,) = building.build(["ui"], BuildOptions())
    assert built.reference == "vla-lab/ui:dev"
    assert "1.5 GB" in capsys.readouterr().out


def test_a_build_that_fails_ends_with_its_words_and_what_to_do(speaking, tmp_path):
    speaking(builder(tmp_path, 1))
    with pytest.raises(LabError, match=r"image 'ui' could not be built:\n  #5 pulling(.|\n)*./lab restore FILE"):
        building.build(["ui"], BuildOptions())


def test_what_two_images_share_is_counted_once(speaking):
    speaking(engine(record("ui")))
    alone = images.needed_gb(["gr00t"]) + images.needed_gb(["ws_mdl"])
    together = images.needed_gb(["gr00t", "ws_mdl"])
    (shared,) = manifests.environment("gr00t").shared_gb.values()
    assert alone - together == pytest.approx(shared * images.CACHE_FACTOR + images.TOOLS_GB)
    assert images.needed_gb(["gr00t", "ws_mdl", "ui"]) == pytest.approx(together + images.REBUILD_GB)


def test_a_full_disk_is_reported_before_the_build_and_no_check_builds_all_the_same(
    speaking, tmp_path, monkeypatch, capsys
):
    speaking(builder(tmp_path, 0))
    monkeypatch.setattr(images, "CACHE_FACTOR", 1e9)
    run_lab("build", "ui")  # it is built already: only its last layers are new
    assert run_lab("build", "ui", "--no-cache") == 1
    told = capsys.readouterr()
    assert told.out.count("built in") == 1
    assert re.search(r"takes up to .* GB and .* free; .*\./lab clean\n.*--no-check to continue", told.err)
    run_lab("build", "ui", "--no-cache", "--no-check")
    assert capsys.readouterr().out.count("built in") == 1


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_says_when_the_tree_differs(tmp_path):
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    assert building.commit(tmp_path) == "unknown"
    git("init"), (tmp_path / "services").mkdir(), (tmp_path / "services" / "a.py").write_text("1")
    git("add", "."), git("commit", "-m", "first")
    clean = building.commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "notes.txt").write_text("no image holds this")
    assert building.commit(tmp_path) == clean
    (tmp_path / "services" / "b.py").write_text("2")
    assert building.commit(tmp_path) == f"{clean}-dirty"
