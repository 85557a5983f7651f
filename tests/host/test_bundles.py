"""Bundles: what goes in comes out, damage is found and named, nothing leads out of the volume, newer files stay.

The files' half runs everywhere. Images go through an engine that answers; tests/docker has a real one.
"""

import json
import os
import random
import subprocess
import tarfile
import zlib

import pytest

from vlalab.bundles import packing, restoring
from vlalab.bundles.packing import BundleRequest
from vlalab.engine import images
from vlalab.host import paths
from vlalab.host.console import LabError

FILES = {
    "checkpoints/tiny/model.safetensors": random.Random(0).randbytes(300_000),
    "checkpoints/tiny/deep/er/config.json": b"{}",
    "checkpoints/other/empty": b"",
    "assets/libero/wood.png": b"wood" * 50_000,
}


@pytest.fixture
def volume(tmp_path, monkeypatch):
    """A volume with two checkpoints and LIBERO's assets."""
    for name, data in FILES.items():
        path = tmp_path / "volume" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    return tmp_path / "volume"


@pytest.fixture
def bundle(volume, tmp_path):
    """A bundle of all of its files."""
    request = BundleRequest((), tmp_path / "lab.bundle", checkpoints=("all",), assets=("libero",), host=False)
    return packing.bundle(request)


@pytest.fixture
def elsewhere(bundle, tmp_path, monkeypatch):
    """An empty volume on the other machine."""
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "elsewhere"))
    return tmp_path / "elsewhere"


def restored(root) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


# --- files there and back -----------------------------------------------------------------------------------


def test_what_goes_in_comes_out(bundle, elsewhere):
    plan = restoring.restore(bundle)
    assert restored(elsewhere) == FILES
    assert len(plan.write) == len(FILES)
    assert {int(p.stat().st_mtime) for p in elsewhere.rglob("*") if p.is_file()} == {1_700_000_000}


def test_a_bundle_can_be_read_without_this_tool(bundle, tmp_path):
    subprocess.run(["tar", "-xf", str(bundle), "-C", str(tmp_path), "volume", "README.txt"], check=True)
    assert b"docker load" in (tmp_path / "README.txt").read_bytes()  # beside the volume of the fixture
    assert restored(tmp_path / "volume") == FILES


def test_files_that_are_newer_here_stay_unless_forced(bundle, elsewhere):
    mine = elsewhere / "checkpoints/tiny/model.safetensors"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"trained on")
    plan = restoring.restore(bundle)
    assert plan.newer == ["checkpoints/tiny/model.safetensors"]
    assert mine.read_bytes() == b"trained on"
    restoring.restore(bundle, force=True)
    assert restored(elsewhere) == FILES


def test_a_dry_run_changes_nothing(bundle, elsewhere, capsys):
    restoring.restore(bundle, dry_run=True)
    assert not elsewhere.exists()
    assert f"files: {len(FILES)} to write" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_restored_files_belong_to_the_volumes_owner(bundle, elsewhere):
    elsewhere.mkdir()
    os.chown(elsewhere, 4321, 4322)
    restoring.restore(bundle)
    made = [path for path in elsewhere.rglob("*") if path.relative_to(elsewhere).parts[0] in packing.DIRECTORIES]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(4321, 4322)}


# --- damage -------------------------------------------------------------------------------------------------


def offset_of(bundle, name: str) -> int:
    with tarfile.open(bundle) as tar:
        return tar.getmember(name).offset_data


@pytest.mark.parametrize("name", ["volume/assets/libero/wood.png", "README.txt"])
def test_corrupted_byte_reports_the_damaged_member(bundle, elsewhere, name):
    with bundle.open("r+b") as file:
        file.seek(offset_of(bundle, name) + 20)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(LabError, match=f"part {name} of .* is damaged"):
        restoring.restore(bundle)
    assert not elsewhere.exists()


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.6, 0.9, 0.98])
def test_truncated_bundle_is_rejected(bundle, elsewhere, kept):
    os.truncate(bundle, int(bundle.stat().st_size * kept))
    with pytest.raises(LabError, match="not a bundle|truncated|no manifest"):
        restoring.restore(bundle)
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "not a bundle|no manifest"), (b"hello" * 1000, "not a bundle"), (None, "not found")]
)
def test_other_files_are_rejected_as_bundles(tmp_path, content, says):
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LabError, match=says):
        restoring.restore(path)
    with pytest.raises(LabError, match="a directory"):
        restoring.restore(tmp_path)


def test_a_link_on_the_volume_that_leads_out_is_not_followed(bundle, elsewhere, tmp_path):
    (tmp_path / "outside").mkdir()
    (elsewhere / "checkpoints").mkdir(parents=True)
    (elsewhere / "checkpoints" / "tiny").symlink_to(tmp_path / "outside")
    with pytest.raises(LabError, match="leads out of the volume through a link"):
        restoring.restore(bundle)
    assert list((tmp_path / "outside").iterdir()) == []


# --- before anything is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checkpoints": ("tinny",)}, "did you mean 'tiny'"),
        ({"assets": ("libro",)}, "did you mean 'libero'"),
        ({"checkpoints": (), "assets": ()}, "nothing to bundle"),
    ],
)
def test_unknown_names_are_reported(volume, tmp_path, change, says):
    request = BundleRequest((), tmp_path / "x", **{"checkpoints": ("tiny",), "host": False, **change})
    with pytest.raises(LabError, match=says):
        packing.bundle(request)
    assert not (tmp_path / "x").exists()


def test_existing_file_and_missing_directory_are_reported(bundle, volume, tmp_path):
    missing = tmp_path / "no" / "x"
    for file, says in ((bundle, "exists"), (tmp_path, "exists"), (missing, "no existing directory")):
        with pytest.raises(LabError, match=says):
            packing.bundle(BundleRequest((), file, checkpoints=("tiny",), host=False))


def test_full_disk_is_reported_and_leaves_no_partial_file(volume, bundle, elsewhere, tmp_path, monkeypatch):
    free = packing.shutil.disk_usage(tmp_path)
    full = lambda path: free._replace(free=10)  # noqa: E731
    monkeypatch.setattr(packing.shutil, "disk_usage", full)
    monkeypatch.setenv("VLALAB_VOLUME", str(volume))
    with pytest.raises(LabError, match="the bundle needs up to"):
        packing.bundle(BundleRequest((), tmp_path / "x", checkpoints=("tiny",), host=False))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lab.bundle", "volume"]


def test_a_bundle_that_fails_midway_leaves_no_file(volume, tmp_path, monkeypatch):
    def breaks(writer, name, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packing.BundleWriter, "add", breaks)
    with pytest.raises(LabError, match="No space left on device; the partial file was removed"):
        packing.bundle(BundleRequest((), tmp_path / "x", checkpoints=("tiny",), host=False))
    assert [p.name for p in tmp_path.iterdir()] == ["volume"]


def test_links_are_followed_and_broken_ones_reported(volume):
    (volume / "checkpoints/tiny/link.json").symlink_to("deep/er/config.json")
    assert volume / "checkpoints/tiny/link.json" in packing.volume_files(("tiny",), ())
    (volume / "checkpoints/tiny/gone").symlink_to("nowhere")
    with pytest.raises(LabError, match="link to a directory or a broken link"):
        packing.volume_files(("tiny",), ())


@pytest.mark.parametrize(
    ("words", "names", "file"),
    [
        ("libero,ui,/x/lab.bundle", ("libero", "ui"), "/x/lab.bundle"),
        ("all,/x/y,z", ("all",), "/x/y,z"),
        ("/x/y z", (), "/x/y z"),
    ],
)
def test_the_last_word_is_the_file(words, names, file):
    assert packing.parse_arguments(words) == (names, packing.Path(file))


@pytest.mark.parametrize(
    ("words", "says"), [("libero", "requires FILE"), ("", "requires FILE"), ("libro,/x", "libero")]
)
def test_missing_file_and_unknown_environment_are_reported(words, says):
    with pytest.raises(LabError, match=says):
        packing.parse_arguments(words)


# --- images -------------------------------------------------------------------------------------------------

ENGINE = """case "$1" in
version) echo '{"Server": {"Version": "26.1"}}' ;;
info) echo '{}' ;;
image) cat "$STATE/record.json" 2>/dev/null || { echo '[]'; echo "No such image" >&2; exit 1; } ;;
save) cat "$STATE/layers" ;;
load) cat > "$STATE/loaded"; cp "$STATE/kept.json" "$STATE/record.json" ;;
esac"""


@pytest.fixture
def engine(speaking, tmp_path, monkeypatch):
    """An engine with one image, whose layers are bytes; `load` keeps what it was given."""
    state = tmp_path / "engine"
    state.mkdir()
    labels = {"vla-lab.lock": images.venvs.get("ui").lock_hash}
    record = {
        "Id": "sha256:1", "RepoTags": [images.reference("ui")], "Size": 1000, "Created": "2026-01-02T00:00:00Z",
        "Config": {"Labels": labels},
    }  # fmt: skip
    (state / "record.json").write_text(json.dumps([record]))
    (state / "kept.json").write_text(json.dumps([record]))
    (state / "layers").write_bytes(random.Random(1).randbytes(200_000))
    monkeypatch.setenv("STATE", str(state))
    speaking(ENGINE)
    return state


def test_an_image_is_loaded_as_it_was_saved(volume, engine, tmp_path):
    packing.bundle(BundleRequest(("ui",), tmp_path / "x", host=False))
    (engine / "record.json").unlink()
    plan = restoring.restore(tmp_path / "x")
    assert [image["reference"] for image in plan.load] == [images.reference("ui")]
    assert zlib.decompress((engine / "loaded").read_bytes(), 31) == (engine / "layers").read_bytes()


def test_a_newer_image_here_is_replaced_only_when_forced(volume, engine, tmp_path):
    packing.bundle(BundleRequest(("ui",), tmp_path / "x", host=False))
    newer = (engine / "record.json").read_text().replace("sha256:1", "sha256:2").replace("2026-01-02", "2026-01-03")
    (engine / "record.json").write_text(newer)
    with pytest.raises(LabError, match="newer here than in the bundle; --force replaces it"):
        restoring.restore(tmp_path / "x")
    assert len(restoring.restore(tmp_path / "x", force=True).load) == 1


def test_another_image_than_the_bundles_is_noticed(volume, engine, tmp_path):
    packing.bundle(BundleRequest(("ui",), tmp_path / "x", host=False))
    (engine / "record.json").unlink()
    (engine / "kept.json").write_text((engine / "kept.json").read_text().replace("vla-lab.lock", "other"))
    with pytest.raises(LabError, match="the loaded image is not"):
        restoring.restore(tmp_path / "x")


def test_failed_docker_save_leaves_no_file_and_reports_its_output(volume, engine, tmp_path):
    (engine / "layers").unlink()
    with pytest.raises(LabError, match="`docker save vla-lab/ui:.*` failed"):
        packing.bundle(BundleRequest(("ui",), tmp_path / "x", host=False))
    assert not list(tmp_path.glob("x*"))


def test_an_image_of_another_lock_is_not_bundled(volume, engine, tmp_path):
    record = (engine / "record.json").read_text()
    (engine / "record.json").write_text(record.replace(images.venvs.get("ui").lock_hash, "0"))
    with pytest.raises(LabError, match="another lock"):
        packing.bundle(BundleRequest(("ui",), tmp_path / "x", host=False))


# --- the lab itself -----------------------------------------------------------------------------------------


def test_pins_are_for_every_python():
    lock = (
        "a==1 ; python_full_version < '3.11' \\\n    --hash=sha256:00\n    # via b\nb[c]==2 \\\n    --hash=sha256:11\n"
    )
    assert packing.without_markers(lock).split("\n") == [
        "a==1 \\", "    --hash=sha256:00", "    # via b", "b[c]==2 \\", "    --hash=sha256:11", "",
    ]  # fmt: skip
    real = packing.without_markers((paths.ROOT / "requirements.lock").read_text())
    assert [line for line in real.splitlines() if ";" in line and not line.startswith(("#", " "))] == []
