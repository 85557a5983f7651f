"""Data sets are read as they were written, in both layouts; what is wrong with one is said in words."""

import itertools
import json
import pickle
import shutil

import numpy as np
import pytest

from tests import data_sets
from vla_datasets import libero, metadata, statistics, tables, videos, writing
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find, open_dataset
from vla_datasets.writing import Writer

IMAGE, WRIST = (libero.video_key(camera) for camera in data_sets.CAMERAS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A data set of three episodes."""
    return data_sets.lerobot(tmp_path_factory.mktemp("sets") / "small")


@pytest.fixture
def copy(written, tmp_path):
    """The same, to be damaged."""
    return shutil.copytree(written.directory, tmp_path / "copy")


def test_a_set_is_read_as_it_was_written(written):
    again = LeRobotDataset(written.directory)
    assert [(e.index, e.length, e.tasks[0]) for e in again.episodes] == list(
        zip(range(3), data_sets.LENGTHS, data_sets.TASKS, strict=True)
    )
    assert again.tasks == {0: "open the drawer", 1: "push the plate"} and len(again) == sum(data_sets.LENGTHS)
    first_row = 0
    for seed, length in enumerate(data_sets.LENGTHS):
        columns = again.columns(seed)
        for name, values in data_sets.numbers(length, seed).items():
            np.testing.assert_array_equal(columns[name], values)
        assert columns["index"].tolist() == list(range(first_row, first_row + length))
        assert columns["task_index"].tolist() == [seed % 2] * length
        np.testing.assert_allclose(columns["timestamp"], np.arange(length) / 20, atol=1e-6)
        for place, key in enumerate((IMAGE, WRIST)):
            shown = again.frames(seed, key)
            assert np.abs(shown.astype(int) - data_sets.pictures(length, 32, seed + 5 * place)).mean() < 8
        first_row += length


def test_any_frame_is_read_alone_and_is_the_same_one(written):
    all_of_it, film = written.frames(0, IMAGE), videos.Video(written.video_path(0, IMAGE))
    assert film.longest_group == videos.GROUP and film.codec == videos.CODEC and film.pixels == videos.PIXELS
    for order in ([11, 0, 5, 5, 4], [3], list(range(12))[::-1]):
        np.testing.assert_array_equal(written.frames(0, IMAGE, order), all_of_it[order])
    for one, other in itertools.pairwise(all_of_it):
        assert np.abs(one.astype(int) - other).max() > 50  # so a wrong frame would have been seen


def test_a_set_travels_to_another_process(written):
    written.frames(0, IMAGE, [0])
    again = pickle.loads(pickle.dumps(written))
    np.testing.assert_array_equal(again.frames(1, WRIST, [4]), written.frames(1, WRIST, [4]))


def test_more_videos_than_stay_open(written):
    few = videos.OpenVideos(capacity=2)
    for _ in range(2):
        for episode in range(3):
            assert len(few[written.video_path(episode, IMAGE)]) == data_sets.LENGTHS[episode]


def test_a_gripper_that_stays_as_it_is_is_neither_open_nor_closed():
    """The oracle's fingers come half closed to a drawer's handle: who learned to open them fails."""
    actions = np.zeros((3, 7), np.float32)
    actions[:, 6] = (-1, 0, 1)
    kept = libero.gripper_opens(actions)
    assert kept[:, 6].tolist() == [1, 0.5, 0] and np.array_equal(data_sets.gripper_closes(kept), actions)


def test_statistics_are_those_of_the_rows(written, copy):
    rows = np.concatenate([data_sets.numbers(n, seed)[libero.ACTION] for seed, n in enumerate(data_sets.LENGTHS)])
    for of in (written.statistics()[libero.ACTION], LeRobotDataset(copy).computed_statistics()[libero.ACTION]):
        np.testing.assert_allclose(of["mean"], rows.astype(float).mean(0))
        np.testing.assert_allclose(of["q99"], np.quantile(rows.astype(float), 0.99, axis=0))
    (copy / metadata.STATS).unlink()
    again = LeRobotDataset(copy)
    np.testing.assert_allclose(again.statistics()[libero.ACTION]["std"], rows.astype(float).std(0))
    assert not (copy / metadata.STATS).exists()  # reading writes nothing
    again.write_statistics()
    assert not LeRobotDataset(copy).stated_statistics().keys() & set(again.video_keys)


def test_statistics_of_images_are_those_of_their_colours():
    shown = data_sets.pictures(9)
    found = statistics.of_images(shown)
    np.testing.assert_allclose(found["mean"].ravel(), shown.mean((0, 1, 2)) / 255)
    np.testing.assert_allclose(found["std"].ravel(), (shown / 255).std((0, 1, 2)))
    np.testing.assert_allclose(found["max"].ravel(), shown.max((0, 1, 2)) / 255)
    assert found["min"].shape == (3, 1, 1) and found["count"] == [9]


def test_a_set_exists_when_it_is_whole_and_an_interrupted_one_is_gone_on_with(tmp_path):
    features = libero.features((), 0)

    def writer(resume):
        return Writer(tmp_path / "set", "panda", 20, features, resume=resume)

    first = writer(resume=False)
    first.add(data_sets.numbers(5, 0), {}, "a")
    assert not (tmp_path / "set").exists() and writer(resume=True).written() == {0}
    writer(resume=True).write(writing.EpisodeSlot(1, 5, 1, "b"), data_sets.numbers(4, 1), {})
    done = writer(resume=True).finish()
    assert [e.tasks for e in done.episodes] == [("a",), ("b",)] and done.columns(1)["index"].tolist() == [5, 6, 7, 8]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
    with pytest.raises(DatasetError, match="already exists; choose another name"):
        writer(resume=False)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda c, v: c.update(action=c["action"][:, :6]), r"action has the shape \[5, 6\]; expected \[5, 7\]"),
        (lambda c, v: c.update(action=c["action"][:4]), "rows; expected 5"),
        (lambda c, v: c["action"].__setitem__((3, 2), np.nan), "action contains NaN or infinity in row 3"),
        (lambda c, v: v.clear(), "'observation.images.image' is missing"),
        (lambda c, v: c.update(extra=np.zeros(5)), "'extra' is not expected"),
        (lambda c, v: v.update({IMAGE: data_sets.pictures(5, 30)}), r"expected \[5, 32, 32, 3\]"),
        (lambda c, v: v.update({IMAGE: v[IMAGE].astype(np.float32)}), "expected uint8"),
    ],
)
def test_an_episode_that_does_not_fit_is_refused(tmp_path, spoil, words):
    writer = Writer(tmp_path / "set", "panda", 20, libero.features(data_sets.CAMERAS[:1], 32))
    columns, videos = data_sets.numbers(5, 0), {IMAGE: data_sets.pictures(5)}
    spoil(columns, videos)
    with pytest.raises(DatasetError, match=words):
        writer.add({name: columns[name] for name in sorted(columns, reverse=True)}, videos, "a")
    with pytest.raises(DatasetError, match="expected all from 0"):
        writer.finish()


def test_liberos_files_are_read_as_the_same_set(written, tmp_path):
    files = open_dataset(data_sets.hdf5(tmp_path / "files"))
    assert files.video_keys == written.video_keys and files.modality == written.modality and files.fps == written.fps
    assert set(files.column_keys) <= set(written.column_keys)
    order = [(0, 0), (1, 2), (2, 1)]  # its files are read by name
    assert [files.episodes[i].tasks for i, _ in order] == [written.episodes[j].tasks for _, j in order]
    for mine, theirs in order:
        for name, values in data_sets.numbers(data_sets.LENGTHS[theirs], theirs).items():
            np.testing.assert_allclose(files.columns(mine)[name], values, atol=1e-7)
        expected = data_sets.pictures(data_sets.LENGTHS[theirs], 32, theirs + 5)
        np.testing.assert_array_equal(files.frames(mine, WRIST), expected)
        np.testing.assert_array_equal(files.frames(mine, WRIST, [4, 0]), expected[[4, 0]])
    assert files.statistics()[libero.ACTION]["max"][6] == 1


def test_images_that_lie_in_the_rows_are_read(tmp_path):
    """As in v2.0 sets with features "image": a PNG per row."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    def png(picture):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    written = data_sets.lerobot(tmp_path / "set", cameras=())
    info = json.loads((written.directory / metadata.INFO).read_text())
    info["features"]["image"] = {"dtype": "image", "shape": [32, 32, 3], "names": None}
    (written.directory / metadata.INFO).write_text(json.dumps(info))
    shown, path = data_sets.pictures(data_sets.LENGTHS[1]), written.data_path(1)
    table = pq.read_table(path).append_column("image", pa.array([png(one) for one in shown]))
    pq.write_table(table, path)
    again = LeRobotDataset(written.directory)
    np.testing.assert_array_equal(again.frames(1, "image", [7, 2]), shown[[7, 2]])
    assert "image" not in again.columns(1)
    table = table.drop_columns(["image"]).append_column(
        "image", pa.array([{"bytes": None, "path": "a.png"}] * len(shown))
    )
    pq.write_table(table, path)
    with pytest.raises(DatasetError, match=r"image, row 2 is .*'a\.png'.*expected a PNG or JPEG file in its bytes"):
        LeRobotDataset(written.directory).frames(1, "image", [2])


def test_rows_of_different_lengths_are_named(copy):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"action": [[1.0, 2.0], [1.0], [1.0, 2.0]]}), copy / "odd.parquet")
    with pytest.raises(DatasetError, match=r"column action of .*: row 1 holds 1 numbers; expected 2"):
        tables.columns(tables.read(copy / "odd.parquet"), copy / "odd.parquet")


def test_what_is_not_a_data_set_and_what_is_missing(written, tmp_path, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    shutil.copytree(written.directory, tmp_path / "datasets" / "goal-oracle")
    assert (
        find("goal-oracle") == tmp_path / "datasets" / "goal-oracle"
        and find(str(written.directory)) == written.directory
    )
    with pytest.raises(DatasetError, match="did you mean 'goal-oracle'"):
        find("goal-oracl")
    with pytest.raises(DatasetError, match=r"is not a data set; expected LeRobot's meta/info.json or LIBERO's \*.hdf5"):
        open_dataset(tmp_path)
    (tmp_path / "old" / "meta_data").mkdir(parents=True)
    with pytest.raises(DatasetError, match="is LeRobot v1.x; .*take the set's revision v3.0 or v2.1"):
        open_dataset(tmp_path / "old")
    with pytest.raises(DatasetError, match="no images 'third'; it has observation.images.image"):
        LeRobotDataset(written.directory).frames(0, "third")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "cut.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(DatasetError, match="cannot be read as LIBERO's HDF5"):
        open_dataset(tmp_path / "files")
