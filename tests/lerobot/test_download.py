"""`python -m services.lerobot.checkpoints`, against a hub on loopback, with the repositories that are named."""

import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from services.lerobot.checkpoint import load
from services.lerobot.repositories import REVISIONS
from services.lerobot.types import NOT_TINY
from tests.openvla.hub import COMMIT, hub
from vla_modelkit.checkpoint import identity

REPO, TOKENIZER = "someone/xvla-small", "someone/bart"


@pytest.fixture
def remote(checkpoints, tmp_path):
    """A hub with a policy, and the tokenizer that its files name."""
    directory = shutil.copytree(checkpoints("xvla"), tmp_path / "remote")
    tokenizer = shutil.move(directory / "repositories" / "tiny" / "bart", tmp_path / "tokenizer")
    shutil.rmtree(directory / "repositories")
    for file in directory.glob("*.json"):
        file.write_text(file.read_text().replace("tiny/bart", TOKENIZER))
    (directory / "optimizer.pt").write_text("not wanted")
    with hub(directory, REPO) as server:
        server.others[TOKENIZER] = tokenizer
        yield server


@pytest.fixture
def run(tmp_path):
    """Returns a function that runs the program with flags, against a hub's URL."""

    def program(*flags, url="http://127.0.0.1:9"):
        variables = {
            "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "VLALAB_VOLUME": str(tmp_path / "volume"),
            "HF_HUB_OFFLINE": "0",
        }  # fmt: skip
        command = [sys.executable, "-m", "services.lerobot.checkpoints", *flags]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})

    return program


def checkpoint(tmp_path, name="xvla-small"):
    return tmp_path / "volume" / "checkpoints" / name


def test_a_checkpoint_is_downloaded_with_the_tokenizer_that_it_names(remote, run, tmp_path):
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 0, done.stderr
    assert f"page: huggingface.co/{REPO}" in done.stdout and f"page: huggingface.co/{TOKENIZER}" in done.stdout
    directory = checkpoint(tmp_path)
    assert (identity(directory).repo, identity(directory).revision) == (REPO, COMMIT)
    record = json.loads((directory / "repositories" / TOKENIZER / "checkpoint.json").read_text())
    assert record["revision"] == COMMIT and "tokenizer.json" in record["files"]
    assert not (directory / "optimizer.pt").exists()
    remote.asked.clear()
    assert run("--repo", REPO, url=remote.url).returncode == 0 and not remote.asked


def test_a_checkpoint_copied_by_hand_is_completed(remote, run, tmp_path):
    shutil.copytree(remote.directory, checkpoint(tmp_path, "mine"))
    done = run("--name", "mine", url=remote.url)
    assert done.returncode == 0, done.stderr
    assert (checkpoint(tmp_path, "mine") / "repositories" / TOKENIZER / "tokenizer.json").is_file()


def test_a_gated_repository_and_an_unreachable_hub_are_one_sentence_each(remote, run):
    remote.gated.add(TOKENIZER)
    done = run("--repo", REPO, url=remote.url)
    message = " ".join(done.stderr.split())
    assert done.returncode == 1 and "Traceback" not in message
    assert f"accept its terms at huggingface.co/{TOKENIZER}" in message and "HF_TOKEN=" in message
    done = run("--repo", "someone/else")  # without a hub
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "someone/else" in done.stderr and "the hub cannot be reached" in done.stderr


def test_a_known_repository_is_downloaded_at_its_pinned_commit(remote, run, tmp_path):
    name = "facebook/bart-large"
    for file in remote.directory.glob("*.json"):
        file.write_text(file.read_text().replace(TOKENIZER, name))
    remote.others[name], remote.commits[name] = remote.others.pop(TOKENIZER), REVISIONS[name]
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 0, done.stderr
    assert identity(checkpoint(tmp_path)).revision == COMMIT
    record = json.loads((checkpoint(tmp_path) / "repositories" / name / "checkpoint.json").read_text())
    assert record["revision"] == REVISIONS[name]


def test_pinned_repositories_have_whole_commits():
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in REVISIONS.values())


@pytest.fixture
def with_torch_weights(checkpoints, tmp_path):
    """A hub with a policy and its backbone, whose weights are in pytorch_model.bin."""
    directory = shutil.copytree(checkpoints("multi_task_dit"), tmp_path / "remote")
    backbone = shutil.move(directory / "repositories" / "tiny" / "clip", tmp_path / "clip")
    shutil.rmtree(directory / "repositories")
    torch.save(load_file(backbone / "model.safetensors"), backbone / "pytorch_model.bin")
    with hub(directory, REPO) as server:
        server.others["tiny/clip"] = backbone
        yield server


def test_a_backbone_in_torchs_format_is_stored_as_safetensors(with_torch_weights, run, tmp_path):
    remote = with_torch_weights
    expected = load_file(remote.others["tiny/clip"] / "model.safetensors")
    (remote.others["tiny/clip"] / "model.safetensors").unlink()
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 0, done.stderr
    directory = checkpoint(tmp_path) / "repositories" / "tiny" / "clip"
    stored = load_file(directory / "model.safetensors")
    assert stored.keys() == expected.keys() and all(stored[name].equal(expected[name]) for name in expected)
    assert not (directory / "pytorch_model.bin").exists()
    load(checkpoint(tmp_path), "cpu")
    remote.asked.clear()
    assert run("--repo", REPO, url=remote.url).returncode == 0 and not remote.asked


def test_torchs_format_is_not_downloaded_where_there_are_safetensors(with_torch_weights, run):
    assert run("--repo", REPO, url=with_torch_weights.url).returncode == 0
    assert "pytorch_model.bin" not in {name for _, name, _ in with_torch_weights.asked}


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: torch.save({"step": 3}, path), "holds more than named tensors"),
        (lambda path: path.write_bytes(pickle.dumps(pathlib.PurePath("x"))), "is not a file of tensors"),
        (
            lambda path: path.with_name("pytorch_model-00001-of-00002.bin").touch(),
            "no *.safetensors and no pytorch_model",
        ),
    ],
)
def test_other_files_than_tensors_are_refused(with_torch_weights, run, tmp_path, write, text):
    backbone = with_torch_weights.others["tiny/clip"]
    for name in ("model.safetensors", "pytorch_model.bin"):
        (backbone / name).unlink()
    write(backbone / "pytorch_model.bin")
    done = run("--repo", REPO, url=with_torch_weights.url)
    assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr
    assert not (checkpoint(tmp_path) / "repositories" / "tiny" / "clip" / "model.safetensors").exists()


def test_an_adapter_without_weights_is_refused_before_the_download(remote, run, tmp_path):
    (remote.directory / "adapter_config.json").write_text("{}")
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 1 and "has no adapter_model.safetensors" in done.stderr
    assert not checkpoint(tmp_path).exists()


def test_a_tiny_checkpoint_is_made_once(run, tmp_path):
    done = run("--tiny", "--type", "tdmpc")
    assert done.returncode == 0, done.stderr
    assert "./lab up lerobot --checkpoint lerobot-tiny-tdmpc" in done.stdout
    assert identity(checkpoint(tmp_path, "lerobot-tiny-tdmpc")).repo == "random-tiny"
    assert "exists already" in run("--tiny", "--type", "tdmpc").stdout


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "no checkpoint selected"),
        (("--suite", "libero_goal"), "--repo OWNER/NAME"),
        (("--name", "nothing"), "has no config.json"),
        (("--tiny", "--type", "smolvl"), "did you mean 'smolvla'"),
        (("--tiny", "--type", "pi05"), NOT_TINY["pi05"]),
    ],
)
def test_wrong_flags_are_reported(run, flags, text):
    done = run(*flags)
    assert done.returncode != 0
    assert text in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
