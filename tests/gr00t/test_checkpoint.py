"""Checkpoints: what is missing or does not fit is named, with the way to get one that does."""

import json

import numpy as np
import pytest

from services.gr00t.checkpoint.directory import METADATA, OLD_RECORD, PUBLISHED, find
from services.gr00t.checkpoint.embodiment import EMBODIMENT_FILE, embodiment, shipped, write
from services.gr00t.checkpoint.tiny import metadata
from services.gr00t.checkpoints import Get
from services.gr00t.service.layout import layout
from vla_common.volume import Volume
from vla_modelkit.checkpoint import RECORD, CheckpointError, identity


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


@pytest.fixture
def directory(volume):
    """A folder with everything but sensible weights: enough for what happens before they are read."""
    directory = volume.checkpoints / "mine"
    (directory / METADATA).parent.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "gr00t_n1_5"}))
    (directory / METADATA).write_text(json.dumps({"new_embodiment": metadata(embodiment("libero"), 256)}))
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


@pytest.mark.parametrize("name", ["", "nonesuch"])
def test_no_checkpoint_says_how_to_get_one(volume, name):
    with pytest.raises(CheckpointError) as caught:
        find(name, volume)
    for words in ("--suite libero_goal", PUBLISHED["base"].repo, PUBLISHED["base"].revision, "VLALAB_GR00T_CHECKPOINT"):
        assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["openvla", "gr00t_n1", "Gr00tN1d6", "Gr00tN1d7"])
def test_another_model_is_refused(volume, directory, kind):
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(CheckpointError, match=f"'{kind}', another model; expected 'gr00t_n1_5'.*checkpoint gr00t"):
        find("mine", volume)


@pytest.mark.parametrize("file", ["config.json", METADATA])
@pytest.mark.parametrize(("text", "words"), [(None, "is missing"), ("{", "is not JSON"), ("[]", "not an object")])
def test_a_file_that_is_missing_or_broken_is_named(volume, directory, file, text, words):
    (directory / file).unlink() if text is None else (directory / file).write_text(text)
    with pytest.raises(CheckpointError, match=words) as caught:
        find("mine", volume)
    assert file in str(caught.value)


def test_the_embodiment_is_the_named_else_the_checkpoints_own_else_the_recorded(volume, directory):
    (directory / RECORD).write_text(json.dumps({"embodiment": "libero_mean_std", "suite": "libero_goal"}))
    found = find("mine", volume)
    assert found.embodiment().name == "libero_mean_std" and found.suites == ("libero_goal",)
    assert found.embodiment("libero").name == "libero"
    write(directory / EMBODIMENT_FILE, embodiment("so100"))
    assert find("mine", volume).embodiment().name == "so100", "a file of its own goes before the record"


GOAL, SPATIAL = PUBLISHED["libero_goal"].repo, PUBLISHED["libero_spatial"].repo
MIN_MAX, MEAN_STD = 0.05, 0.025  # what 0.5 of the network means to the arm, whose data are within ±0.1, deviation 0.05
ASK = r"VLALAB_GR00T_EMBODIMENT=NAME ./lab up gr00t --checkpoint NAME_OF_IT.*libero, libero_mean_std"
RECORDED = [
    ("mine", None, ASK),
    ("mine", {"eagle": {}}, ASK),
    ("gr00t-n1.5-libero-goal-posttrain", None, MEAN_STD),
    ("gr00t-n1.5-libero-spatial-posttrain", None, MIN_MAX),
    ("gr00t-n1.5-libero-goal-posttrain", {"repo": "someone/gr00t-n1.5-libero-goal-posttrain"}, ASK),
    ("mine", {"repo": GOAL}, MEAN_STD),
    ("mine", {"repo": SPATIAL}, MIN_MAX),
    ("mine", {"repo": GOAL, "embodiment": "libero_mean_std"}, MEAN_STD),
    ("mine", {"repo": SPATIAL, "embodiment": "libero"}, MIN_MAX),
    ("mine", {"repo": GOAL, "embodiment": "libero"},
     "'libero_mean_std'.*checkpoint gr00t --suite libero_goal --name mine"),
    ("mine", {"repo": "a/b", "embodiment": "libero"},
     "--repo a/b --name mine --embodiment NAME.*libero, libero_mean_std"),
    ("mine", {"repo": "a/b", "embodiment": "libero", "embodiment_from": "--embodiment"}, MIN_MAX),
    ("mine", {"repo": "a/b", "embodiment": "libero_mean_std"}, MEAN_STD),
    ("mine", {"repo": "random-tiny", "embodiment": "libero"}, MIN_MAX),
]  # fmt: skip


@pytest.mark.parametrize(("name", "record", "expected"), RECORDED)
def test_numbers_are_scaled_as_the_checkpoint_was_trained_or_not_at_all(volume, directory, name, record, expected):
    directory = directory.rename(directory.parent / name)
    if record is not None:
        (directory / RECORD).write_text(json.dumps(record))
    found = find(name, volume)
    scaled = {one: action_of(found, one) for one in ("libero", "libero_mean_std")}
    assert scaled == pytest.approx({"libero": MIN_MAX, "libero_mean_std": MEAN_STD}), "named: what it is called counts"
    if isinstance(expected, str):
        with pytest.raises(CheckpointError, match=expected.replace("NAME_OF_IT", name)):
            found.embodiment()
    else:
        assert action_of(found) == pytest.approx(expected)
        assert found.embodiment_from()
        assert found.suites == (("libero_goal",) if GOAL in (record or {}).values() else found.suites)
        against = ", against 'libero_mean_std' of the checkpoint" if expected == MEAN_STD else ""
        assert found.embodiment_from("libero") == f"VLALAB_GR00T_EMBODIMENT{against}"


def action_of(found, name=""):
    """Returns what the arm does where the network's answer is 0.5."""
    one = found.embodiment(name)
    sizes = layout(one, found.metadata[one.tag])
    arm = sizes.decode_actions(np.full((1, 32), 0.5))[0, :6]
    assert len(set(arm.round(6))) == 1
    return float(arm[0])


@pytest.mark.parametrize("repo", [GOAL, "someone/else"])
def test_an_embodiment_of_another_scale_than_the_published_one_is_refused(repo):
    if repo == GOAL:
        with pytest.raises(ValueError, match="--embodiment 'libero' .*'libero_mean_std'"):
            Get(repo=repo, embodiment="libero")
        with pytest.raises(ValueError, match="--embodiment 'libero' "):
            Get(suite="libero_goal", embodiment="libero")
        assert Get(suite="base", embodiment="gr1_arms_only").embodiment, "the base has statistics for several robots"
    assert Get(repo=repo, embodiment="libero_mean_std").published_suite == ("libero_goal" if repo == GOAL else None)
    with pytest.raises(ValueError, match="did you mean 'libero'"):
        Get(repo=repo, embodiment="liberoo")


@pytest.mark.parametrize("config", [None, "{}"])
def test_an_adapter_alone_is_named(volume, directory, config):
    (directory / "config.json").unlink() if config is None else (directory / "config.json").write_text(config)
    (directory / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="an adapter alone, to be merged"):
        find("mine", volume)


def test_a_manifest_under_its_earlier_name_is_read(volume, directory):
    (directory / OLD_RECORD).write_text(json.dumps({"repo": "a/b", "revision": "c", "embodiment": "libero_mean_std"}))
    found = find("mine", volume)
    assert found.embodiment().name == "libero_mean_std"
    described = identity(found.directory, found.record)
    assert (described.repo, described.revision, described.sha256) == ("a/b", "c", identity(directory).sha256)


def test_a_published_checkpoint_that_was_put_there_by_hand_is_known_by_its_name(volume, directory):
    goal = PUBLISHED["libero_goal"]
    directory.rename(directory.parent / goal.repo.split("/")[1])
    assert find(goal.repo.split("/")[1], volume).embodiment().name == goal.embodiment == "libero_mean_std"


def test_an_embodiment_without_statistics_names_those_there_are(volume, directory):
    with pytest.raises(
        CheckpointError, match=r"has statistics for new_embodiment; .*'oxe_droid'.*\(libero, libero_mean_std\)"
    ):
        find("mine", volume).embodiment("oxe_droid")


def test_the_base_model_says_what_libero_needs(volume, directory):
    (directory / METADATA).write_text(json.dumps({"gr1": {}, "oxe_droid": {}}))
    with pytest.raises(CheckpointError, match="statistics for gr1, oxe_droid.*fine-tuned.*libero-spatial"):
        find("mine", volume).embodiment("libero")
    with pytest.raises(CheckpointError, match="statistics for gr1, oxe_droid.*does not state"):
        find("mine", volume).embodiment()


@pytest.mark.parametrize("suite", PUBLISHED)
def test_every_published_checkpoint_is_pinned_and_has_an_embodiment(suite):
    wanted = PUBLISHED[suite]
    assert len(wanted.revision) == 40 and int(wanted.revision, 16)
    assert wanted.embodiment in shipped()
