"""`python -m services.gr00t.checkpoints`, against a hub on loopback: the model kit's download, with what GR00T adds."""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import subprocess
import threading

import pytest

from services.gr00t.checkpoint import tokenizer
from services.gr00t.checkpoint.directory import METADATA, PUBLISHED, find
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, embodiment, write
from services.gr00t.checkpoint.tiny import metadata, write_tokenizer
from tests import forked
from tests.openvla.hub import COMMIT, hub
from vla_common.volume import Volume
from vla_modelkit.checkpoint import RECORD, CheckpointError, identity

REPO, WEIGHTS = "someone/gr00t-small", "model.safetensors"


@pytest.fixture
def remote(tmp_path):
    """A hub with a checkpoint whose weights are mere bytes, and an optimizer's state that nobody wants."""
    directory = tmp_path / "remote"
    (directory / METADATA).parent.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "gr00t_n1_5"}))
    (directory / METADATA).write_text(json.dumps({"new_embodiment": metadata(embodiment("libero"), 256)}))
    (directory / WEIGHTS).write_bytes(b"weights" * 100_000)
    write_tokenizer(directory)
    (directory / "optimizer.pt").write_bytes(b"state")
    with hub(directory, REPO) as server:
        yield server


@pytest.fixture
def run(tmp_path, remote):
    """Returns a function that downloads the hub's checkpoint with more flags."""

    def program(*flags, repo=REPO):
        variables = {
            "HF_ENDPOINT": remote.url, "HF_HOME": str(tmp_path / "hf"), "VLALAB_VOLUME": str(tmp_path / "volume"),
            "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        command = forked.python("-m", "services.gr00t.checkpoints", "--repo", repo, *flags)
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})

    return program


def test_a_checkpoint_is_downloaded_with_its_metadata_and_says_what_to_serve_it_as(remote, run, tmp_path):
    done = run("--embodiment", "libero_mean_std")
    assert done.returncode == 0, done.stderr
    assert "./lab up gr00t --checkpoint gr00t-small" in done.stdout
    licence, address, *_ = done.stdout.splitlines()
    assert "NSCL V1, a non-commercial licence" in licence and address == f"page: huggingface.co/{REPO}"
    found = find("gr00t-small", Volume(tmp_path / "volume"))
    assert found.embodiment().name == "libero_mean_std" and not (found.directory / "optimizer.pt").exists()
    held = identity(found.directory, found.record)
    assert (held.repo, held.revision) == (REPO, COMMIT)
    remote.asked.clear()
    assert "complete already" in run().stdout and not remote.asked


def test_a_published_repository_has_its_own_scale_and_a_wrong_record_is_corrected(remote, run, tmp_path):
    """`--repo` records what the table says; an earlier version recorded "libero" for every repository."""
    remote.repo, volume = PUBLISHED["libero_goal"].repo, Volume(tmp_path / "volume")
    command = ("--revision", COMMIT, "--name", "mine")
    done = run(*command, repo=remote.repo)
    assert done.returncode == 0, done.stderr
    found = find("mine", volume)
    assert found.embodiment().name == "libero_mean_std" and found.suites == ("libero_goal",)
    assert found.embodiment_from() == "checkpoint.json: published table"
    (found.directory / RECORD).write_text(json.dumps({**found.record, "embodiment": "libero"}))
    with pytest.raises(CheckpointError, match="'libero_mean_std'.*--suite libero_goal --name mine"):
        find("mine", volume).embodiment()
    remote.asked.clear()
    done = run(*command, repo=remote.repo)
    assert done.returncode == 0 and "embodiment is 'libero_mean_std', was 'libero'" in done.stdout and not remote.asked
    assert find("mine", volume).embodiment().name == "libero_mean_std"


def test_a_repository_that_states_no_embodiment_is_refused_before_its_weights(remote, run, tmp_path):
    done = run()
    assert done.returncode == 1 and not remote.asked
    for words in (REPO, "--embodiment", "libero, libero_mean_std", "embodiment.json"):
        assert words in done.stderr
    write(remote.directory / EMBODIMENT_FILE, embodiment("libero_mean_std"))
    assert run().returncode == 0, "its own file states it"
    assert find("gr00t-small", Volume(tmp_path / "volume")).embodiment_from() == EMBODIMENT_FILE


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A checkout of Isaac-GR00T, as far as its tokenizer goes, whose files' hashes are known."""
    place = tmp_path / "checkout" / tokenizer.UPSTREAM_DIRECTORY
    place.mkdir(parents=True)
    write_tokenizer(place)
    monkeypatch.delenv(tokenizer.SOURCE_VARIABLE, raising=False)
    return place, {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()}


def test_a_tokenizer_that_is_missing_is_fetched_and_checked(package, tmp_path):
    place, hashes = package
    directory = tmp_path / "mine"
    directory.mkdir()
    with pytest.raises(CheckpointError, match="has no vocab.json.*run .*checkpoint gr00t"):
        tokenizer.load(directory)
    with serving(place) as url:
        with pytest.raises(CheckpointError, match="vocab.json of the tokenizer has sha256 .*expected"):
            tokenizer.complete(directory, url, {**hashes, "vocab.json": "0" * 64})
        assert not (directory / "vocab.json").exists() and not list(directory.glob(".*"))
        tokenizer.complete(directory, url, hashes)
    assert {path.name for path in directory.iterdir()} == set(hashes)
    assert tokenizer.load(directory)("<img>go")[0] == 151670
    tokenizer.complete(directory, "http://127.0.0.1:1", hashes)  # nothing is missing, so nobody is asked


def test_a_checkout_of_upstream_goes_before_the_network(package, tmp_path, monkeypatch):
    _, hashes = package
    (tmp_path / "mine").mkdir()
    with pytest.raises(CheckpointError, match="cannot be downloaded.*VLALAB_GR00T_SOURCE"):
        tokenizer.complete(tmp_path / "mine", "http://127.0.0.1:1", hashes)
    monkeypatch.setenv(tokenizer.SOURCE_VARIABLE, str(tmp_path / "checkout"))
    tokenizer.complete(tmp_path / "mine", "http://127.0.0.1:1", hashes)
    assert tokenizer.load(tmp_path / "mine")("put the bowl")


@contextlib.contextmanager
def serving(directory):
    """A web server on loopback over a folder: its address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
