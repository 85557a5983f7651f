"""Checkpoints that LeRobot loads in silence, or not at all, are refused with one sentence."""

import json
import shutil

import numpy as np
import pytest
import torch
from lerobot.policies.factory import get_policy_class
from safetensors.torch import load_file, save_file

from services.lerobot import checkpoint
from services.lerobot.checkpoint import load
from services.lerobot.policy import load_policy
from services.lerobot.reference import random_observation
from services.lerobot.settings import ModelSettings
from vla_modelkit.checkpoint import CheckpointError

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture
def copy(checkpoints, tmp_path):
    """Returns a function: a copy of a tiny checkpoint, to be damaged."""
    return lambda kind="tdmpc": shutil.copytree(checkpoints(kind), tmp_path / kind)


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_weights(path, change):
    tensors = load_file(path)
    save_file(change(tensors), path)


def half(tensors):
    return dict(list(tensors.items())[::2])


def reshaped(tensors):
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    return {**tensors, name: torch.zeros(3, 3)}


@pytest.mark.parametrize(
    ("change", "text"),
    [(half, "lacks"), (reshaped, "shape"), (lambda tensors: {"x": torch.zeros(1)}, "lacks")],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(copy, change, text):
    directory = copy()
    change_weights(directory / WEIGHTS, change)
    with pytest.raises(CheckpointError, match=text):
        load(directory, "cpu")


def test_weights_that_lerobot_does_not_load_are_noticed(copy, monkeypatch):
    class Silent:
        """A loader that returns random weights, as some of LeRobot's do after an error."""

        @staticmethod
        def from_pretrained(path, config):
            return get_policy_class("tdmpc")(config)

    monkeypatch.setattr(checkpoint, "get_policy_class", lambda kind: Silent)
    with pytest.raises(CheckpointError, match="LeRobot did not load it"):
        load(copy(), "cpu")


@pytest.fixture
def two_data_sets(copy):
    """An ACT checkpoint whose processors hold the statistics of two data sets, as published base models do."""
    directory = copy("act")
    for path in directory.glob("policy_*normalizer_processor.safetensors"):
        change_weights(
            path,
            lambda tensors: (
                {f"so100.buffer.{name}": tensor for name, tensor in tensors.items()}
                | {f"so101.buffer.{name}": 2 * tensor for name, tensor in tensors.items()}
            ),
        )
    return directory


def test_statistics_of_several_data_sets_are_refused_with_the_choices(two_data_sets):
    with pytest.raises(CheckpointError, match=r"VLALAB_LEROBOT_STATISTICS=so100\.buffer") as error:
        load(two_data_sets, "cpu")
    assert "has no mean and no std for it; it has those of so100.buffer, so101.buffer" in str(error.value)
    with pytest.raises(CheckpointError, match=r"'so100\.bufer' not found; did you mean 'so100\.buffer'"):
        load(two_data_sets, "cpu", statistics="so100.bufer")


def test_selected_statistics_are_applied_and_reported(two_data_sets, checkpoints):
    def served(directory, **settings):
        policy = load_policy(ModelSettings(checkpoint=str(directory), device="cpu", **settings))
        return policy.info(), policy.act([random_observation(policy.info(), "session", 0)])[0].actions

    info, actions = served(two_data_sets, statistics="so100.buffer")
    assert info.details["statistics"] == "so100.buffer"
    info, expected = served(checkpoints("act"))
    assert "statistics" not in info.details
    np.testing.assert_array_equal(actions, expected)
    assert not np.allclose(served(two_data_sets, statistics="so101.buffer")[1], expected)


def test_a_selection_among_statistics_of_one_data_set_is_refused(checkpoints):
    with pytest.raises(CheckpointError, match="of one data set; remove VLALAB_LEROBOT_STATISTICS=so100"):
        load(checkpoints("act"), "cpu", statistics="so100")


def test_missing_processors_are_named_and_statistics_in_the_weights_name_the_migration(copy):
    directory = copy()
    for path in directory.glob("policy_*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="has no policy_preprocessor.json and no policy_postprocessor.json"):
        load(directory, "cpu")
    name = "normalize_inputs.buffer_observation_state.mean"
    change_weights(directory / WEIGHTS, lambda tensors: {**tensors, name: torch.zeros(8)})
    with pytest.raises(CheckpointError, match="lerobot.processor.migrate_policy_normalization --pretrained-path"):
        load(directory, "cpu")


def test_unknown_fields_are_named_and_harmless_ones_dropped(copy):
    directory = copy()
    change_json(directory / CONFIG, lambda config: config.update(optimizer_foreach=True, gradient_checkpointing=False))
    load(directory, "cpu")
    change_json(directory / CONFIG, lambda config: config.update(mlp_hidden_dim=3))
    with pytest.raises(CheckpointError, match="has mlp_hidden_dim, unknown to LeRobot"):
        load(directory, "cpu")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"type": "actt"}, "did you mean 'act'"),
        ({"type": None}, "not one of LeRobot's"),
        ({"type": "pi0_fast"}, "VLALAB_LEROBOT_REMOTE_CODE=true"),
    ],
)  # fmt: skip
def test_types_that_cannot_be_served_are_refused(copy, config, text):
    directory = copy()
    change_json(directory / CONFIG, lambda content: content.update(config))
    with pytest.raises(CheckpointError, match=text):
        load(directory, "cpu")


def test_a_missing_tokenizer_repository_names_the_command(copy, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    directory = copy("xvla")
    shutil.rmtree(directory / "repositories")
    with pytest.raises(
        CheckpointError, match=r"needs tiny/bart \(tokenizer_name\).*lab checkpoint lerobot --name xvla"
    ):
        load(directory, "cpu")


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        ("act", {"cameras": "left=agentview"}, "names left; the checkpoint's images are image, image2"),
        ("act", {"cameras": "image2=agentview"}, "two images of the checkpoint are one camera"),
        ("act", {"robot": "aloha"}, "robot aloha has"),
        ("act", {"robot": "libreo"}, "did you mean 'libero'"),
        ("xvla", {"robot": "libero"}, "absolute poses"),
        ("xvla", {}, "images image, image2 belong to no camera"),
    ],
)  # fmt: skip
def test_other_robots_and_cameras_are_refused(checkpoints, kind, settings, text):
    with pytest.raises(CheckpointError, match=text):
        load_policy(ModelSettings(checkpoint=str(checkpoints(kind)), device="cpu", **settings))


def test_other_sizes_are_served_as_an_unknown_robots(checkpoints):
    directory = checkpoints("tdmpc", state=5, action=3)
    policy = load_policy(ModelSettings(checkpoint=str(directory), device="cpu", cameras="image=top"))
    info = policy.info()
    assert (info.details["robot"], info.state_size, info.cameras) == ("unknown", 5, ("top",))
    assert sum(part.size for part in info.action) == 3
