"""`./lab data gr00t`: what GR00T needs of a data set, and one from a hub on loopback."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services.gr00t.data import needs
from services.gr00t.data.__main__ import SIMULATED, published
from services.gr00t.data.needs import column_of
from tests import data_sets, forked
from tests.gr00t.conftest import ROOT, SHARED
from tests.openvla import hub as model_hub
from vla_datasets import metadata
from vla_datasets.checks import Findings
from vla_datasets.lerobot import LeRobotDataset

NAME = "gr1_arms_only.CanSort"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A LIBERO set in order."""
    return data_sets.lerobot(tmp_path_factory.mktemp("sets") / "goal").directory


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def lacks(directory, wanted=None):
    found = Findings(Path(directory))
    needs.check(found, wanted)
    return [str(one) for one in found.all]


def change(directory, name, how):
    value = json.loads((directory / name).read_text())
    how(value)
    (directory / name).write_text(json.dumps(value))


def test_a_libero_set_fits_its_embodiments_and_no_others(whole):
    assert lacks(whole) == [] == lacks(whole, "libero")
    assert needs.fitting(LeRobotDataset(whole)) == ["libero", "libero_mean_std"]
    (cameras, state, action) = lacks(whole, "gr1_arms_only")[:3]
    assert "embodiment gr1_arms_only: video ego_view missing; modality.json has image, wrist_image" in cameras
    assert "state left_arm, right_arm, left_hand, right_hand missing" in state and "action left_arm" in action


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_a_linked_set_lacks_nothing(whole, tmp_path, layout):
    assert lacks(data_sets.linked(whole, layout, tmp_path), "libero") == []


def test_averaged_quantiles_are_found_before_training(copy, tmp_path):
    change(copy, metadata.STATS, lambda stats: stats["action"]["q01"].__setitem__(0, 0.5))
    variables = {"VLALAB_VOLUME": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(ROOT), *SHARED])}
    command = forked.python("-m", "services.gr00t.data", "--dataset", str(copy), "--check")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, cwd=ROOT)
    assert done.returncode == 1 and "action: q01[0] is 0.5; the rows' is -0.9" in done.stdout, done.stdout + done.stderr
    assert "--write-stats" in done.stdout


CASES = [
    (lambda at: (at / metadata.MODALITY).unlink(), "meta/modality.json: is missing; GR00T's loader needs it"),
    (lambda at: change(at, metadata.MODALITY, lambda m: m.pop("annotation")), "no annotation"),
    (lambda at: change(at, metadata.MODALITY, lambda m: m["annotation"].clear()), "no annotation"),
    (lambda at: change(at, metadata.INFO, lambda i: i["features"]["observation.images.image"].pop("info")),
     "feature observation.images.image: GR00T's loader needs"),
    (lambda at: change(at, metadata.MODALITY, lambda m: m["state"].pop("yaw")), "modality.json: matches none of"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), CASES)
def test_what_gr00t_lacks_is_named(copy, spoil, words):
    spoil(copy)
    assert any(words in one for one in lacks(copy)), lacks(copy)


def test_states_that_the_network_has_no_room_for(copy):
    change(copy, metadata.MODALITY, lambda m: m["state"]["x"].update(end=70))
    assert any("state has 77 numbers; the network takes 64" in one for one in lacks(copy, "libero"))


@pytest.mark.parametrize("value", ["3", None, 1.5])
def test_a_range_that_is_none_is_named(copy, value):
    change(copy, metadata.MODALITY, lambda m: m["state"]["x"].update(end=value))
    words = f"start 0 and end {value!r} of state 'x'; expected whole numbers"
    assert any(words in one for one in lacks(copy, "libero")), lacks(copy, "libero")
    with pytest.raises(ValueError, match=rf"start 0 and end {value!r} of state 'x'; expected whole numbers"):
        column_of(LeRobotDataset(copy), "state", "x")


def test_liberos_files_are_sent_through_a_conversion(tmp_path):
    assert "./lab dataset NAME --format lerobot" in lacks(data_sets.hdf5(tmp_path))[0]


def test_names_on_the_hub():
    assert published(NAME) == (SIMULATED, NAME, NAME)
    assert published("some/set") == ("some/set", "", "set")
    assert published("some/sets/a/b") == ("some/sets", "a/b", "b")
    with pytest.raises(ValueError, match="--download .*gr1_arms_only"):
        published("some/../..")


class Handler(model_hub.Handler):
    """The hub's routes for data: a commit, and the tree below a folder."""

    def do_GET(self):
        path = urlsplit(self.path).path
        base = f"/api/{self.server.repo}"
        if path == f"{base}/revision/main":
            return self._json({"_id": "0", "id": self.server.repo.removeprefix("datasets/"), "sha": model_hub.COMMIT})
        tree = f"{base}/tree/{model_hub.COMMIT}"
        if path.startswith(tree):
            return self._tree(path.removeprefix(tree).strip("/"))
        return super().do_GET()

    def _tree(self, below):
        directory = self.server.directory / below
        if not directory.is_dir():
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        return self._json([self._entry(path) for path in sorted(directory.rglob("*")) if path.is_file()])

    def _entry(self, path):
        import hashlib

        name, data = path.relative_to(self.server.directory).as_posix(), path.read_bytes()
        entry = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
        if path.suffix == ".mp4":
            sha = "0" * 64 if path.name in self.server.lies else hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
        return entry


@pytest.fixture
def remote(whole, tmp_path):
    """A hub that has NVIDIA's repository with one data set in it, and another folder."""
    shutil.copytree(whole, tmp_path / "remote" / NAME)
    (tmp_path / "remote" / "other").mkdir()
    (tmp_path / "remote" / "other" / "big.bin").write_bytes(b"x" * 1000)
    with model_hub.hub(tmp_path / "remote", f"datasets/{SIMULATED}") as server:
        server.RequestHandlerClass = Handler
        yield server


def run(remote, volume, *flags):
    variables = {
        "HF_ENDPOINT": remote.url, "HF_HOME": str(volume / "hf"), "VLALAB_VOLUME": str(volume), "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *SHARED]),
    }  # fmt: skip
    command = forked.python("-m", "services.gr00t.data", *flags)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, cwd=ROOT)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_published_set_is_downloaded_whole_and_said(remote, whole, tmp_path):
    film = sorted(path.name for path in whole.rglob("*.mp4"))[0]
    remote.lies.add(film)
    code, said = run(remote, tmp_path / "volume", "--download", NAME)
    assert code == 1 and "the hub says" in said and "it was removed" in said
    assert not (tmp_path / "volume" / "datasets" / NAME).exists()
    remote.lies.clear()
    remote.asked.clear()
    code, said = run(remote, tmp_path / "volume", "--download", NAME)
    assert code == 0, said
    assert f"{NAME} at {model_hub.COMMIT}: " in said and "GB to download" in said
    fetched = {name for command, name, _ in remote.asked if command == "GET"}
    assert 0 < len(fetched) < sum(path.is_file() for path in whole.rglob("*"))  # the rest was there already
    assert not any(name.startswith("other") for name in fetched)
    directory = tmp_path / "volume" / "datasets" / NAME
    names = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file()) == names
    assert all((directory / name).read_bytes() == (whole / name).read_bytes() for name in names)
    assert "embodiments: libero, libero_mean_std" in said and "page: " in said
    assert [path.name for path in directory.parent.iterdir()] == [NAME]


def test_a_set_that_the_hub_does_not_have(remote, tmp_path):
    code, said = run(remote, tmp_path / "volume", "--download", "gr1_arms_only.CanSrt")
    assert code == 1 and "the hub has no directory" in said, said
    remote.shutdown()
    remote.server_close()
    code, said = run(remote, tmp_path / "volume", "--download", NAME)
    assert code == 1 and "was not downloaded" in said


def test_the_check_ends_with_what_gr00t_lacks(whole, tmp_path, remote):
    code, said = run(remote, tmp_path / "volume", "--dataset", str(whole), "--check", "--embodiment", "gr1_arms_only")
    assert code == 1 and "embodiment gr1_arms_only: video ego_view missing" in said
