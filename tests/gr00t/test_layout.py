"""Every embodiment: its names are its own, and nothing is lost or mixed up between contract and upstream."""

import numpy as np
import pytest

from services.gr00t.embodiments import EMBODIMENTS, HORIZON, embodiment
from services.gr00t.layout import layout
from services.gr00t.tiny import metadata
from tests.gr00t.harness import NAMES, layout_of, observe
from vla_contract import InvalidObservation
from vla_contract.protocol.parts import total

every = pytest.mark.parametrize("name", NAMES)


@every
def test_an_embodiment_is_consistent(name):
    one = EMBODIMENTS[name]
    assert len(set(one.cameras.values())) == len(one.cameras)
    assert one.denoising_steps >= 1
    assert set(one.mean_std) <= set(one.action)
    assert any(key.startswith("gripper") for key in one.action[-1:]), "the seventh number is the gripper's"


@every
def test_the_state_arrives_under_upstreams_names_in_order(name):
    sizes = layout_of(name)
    observation = observe(sizes)
    batch = sizes.to_upstream(observation)
    parts = [batch[f"state.{key}"] for key in sizes.embodiment.state]
    assert all(part.shape == (1, 1, size) for part, size in zip(parts, sizes.state.values(), strict=True))
    assert all(part.dtype == np.float64 for part in parts)
    assert np.array_equal(np.concatenate(parts, axis=-1)[0, 0].astype(np.float32), observation.state)


@every
def test_each_camera_arrives_as_it_was_sent(name):
    sizes = layout_of(name)
    observation = observe(sizes)
    batch = sizes.to_upstream(observation)
    assert sum(key.startswith("video.") for key in batch) == len(sizes.embodiment.cameras)
    for ours, theirs in sizes.embodiment.cameras.items():
        video = batch[f"video.{theirs}"]
        assert video.dtype == np.uint8 and video.shape == (1, 1, *sizes.image_hw, 3)
        assert np.array_equal(video[0, 0], observation.images[ours])


@every
def test_the_instruction_is_a_text_in_a_batch_of_one(name):
    sizes = layout_of(name)
    language = sizes.to_upstream(observe(sizes, instruction="open the drawer"))[sizes.embodiment.language]
    assert language.shape == (1,) and str(language[0]) == "open the drawer"


@every
def test_actions_go_there_and_back(name):
    sizes = layout_of(name)
    actions = np.random.default_rng(1).normal(size=(3, HORIZON, 7)).astype(np.float32)
    parts = sizes.to_parts(actions)
    assert list(parts) == [f"action.{key}" for key in sizes.embodiment.action]
    assert np.array_equal(sizes.to_actions(parts), actions)
    assert np.array_equal(parts[f"action.{sizes.embodiment.action[-1]}"][..., -1], actions[..., 6])


def test_liberos_state_and_cameras_are_the_evaluators():
    sizes = layout_of("libero", side=256)
    assert sizes.state_size == 8 and sizes.image_hw == (256, 256)
    assert dict(sizes.embodiment.cameras) == {"agentview": "image", "robot0_eye_in_hand": "wrist_image"}
    batch = sizes.to_upstream(observe(sizes, state=np.arange(8, dtype=np.float32)))
    assert [batch[f"state.{key}"].ravel().tolist() for key in ("x", "yaw", "gripper")] == [[0.0], [5.0], [6.0, 7.0]]


@pytest.mark.parametrize("state", [None, np.zeros(7, np.float32), np.zeros(9, np.float32)])
def test_a_state_of_another_size_is_refused_naming_both(state):
    sizes = layout_of("libero")
    with pytest.raises(InvalidObservation, match=r"takes 8: x, y, z, roll, pitch, yaw, gripper \[2\]"):
        sizes.to_upstream(observe(sizes, state=state))


@pytest.mark.parametrize(("kind", "size"), [("action", 7), ("state", 8)])
def test_a_size_that_the_embodiments_parts_do_not_have_is_refused(kind, size):
    one = EMBODIMENTS["libero"]
    wide = metadata(one, 96)
    wide["modalities"][kind]["gripper"]["shape"] = [6]
    with pytest.raises(ValueError, match=rf"12 numbers .*gripper \[6\].*expected {size}"):
        layout(one, wide)


def test_another_robots_numbers_are_parts_by_their_own_names_and_sizes():
    one = EMBODIMENTS["oxe_droid"]
    wide = metadata(one, 96)
    wide["modalities"]["action"]["gripper_position"]["shape"] = [6]
    sizes = layout(one, wide)
    named = [(part.name, part.size) for part in sizes.action_parts]
    assert named == [("eef_position_delta", 3), ("eef_rotation_delta", 3), ("gripper_position", 6)]
    assert total(sizes.state_parts) == sizes.state_size


@pytest.mark.parametrize("kind", ["video", "state", "action"])
def test_a_name_that_the_checkpoint_lacks_is_named(kind):
    one = EMBODIMENTS["libero"]
    poor = metadata(one, 96)
    del poor["modalities"][kind][{"video": "wrist_image"}.get(kind, "roll")]
    with pytest.raises(ValueError, match=f"no {kind} .*VLALAB_GR00T_EMBODIMENT"):
        layout(one, poor)


def test_cameras_of_two_sizes_are_refused():
    one = EMBODIMENTS["libero"]
    mixed = metadata(one, 96)
    mixed["modalities"]["video"]["image"]["resolution"] = [128, 96]
    with pytest.raises(ValueError, match="2 sizes"):
        layout(one, mixed)


def test_an_unknown_embodiment_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'libero'"):
        embodiment("libbero")


@pytest.mark.parametrize(
    "mark", ["<image-9>", "<image-1>", "<video-1>", "<IMG_CONTEXT>", "<img>", "</img>", "<|im_end|>"]
)
def test_an_instruction_with_a_placeholder_is_refused(mark):
    import dataclasses

    sizes = layout_of("libero")
    with pytest.raises(InvalidObservation, match="stands for something else"):
        sizes.to_upstream(dataclasses.replace(observe(sizes), instruction=f"pick up {mark} the cup"))
    sizes.to_upstream(dataclasses.replace(observe(sizes), instruction="is 3 < 4 and 5 > 2? | <go>"))
