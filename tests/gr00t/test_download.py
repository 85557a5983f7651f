"""`python -m services.gr00t.checkpoints`, against a hub on loopback: the model kit's download, with what GR00T adds."""

import json
import os
import subprocess
import sys

import pytest

from services.gr00t.checkpoint import METADATA, find
from services.gr00t.embodiments import EMBODIMENTS
from services.gr00t.tiny import metadata
from tests.openvla.hub import COMMIT, hub
from vla_common.volume import Volume
from vla_modelkit.checkpoint import identity

REPO, WEIGHTS = "someone/gr00t-small", "model.safetensors"


@pytest.fixture
def remote(tmp_path):
    """A hub with a checkpoint whose weights are mere bytes, and an optimizer's state that nobody wants."""
    folder = tmp_path / "remote"
    (folder / METADATA).parent.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gr00t_n1_5"}))
    (folder / METADATA).write_text(json.dumps({"new_embodiment": metadata(EMBODIMENTS["libero"], 256)}))
    (folder / WEIGHTS).write_bytes(b"weights" * 100_000)
    (folder / "optimizer.pt").write_bytes(b"state")
    with hub(folder, REPO) as server:
        yield server


@pytest.fixture
def run(tmp_path, remote):
    """Returns a function that downloads the hub's checkpoint with more flags."""

    def program(*flags):
        variables = {
            "HF_ENDPOINT": remote.url, "HF_HOME": str(tmp_path / "hf"), "VLALAB_VOLUME": str(tmp_path / "volume"),
            "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        command = [sys.executable, "-m", "services.gr00t.checkpoints", "--repo", REPO, *flags]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})

    return program


def test_a_checkpoint_is_downloaded_with_its_metadata_and_says_what_to_serve_it_as(remote, run, tmp_path):
    done = run("--embodiment", "libero_mean_std")
    assert done.returncode == 0, done.stderr
    assert "./lab up gr00t --checkpoint gr00t-small" in done.stdout
    found = find("gr00t-small", Volume(tmp_path / "volume"))
    assert found.embodiment().name == "libero_mean_std" and not (found.folder / "optimizer.pt").exists()
    held = identity(found.folder, found.record)
    assert (held.repo, held.revision) == (REPO, COMMIT)
    remote.asked.clear()
    assert "complete already" in run().stdout and not remote.asked


def test_a_broken_connection_goes_on_and_wrong_bytes_are_removed(remote, run, tmp_path):
    remote.cut[WEIGHTS] = 1000
    done = run()
    done = run() if done.returncode else done  # newer clients go on by themselves
    assert done.returncode == 0, done.stderr
    weights = tmp_path / "volume" / "checkpoints" / "gr00t-small" / WEIGHTS
    weights.unlink()
    remote.lies.add(WEIGHTS)
    done = run()
    assert done.returncode == 1 and f"{WEIGHTS} has sha256" in done.stderr and not weights.exists()
