"""Data sets of v3.0 between the lab and LeRobot's own classes: each reads what the other writes."""

import json

import numpy as np
import pytest
from lerobot.datasets.compute_stats import compute_episode_stats
from lerobot.datasets.lerobot_dataset import LeRobotDataset as TheirDataset
from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

from vla_datasets import conversion, metadata, statistics
from vla_datasets.checks import faults
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.v3_writing import V3Writer
from vla_datasets.writing import Writer

FPS, SIDE = 20, 64
LENGTHS, TASKS = (12, 9, 10), ("open the drawer", "push the plate", "open the drawer")
CAMERAS = ("observation.images.front", "observation.images.wrist")
FEATURES = {
    **{key: {"dtype": "video", "shape": (SIDE, SIDE, 3), "names": ["height", "width", "channels"]} for key in CAMERAS},
    "observation.state": {"dtype": "float32", "shape": (8,), "names": None},
    "action": {"dtype": "float32", "shape": (7,), "names": None},
    "gain": {"dtype": "float32", "shape": (1,), "names": None},
}
# Of 0 to 255. The lab's H.264 is nearly lossless; LeRobot's AV1 is not. Two decoders round colours differently.
ROUNDING, CODEC_MEAN = 3, 8


def episode(index):
    """Return an episode's columns and images: a square that moves, at another position in each frame and camera."""
    length, draw = LENGTHS[index], np.random.default_rng(index)
    columns = {"observation.state": draw.normal(size=(length, 8)), "action": draw.uniform(-1, 1, (length, 7))}
    columns["gain"] = np.full((length, 1), index / 2)
    images = {}
    for camera, key in enumerate(CAMERAS):
        images[key] = np.full((length, SIDE, SIDE, 3), 40, np.uint8)
        for step in range(length):
            at = 3 * step + 5 * camera + index
            images[key][step, at : at + 16, 2 * step : 2 * step + 16] = (200, 20 * (step % 12), 90)
    return {name: values.astype(np.float32) for name, values in columns.items()}, images


@pytest.fixture(scope="module", params=["v3.0", "converted"])
def ours(request, tmp_path_factory):
    """A set that the lab has written as v3.0, or as v2.1 and then converted."""
    root = tmp_path_factory.mktemp("ours")
    layout = V3Writer if request.param == "v3.0" else Writer
    writer = layout(root / "set", "panda", FPS, FEATURES)
    for index, task in enumerate(TASKS):
        writer.add(*episode(index), task)
    dataset = writer.finish()
    return dataset if request.param == "v3.0" else conversion.recode(dataset, root / "new", "lerobot-v3.0")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A set that LeRobot's own class has written."""
    directory = tmp_path_factory.mktemp("theirs") / "set"
    dataset = TheirDataset.create("lab/set", FPS, FEATURES, root=directory, robot_type="panda")
    for index, task in enumerate(TASKS):
        columns, images = episode(index)
        for step in range(LENGTHS[index]):
            dataset.add_frame({key: values[step] for key, values in (columns | images).items()} | {"task": task})
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    return directory


def assert_same_rows(dataset):
    assert [(e.length, e.tasks) for e in dataset.episodes] == [(n, (t,)) for n, t in zip(LENGTHS, TASKS, strict=True)]
    for index in range(len(LENGTHS)):
        columns, images = episode(index)
        for name, values in columns.items():
            np.testing.assert_array_equal(
                dataset.columns(index)[name], values.reshape(dataset.columns(index)[name].shape)
            )
        for key, expected in images.items():
            assert np.abs(dataset.frames(index, key).astype(int) - expected).mean() < CODEC_MEAN


def test_lerobot_reads_every_value_and_frame_of_the_labs_set(ours):
    dataset = TheirDataset("lab/set", root=ours.directory, video_backend="pyav")
    assert (len(dataset), dataset.num_episodes, dataset.fps) == (sum(LENGTHS), 3, FPS)
    row = 0
    for index, length in enumerate(LENGTHS):
        columns, _ = episode(index)
        frames = {key: ours.frames(index, key).astype(int) for key in CAMERAS}
        for step in range(length):
            item, row = dataset[row], row + 1
            assert item["task"] == TASKS[index] and item["episode_index"] == index and item["frame_index"] == step
            for name, values in columns.items():
                np.testing.assert_array_equal(item[name].numpy().reshape(-1), values[step])
            for key in CAMERAS:
                decoded = (255 * item[key].numpy().transpose(1, 2, 0)).round().astype(int)
                assert np.abs(decoded - frames[key][step]).max() <= ROUNDING


def test_lerobot_reads_chunks_of_actions_up_to_an_episodes_end(ours):
    chunk = {"action": [step / FPS for step in range(4)]}
    dataset = TheirDataset("lab/set", root=ours.directory, video_backend="pyav", delta_timestamps=chunk)
    item = dataset[LENGTHS[0] - 2]
    expected = episode(0)[0]["action"][[-2, -1, -1, -1]]
    np.testing.assert_array_equal(item["action"].numpy(), expected)
    assert item["action_is_pad"].tolist() == [False, False, True, True]


def test_statistics_are_lerobots_own(ours):
    """As its own function computes them from the same rows; its quantiles come from histograms of 5,000 bins."""
    meta = TheirDataset("lab/set", root=ours.directory, video_backend="pyav").meta
    columns = {key: np.concatenate([episode(index)[0][key] for index in range(3)]) for key in ("action", "gain")}
    columns["gain"] = columns["gain"].reshape(-1)
    expected = compute_episode_stats(columns, {key: FEATURES[key] for key in columns})
    for key, stats in expected.items():
        assert stats.keys() == meta.stats[key].keys()
        for name, values in stats.items():
            if name.startswith("q"):  # numpy interpolates between 31 rows, LeRobot within a bin
                assert (np.abs(meta.stats[key][name] - values) <= 0.1).all()
            else:
                np.testing.assert_allclose(meta.stats[key][name], values, atol=1e-6)
    assert set(meta.stats) == set(ours.features) and meta.stats[CAMERAS[0]]["q99"].shape == (3, 1, 1)


def test_the_lab_reads_every_value_and_frame_of_lerobots_set(theirs):
    dataset = LeRobotDataset(theirs)
    assert_same_rows(dataset)
    grave = [str(fault) for fault in faults(theirs) if fault.grave]
    codec = [line for line in grave if "the codec is" in line]
    # It merges quantiles of episodes as their mean.
    assert [line for line in grave if line not in codec] == [
        line for line in grave if "q" in line and "the rows' is" in line
    ]
    stated = json.loads((theirs / metadata.STATS).read_text())
    for key in ("observation.state", "action", "gain"):
        rows = np.concatenate([episode(index)[0][key] for index in range(3)])
        for name in ("min", "max", "mean", "std", "count"):
            np.testing.assert_allclose(stated[key][name], statistics.of_rows(rows)[name], atol=1e-5)


def test_statistics_of_lerobots_set_are_written_again(theirs, tmp_path):
    conversion.recode(LeRobotDataset(theirs), tmp_path / "again", "lerobot-v3.0")
    assert faults(tmp_path / "again") == []
    assert_same_rows(LeRobotDataset(tmp_path / "again"))


def test_the_lab_reads_what_lerobots_converter_makes_of_its_set(tmp_path):
    writer = Writer(tmp_path / "set", "panda", FPS, FEATURES)
    for index, task in enumerate(TASKS):
        writer.add(*episode(index), task)
    writer.finish()
    convert_dataset("lab/set", root=tmp_path / "set", push_to_hub=False)
    dataset = LeRobotDataset(tmp_path / "set")
    assert dataset.info["codebase_version"] == "v3.0"
    assert_same_rows(dataset)
