"""Every embodiment: its names are its own, and nothing is lost or mixed up between contract and network."""

import json

import numpy as np
import pytest

from services.gr00t.checkpoint.embodiment import PROJECTORS, SHIPPED, embodiment, read, write
from services.gr00t.checkpoint.tiny import HORIZON, metadata
from services.gr00t.service.layout import layout
from tests.gr00t.harness import EVERY, layout_of, observe
from vla_contract import InvalidObservation
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE, OSC_POSE, total
from vla_modelkit.checkpoint import CheckpointError

every = pytest.mark.parametrize("name", EVERY)


@every
def test_an_embodiment_is_consistent_and_is_written_as_it_is_read(name, tmp_path):
    one = embodiment(name)
    assert one.name == name and one.projector == PROJECTORS[one.tag]
    assert "4af2b622" in one.source, "where its names are written"
    assert one.denoising_steps >= 1 and one.language.startswith("annotation.")
    assert one.profile == ("groot-n1.5" if name.startswith("libero") else None)
    write(tmp_path / "own.json", one)
    assert read(tmp_path / "own.json") == one
    sizes = layout_of(name)
    assert total(sizes.action_parts) == sizes.action_size and total(sizes.state_parts) == sizes.state_size
    if not one.action_parts:
        assert [part.name for part in sizes.action_parts] == list(one.action)
        assert {part.unit for part in sizes.action_parts} == {"as recorded"}


@every
def test_the_state_goes_to_its_parts_in_order(name):
    sizes = layout_of(name)
    observation = observe(sizes)
    parts = sizes.named_state(observation)
    assert list(parts) == list(sizes.embodiment.state)
    assert np.array_equal(np.concatenate(list(parts.values())), observation.state)
    encoded = sizes.encode_state(observation)
    assert encoded.dtype == np.float32 and len(encoded) == sum(part.width for part in sizes.state)


@every
def test_actions_are_the_networks_first_numbers_and_are_named_in_order(name):
    sizes = layout_of(name)
    normalised = np.random.default_rng(1).uniform(-1, 1, (3, HORIZON, 32)).astype(np.float32)
    actions = sizes.decode_actions(normalised)
    assert actions.shape == (3, HORIZON, sizes.action_size) and actions.dtype == np.float32
    parts = sizes.named_actions(actions)
    assert list(parts) == [f"action.{key}" for key in sizes.embodiment.action]
    assert np.array_equal(np.concatenate(list(parts.values()), axis=-1), actions)
    width = sum(part.width for part in sizes.action)
    padded = np.concatenate((normalised[..., :width], np.full_like(normalised[..., width:], 7.0)), axis=-1)
    assert np.array_equal(sizes.decode_actions(padded), actions), "what follows is padding"


def test_liberos_numbers_are_in_the_evaluators_words():
    one = embodiment("libero")
    assert one.action_parts == (*OSC_POSE, GRIPPER_OPENS) and one.state_parts == HAND_STATE
    assert embodiment("libero_mean_std").action_parts == one.action_parts


@pytest.mark.parametrize(("kind", "size"), [("action", 7), ("state", 8)])
def test_a_size_that_the_embodiments_parts_do_not_have_is_refused(kind, size):
    one = embodiment("libero")
    wide = metadata(one, 96)
    wide["modalities"][kind]["gripper"]["shape"] = [6]
    wide["statistics"][kind]["gripper"] = {name: [0.0] * 6 for name in ("min", "max")}
    with pytest.raises(ValueError, match=rf"12 numbers .*gripper \[6\].*expected {size}"):
        layout(one, wide)


def test_liberos_state_and_cameras_are_the_evaluators():
    sizes = layout_of("libero", side=256)
    assert sizes.state_size == 8 and sizes.image_hw == (256, 256)
    assert dict(sizes.embodiment.cameras) == {"agentview": "image", "robot0_eye_in_hand": "wrist_image"}
    parts = sizes.named_state(observe(sizes, state=np.arange(8, dtype=np.float32)))
    assert [parts[key].tolist() for key in ("x", "yaw", "gripper")] == [[0.0], [5.0], [6.0, 7.0]]


@pytest.mark.parametrize("state", [None, np.zeros(7, np.float32), np.zeros(9, np.float32)])
def test_a_state_of_another_size_is_refused_naming_both(state):
    sizes = layout_of("libero")
    with pytest.raises(InvalidObservation, match=r"expects 8: x, y, z, roll, pitch, yaw, gripper \[2\]"):
        sizes.encode_state(observe(sizes, state=state))


@pytest.mark.parametrize("kind", ["video", "state", "action"])
def test_a_name_that_the_checkpoint_lacks_is_named(kind):
    one = embodiment("libero")
    poor = metadata(one, 96)
    del poor["modalities"][kind][{"video": "wrist_image"}.get(kind, "roll")]
    with pytest.raises(ValueError, match=f"no {kind} .*VLALAB_GR00T_EMBODIMENT"):
        layout(one, poor)


@pytest.mark.parametrize("values", [None, [], [0.0, 1.0], [float("nan")]])
def test_statistics_that_are_missing_or_no_numbers_are_named(values):
    one = embodiment("libero")
    poor = metadata(one, 96)
    poor["statistics"]["action"]["yaw"]["max"] = values
    with pytest.raises(CheckpointError, match="no usable 'max' of action 'yaw'.*'min_max'"):
        layout(one, poor)


def test_cameras_of_two_sizes_are_refused():
    one = embodiment("libero")
    mixed = metadata(one, 96)
    mixed["modalities"]["video"]["image"]["resolution"] = [128, 96]
    with pytest.raises(ValueError, match="2 sizes"):
        layout(one, mixed)


def test_unknown_embodiment_suggests_the_closest_name():
    with pytest.raises(ValueError, match="did you mean 'libero'.*JSON file"):
        embodiment("libbero")


ARM = {"name": "arm", "size": 5}  # without a unit
BROKEN = [
    ({"camera": {}}, "did you mean 'cameras'"),
    ({"action": {}}, "must not be empty"),
    ({"tag": "gr2"}, "did you mean 'gr1'"),
    ({"state": {"arm": {"normalization": "minmax"}}}, "did you mean 'min_max'"),
    ({"action": {"arm": {"normalization": "sin_cos"}}}, "cannot be undone"),
    ({"cameras": {"a": "front", "b": "front"}}, "twice"),
    ({"action_parts": [ARM]}, "unit"),
    ({"state": ["arm"]}, "embodiment"),
    ({"denoising_steps": 0}, "1 or more"),
]


@pytest.mark.parametrize(("changes", "words"), BROKEN)
def test_invalid_embodiment_file_raises_with_the_field(changes, words, tmp_path):
    file = tmp_path / "robot.json"
    file.write_text(json.dumps({**json.loads((SHIPPED / "so100.json").read_text()), **changes}))
    with pytest.raises(CheckpointError, match=words) as caught:
        embodiment(str(file))
    assert str(file) in str(caught.value)
