"""Adapters as LeRobot writes them are merged into their base, and refused with one sentence where they do not fit."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.lerobot.adapters import merge_into_checkpoint
from services.lerobot.checkpoint import load
from services.lerobot.checkpoints import base_of
from tests.lerobot.test_download import checkpoint, run  # noqa: F401
from tests.openvla.hub import COMMIT, hub
from vla_modelkit.checkpoint import CheckpointError, identity

WEIGHTS, ADAPTER_WEIGHTS = "model.safetensors", "adapter_model.safetensors"
BASE, REPO = "someone/act-base", "someone/act-adapter"
RANK, ALPHA = 4, 8


@pytest.fixture
def base(checkpoints):
    return checkpoints("act")


@pytest.fixture
def adapter(base, tmp_path):
    """An adapter of `base`, saved by LeRobot's and peft's own methods, with random weights."""
    directory = tmp_path / "adapter"
    directory.mkdir()
    loaded = load(base, "cpu")
    policy = loaded.policy
    policy.config.pretrained_path = BASE
    adapted = policy.wrap_with_peft(
        peft_cli_overrides={"r": RANK, "lora_alpha": ALPHA, "target_modules": r".*encoder.*linear[12]"}
    )
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_()
    adapted.save_pretrained(directory)
    policy.config.save_pretrained(directory)
    loaded.preprocessor.save_pretrained(directory)
    loaded.postprocessor.save_pretrained(directory)
    return directory


def expected_weights(base, adapter):
    """The base's weights W, as W + alpha / rank · B A where the adapter has A and B."""
    weights, adapters = load_file(base / WEIGHTS), load_file(adapter / ADAPTER_WEIGHTS)
    for name, down in adapters.items():
        if name.endswith("lora_A.weight"):
            layer = name.removeprefix("base_model.model.").replace("lora_A.", "")
            weights[layer] += ALPHA / RANK * adapters[name.replace("lora_A", "lora_B")] @ down
    return weights


def test_a_published_adapter_is_downloaded_with_its_base_and_merged(base, adapter, run, tmp_path):  # noqa: F811
    with hub(adapter, REPO) as remote:
        remote.others[BASE] = base
        done = run("--repo", REPO, url=remote.url)
        assert done.returncode == 0, done.stderr
        assert f"huggingface.co/{BASE}" in done.stdout and f"rank {RANK}, alpha {ALPHA}" in done.stdout
        directory = checkpoint(tmp_path, "act-adapter")
        remote.asked.clear()
        assert run("--repo", REPO, url=remote.url).returncode == 0 and not remote.asked
    merged, expected = load_file(directory / WEIGHTS), expected_weights(base, adapter)
    before = load_file(base / WEIGHTS)
    assert merged.keys() == expected.keys()
    assert any(not merged[name].equal(before[name]) for name in before)
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name])
    load(directory, "cpu")  # compares every tensor with the file
    assert (identity(directory).repo, identity(directory).revision) == (REPO, COMMIT)
    record = json.loads((directory / "checkpoint.json").read_text())
    assert (record["base"]["repo"], record["base"]["revision"]) == (BASE, COMMIT)
    assert not (directory / "base").exists() and (directory / "adapter" / ADAPTER_WEIGHTS).is_file()


def test_an_adapter_copied_by_hand_is_merged_into_a_checkpoint_of_the_volume(base, adapter, run, tmp_path):  # noqa: F811
    directory = shutil.copytree(adapter, checkpoint(tmp_path, "mine"))
    shutil.copytree(base, checkpoint(tmp_path, "base"))
    with pytest.raises(CheckpointError, match=f"adapter of {BASE}.*lab checkpoint lerobot --name mine"):
        load(directory, "cpu")
    change_config(directory, base_model_name_or_path="base")
    done = run("--name", "mine")
    assert done.returncode == 0, done.stderr
    load(directory, "cpu")


def change_config(directory, **changes):
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def without_one(directory):
    tensors = load_file(directory / ADAPTER_WEIGHTS)
    save_file(dict(list(tensors.items())[1:]), directory / ADAPTER_WEIGHTS)


def with_another(directory):
    tensors = load_file(directory / ADAPTER_WEIGHTS)
    save_file({**tensors, "base_model.model.other.lora_A.weight": torch.ones(1)}, directory / ADAPTER_WEIGHTS)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without_one, "does not fit its base: base_model.model"),
        (with_another, "does not fit its base: base_model.model.other.lora_A.weight"),
        (lambda directory: change_config(directory, r=RANK + 1), "does not fit its base: .*size mismatch"),
        (lambda directory: change_config(directory, target_modules=["nothing"]), "does not fit its base: .*nothing"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(base, adapter, change, text):
    change(adapter)
    before = sorted(path.name for path in adapter.iterdir())
    with pytest.raises(CheckpointError, match=text):
        merge_into_checkpoint(adapter, base)
    assert sorted(path.name for path in adapter.iterdir()) == before


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("act", {"dim_model": 32}, "size mismatch|has shape"),
        ("tdmpc", {}, "adapter of type 'act'; its base .* 'tdmpc'"),
    ],
)
def test_another_base_is_refused(checkpoints, adapter, kind, settings, text):
    with pytest.raises(CheckpointError, match=text):
        merge_into_checkpoint(adapter, checkpoints(kind, **settings))
    assert not (adapter / WEIGHTS).exists()


@pytest.mark.parametrize("name", ["", "/data/outputs/train/base", "base"])
def test_a_base_that_is_nowhere_names_the_field(adapter, name):
    change_config(adapter, base_model_name_or_path=name)
    with (
        pytest.raises(CheckpointError, match="which is not on this machine; set base_model_name_or_path"),
        base_of(adapter),
    ):
        pass
