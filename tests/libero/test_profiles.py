"""The profiles, constant by constant, and what every profile must satisfy."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from services.libero.profiles import PROFILES
from services.libero.simulator import suites
from vla_evaluation.pictures.images import prepare
from vla_evaluation.pictures.transforms import resize_with_pad
from vla_evaluation.profiles import choose

STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}


SCRIPTS = {  # profile: step limits, trials, seed, actions executed of a chunk, arm
    "openvla": (STEPS, 50, 0, None, ""),
    "openvla-oft": (STEPS, 50, 0, 8, "robosuite-1.4.1"),  # libero_requirements.txt
    "groot-n1.5": (STEPS | {"libero_goal": 600, "libero_10": 1000}, 5, 0, 1, ""),
    "openpi": (STEPS, 50, 7, 5, "robosuite-1.4.1"),  # its requirements.txt
    "lerobot": (STEPS | {"libero_spatial": 280}, 10, 1000, None, ""),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_profiles_have_the_reference_scripts_numbers(name):
    """The rest is compared with the scripts' loops in test_profile_loops.py, but for OpenVLA's images."""
    profile = PROFILES[name]
    numbers = (profile.max_steps, profile.trials, profile.env_seed, profile.execute, profile.robot)
    assert numbers == SCRIPTS[name]
    assert (profile.wait_steps, profile.wait_action) == (10, (0, 0, 0, 0, 0, 0, -1))


@pytest.mark.parametrize("name", ["openvla", "openvla-oft"])
def test_openvlas_images_are_those_of_its_script(name):
    """experiments/robot/libero/run_libero_eval.py and its helpers, openvla@c8f03f48."""
    profile = PROFILES[name]
    assert (profile.camera_size, profile.rotate_180, profile.jpeg_quality) == (256, True, 95)
    assert (profile.image_size, profile.resize, profile.crop_area) == (224, "lanczos3", 0.9)
    assert profile.unnorm_keys_for("libero_goal") == ("libero_goal", "libero_goal_no_noops")


def test_the_oft_server_profile_differs_in_the_crop_alone():
    """vla-scripts/deploy.py and prepare_images_for_vla, openvla-oft@213c5ff8: the server crops."""
    served, local = vars(PROFILES["openvla-oft-server"]), vars(PROFILES["openvla-oft"])
    assert {name for name in local if served[name] != local[name]} == {"name", "source", "crop_area"}
    assert served["crop_area"] is None


def test_openpi_images_are_turned_and_resized_by_pillow():
    frame = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    turned = Image.fromarray(np.ascontiguousarray(frame[::-1, ::-1]))
    assert np.array_equal(prepare(frame, PROFILES["openpi"]), turned.resize((224, 224), Image.Resampling.BILINEAR))


def test_non_square_image_is_padded_with_black():
    wide = resize_with_pad(np.full((100, 200, 3), 255, np.uint8), 224)
    assert wide.shape == (224, 224, 3)
    assert (wide[:56] == 0).all() and (wide[56:168] == 255).all() and (wide[168:] == 0).all()


def test_groot_images_are_the_rendered_ones_turned():
    frame = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    assert np.array_equal(prepare(frame, PROFILES["groot-n1.5"]), frame[::-1, ::-1])


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile(name):
    one = choose(PROFILES, name)
    assert one.name == name and one.source
    for suite in suites.SUITES:
        assert one.steps_for(suite) > one.wait_steps
    assert len(one.wait_action) == 7 and one.wait_action[6] == -1.0
    for row in one.published:
        assert row.source and all(0 < percent <= 100 for percent in row.success_percent.values())
        assert set(row.success_percent) <= set(suites.SUITES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.trials = 1
    with pytest.raises(TypeError):
        one.max_steps["libero_goal"] = 1


def test_published_figures():
    for name, figures in {"openvla-oft": [97.6, 98.4, 97.9, 94.5], "openpi": [98.8, 98.2, 98.0, 92.4]}.items():
        percent = PROFILES[name].published_for("libero_goal")[0].success_percent
        assert [percent[suite] for suite in suites.SUITES[:4]] == figures
    assert not PROFILES["lerobot"].published_for("libero_10")[0].comparable  # measured on one init state a task
    rows = {row.model: row for row in PROFILES["openvla"].published_for("libero_10")}
    reference = [row for row in rows.values() if row.comparable]
    assert len(reference) == 1
    figures = reference[0].success_percent
    assert [figures[name] for name in suites.SUITES[:4]] == [84.7, 88.4, 79.2, 53.7]
    assert round(sum(figures.values()) / 4, 1) == 76.5
    assert PROFILES["openvla"].published_for("libero_90") == ()
    (row,) = PROFILES["groot-n1.5"].published_for("libero_90")
    solved = {"libero_spatial": 46, "libero_object": 46, "libero_goal": 43, "libero_10": 38}  # of 50, its README says
    percent = {suite: 2.0 * count for suite, count in solved.items()} | {"libero_90": round(402 / 4.5, 1)}
    assert row.comparable and dict(row.success_percent) == percent


def test_unknown_names():
    with pytest.raises(ValueError, match="did you mean 'openvla'"):
        choose(PROFILES, "openvl")
    with pytest.raises(ValueError, match="no step limit"):
        PROFILES["openvla"].steps_for("libero_100")
