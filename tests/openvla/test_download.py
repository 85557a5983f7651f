"""`python -m services.openvla.checkpoints`, against a hub on loopback."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.oft import Oft
from services.openvla.checkpoint.published import (
    BASE,
    COMMITS,
    DOWNLOAD_PATTERNS,
    OFT_COMBINED,
    OFT_IMAGES,
    OFT_REPOSITORIES,
    REPOSITORIES,
    SUITES,
    suites_of,
)
from services.openvla.checkpoints import CheckpointSettings
from tests.openvla.hub import COMMIT, hub
from tests.ports import refusing
from vla_modelkit.checkpoint import identity, read_record
from vla_modelkit.weights import Safetensors

REPO = "someone/openvla-small"
SHARD = "model-00001-of-00002.safetensors"


@pytest.fixture
def remote(checkpoints, tmp_path):
    """A hub with the tiny checkpoint and a file that no checkpoint needs."""
    directory = shutil.copytree(checkpoints(), tmp_path / "remote")
    (directory / "README.md").write_text("not wanted")
    with hub(directory, REPO) as server:
        yield server


@pytest.fixture
def nobody():
    """An address where nobody answers."""
    with refusing() as address:
        yield address


@pytest.fixture
def run(tmp_path, nobody):
    """Returns a function that runs the program with flags, against a hub's URL."""

    def program(*flags, url=nobody):
        variables = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "VLALAB_VOLUME": str(tmp_path / "volume")}
        command = [sys.executable, "-m", "services.openvla.checkpoints", *flags]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})

    return program


def directory_of(tmp_path, name="openvla-small"):
    return tmp_path / "volume" / "checkpoints" / name


def test_a_repository_is_downloaded_recorded_and_not_requested_again(remote, run, tmp_path):
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 0, done.stderr
    assert f"{REPO} at {COMMIT}" in done.stdout
    directory = directory_of(tmp_path)
    assert load_config(directory)
    assert not (directory / "README.md").exists()
    assert (identity(directory).repo, identity(directory).revision) == (REPO, COMMIT)
    record = json.loads((directory / "checkpoint.json").read_text())
    assert {SHARD, "config.json", "tokenizer.json"} <= record["files"].keys()
    remote.asked.clear()
    again = run("--repo", REPO, url=remote.url)
    assert "complete already" in again.stdout
    assert not remote.asked


def test_a_connection_that_breaks_continues_where_it_stopped(remote, run, tmp_path):
    remote.cut[SHARD] = 20_000_000
    done = run("--repo", REPO, url=remote.url)
    if done.returncode:  # newer clients go on by themselves
        assert f"{SHARD} of {REPO} was not downloaded" in done.stderr
        assert "it resumes" in done.stderr
        done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 0, done.stderr
    ranges = [asked for method, name, asked in remote.asked if method == "GET" and name == SHARD]
    assert ranges[0] in (None, "bytes=0-")
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) > 0
    assert identity(directory_of(tmp_path)).repo == REPO


def test_what_exists_is_kept_and_what_is_missing_is_fetched(remote, run, tmp_path):
    assert run("--repo", REPO, url=remote.url).returncode == 0
    (directory_of(tmp_path) / SHARD).unlink()
    remote.asked.clear()
    assert run("--repo", REPO, url=remote.url).returncode == 0
    assert {name for _, name, _ in remote.asked} == {SHARD}


def test_bytes_that_are_not_what_the_hub_promised_are_removed(remote, run, tmp_path):
    remote.lies.add(SHARD)
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode == 1
    assert f"{SHARD} has sha256" in done.stderr
    assert not (directory_of(tmp_path) / SHARD).exists()
    assert not (directory_of(tmp_path) / "checkpoint.json").exists()


def test_missing_hub_repository_revision_and_space_are_reported(remote, run, nobody):
    for flags, url, text in (
        (("--suite", "libero_goal"), nobody, "cannot be reached"),
        (("--repo", "no/such"), remote.url, "no repository 'no/such'"),
        (("--repo", REPO, "--revision", "v9"), remote.url, "at v9"),
    ):
        done = run(*flags, url=url)
        assert done.returncode == 1
        assert text in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_a_hub_token_that_cannot_be_sent_is_named_and_not_shown(run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret\u200bsecret")
    done = run("--repo", REPO)
    assert done.returncode == 1 and "HF_TOKEN" in done.stderr and "U+200B" in done.stderr and "10" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_too_little_space_is_reported_before_anything_is_downloaded(remote, run, monkeypatch):
    big = remote.directory / "model-00003-of-00003.safetensors"
    with big.open("wb") as file:
        file.truncate(10)
    from vla_modelkit import download

    monkeypatch.setattr(download, "SPARE", 2**62)
    monkeypatch.setattr(download, "listing", lambda *asked: (COMMIT, [download.RemoteFile("x", 1, None)]))
    with pytest.raises(OSError, match="needed for"):
        download.fetch(REPO, "main", remote.directory.parent / "target", DOWNLOAD_PATTERNS)
    assert not (remote.directory.parent / "target").exists()


def test_a_directory_of_another_repository_is_not_overwritten(remote, run, tmp_path):
    assert run("--repo", REPO, url=remote.url).returncode == 0
    done = run("--suite", "libero_10", "--name", "openvla-small", url=remote.url)
    assert done.returncode == 1
    assert f"contains {REPO}" in done.stderr


def test_published_checkpoints_are_pinned_by_commit():
    assert set(REPOSITORIES) == set(SUITES) - {"libero_90"}
    assert CheckpointSettings(suite="base").pinned() == CheckpointSettings(repo=BASE[0]).pinned() == BASE
    assert all(len(commit) == 40 for _, commit in REPOSITORIES.values())
    assert suites_of(["libero_goal_no_noops", "bridge_orig"]) == ("libero_goal",)
    assert suites_of(["bridge_orig"]) == ()


def test_published_checkpoints_of_oft_are_the_suites_with_two_images():
    assert set(OFT_REPOSITORIES) == set(REPOSITORIES)
    for suite, (repo, commit) in OFT_REPOSITORIES.items():
        assert CheckpointSettings(suite=suite, oft=True).pinned() == CheckpointSettings(repo=repo).pinned()
        assert (len(commit), OFT_IMAGES[repo]) == (40, 2)
    assert CheckpointSettings(repo=OFT_COMBINED[0]).pinned() == OFT_COMBINED and OFT_IMAGES[OFT_COMBINED[0]] == 2
    assert CheckpointSettings(repo=OFT_COMBINED[0], revision="main").pinned()[1] == "main"
    assert len(set(COMMITS.values())) == len(COMMITS) == 10


def test_a_tiny_checkpoint_of_oft_has_its_files_and_images(run, remote, tmp_path):
    done = run("--tiny", "--oft", "--suite", "libero_goal")
    assert done.returncode == 0, done.stderr
    directory = directory_of(tmp_path, "openvla-oft-tiny")
    assert load_config(directory).oft == Oft() and read_record(directory)["images"] == 2
    for head in directory.glob("action_head--*"):
        shutil.copy(head, remote.directory)
        assert run("--repo", REPO, url=remote.url).returncode == 0
        assert (directory_of(tmp_path) / head.name).read_bytes() == head.read_bytes()


def test_a_tiny_checkpoint_is_made_once_for_the_suite_that_was_requested(run, tmp_path):
    done = run("--tiny", "--suite", "libero_goal", "--name", "small")
    assert done.returncode == 0, done.stderr
    directory = directory_of(tmp_path, "small")
    assert list(load_config(directory).norm_stats) == ["libero_goal_no_noops"]
    assert identity(directory).repo == "random-tiny"
    assert "exists already" in run("--tiny", "--name", "small").stdout


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "no checkpoint selected"),
        (("--suite", "libero_goall"), "did you mean 'libero_goal'"),
        (("--tiny", "--size", "full"), "--size 'full' not found"),
        (("--tiny", "--name", "../x"), "not a directory name"),
        (("--suite", "base", "--oft"), "suite 'base' of OpenVLA-OFT not found"),
        (("--tiny", "--remote-code", "."), "configuration_prismatic.py"),
        (("--merge", "x", "--suite", "libero_goal"), "--merge takes --base and --name alone"),
        (("--merge", "no-such"), "'no-such' is neither a directory"),
    ],
)
def test_wrong_flags_are_reported(run, flags, text):
    done = run(*flags)
    assert done.returncode != 0
    assert text in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_an_adapters_repository_is_merged_into_its_base(remote, run, tmp_path):
    """As the hub has them: lora_adapter/ and statistics, and the base in a repository of its own."""
    assert run("--repo", REPO, url=remote.url).returncode == 0
    name, source = "language_model.model.layers.0.mlp.up_proj", tmp_path / "adapter"
    weight = Safetensors(directory_of(tmp_path)).read(f"{name}.weight")
    pair = {"lora_A": torch.ones(2, weight.shape[1]), "lora_B": torch.ones(len(weight), 2)}
    (source / "lora_adapter").mkdir(parents=True)
    path = source / "lora_adapter" / "adapter_model.safetensors"
    save_file({f"base_model.model.{name}.{part}.weight": value for part, value in pair.items()}, str(path))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 1, "base_model_name_or_path": REPO}
    (source / "lora_adapter" / "adapter_config.json").write_text(json.dumps(config))
    shutil.copy(directory_of(tmp_path) / "dataset_statistics.json", source)
    remote.others["someone/lora"] = source
    refused = run("--repo", "someone/lora", url=remote.url)
    assert refused.returncode == 1 and "--merge someone/lora" in " ".join(refused.stderr.split())
    done = run("--merge", "someone/lora", url=remote.url)
    assert done.returncode == 0 and "up openvla --checkpoint lora-merged" in done.stdout, done.stderr
    merged = Safetensors(directory_of(tmp_path, "lora-merged")).read(f"{name}.weight")
    torch.testing.assert_close(merged, (weight.float() + 1).to(weight.dtype))
    record = read_record(directory_of(tmp_path, "lora-merged"))
    assert (record["repo"], record["revision"], record["base"]["repo"]) == ("someone/lora", COMMIT, REPO)
    again = run("--merge", "someone/lora", "--base", REPO, url=remote.url)
    assert again.returncode == 1 and "lora-merged exists" in " ".join(again.stderr.split())


def test_another_models_repository_is_refused_before_anything_is_downloaded(remote, run, tmp_path):
    (remote.directory / "noisy_action_projector--150000_checkpoint.pt").write_bytes(b"a projector")
    done = run("--repo", REPO, url=remote.url)
    assert done.returncode != 0 and "OpenVLA-OFT with a diffusion head" in " ".join(done.stderr.split())
    assert not directory_of(tmp_path).exists()
    assert [name for _, name, _ in remote.asked if name.endswith(".safetensors")] == []
