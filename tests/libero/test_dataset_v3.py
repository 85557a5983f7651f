"""LeRobot v3.0: several episodes per file, read as they were written; meta/ that does not fit the files is refused."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import data_sets
from tests.libero.test_foreign_datasets import CHECK, change, in_a_process
from vla_datasets import conversion, libero, marks, metadata, program, v3, v3_writing, videos
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import open_dataset
from vla_datasets.v3_writing import V3Writer
from vla_datasets.writing import EpisodeSlot, draft

IMAGE, WRIST = (libero.video_key(camera) for camera in data_sets.CAMERAS)
DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO = f"videos/{IMAGE}/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return data_sets.lerobot(tmp_path_factory.mktemp("sets") / "small", layout=V3Writer)


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written.directory, tmp_path / "copy")


def rewrite(path, change):
    """Change a parquet file's columns, as lists by name; what pandas says of them is left out."""
    columns = pq.read_table(path).to_pydict()
    pq.write_table(pa.table(change(columns) or columns), path)


def assert_same_episodes(dataset):
    """Compare every number and frame with what `data_sets.lerobot` writes."""
    assert [(e.index, e.length, e.tasks) for e in dataset.episodes] == [
        (index, length, (task,))
        for index, (length, task) in enumerate(zip(data_sets.LENGTHS, data_sets.TASKS, strict=True))
    ]
    for seed, length in enumerate(data_sets.LENGTHS):
        columns, first = dataset.columns(seed), sum(data_sets.LENGTHS[:seed])
        for name, values in data_sets.numbers(length, seed).items():
            np.testing.assert_array_equal(columns[name], values)
        assert columns["index"].tolist() == list(range(first, first + length))
        for number, key in enumerate((IMAGE, WRIST)):
            expected = data_sets.pictures(length, 32, seed + 5 * number).astype(int)
            assert np.abs(dataset.frames(seed, key) - expected).mean() < 8
            assert np.abs(dataset.frames(seed, key, [length - 1, 2])[1] - expected[2]).mean() < 8


def test_several_episodes_are_in_one_file(written):
    assert_same_episodes(LeRobotDataset(written.directory))
    names = {str(path.relative_to(written.directory)) for path in written.directory.rglob("*") if path.is_file()}
    assert names == {
        "meta/info.json", "meta/stats.json", "meta/modality.json", "meta/tasks.parquet", EPISODES, DATA, VIDEO,
        f"videos/{WRIST}/chunk-000/file-000.mp4",
    }  # fmt: skip
    assert faults(written.directory) == [] and pq.ParquetFile(written.directory / DATA).num_row_groups == 3
    assert videos.Video(written.directory / VIDEO).longest_group == videos.GROUP
    with pytest.raises(DatasetError, match="the episode has 9 frames; frame 9 does not exist"):
        written.frames(1, IMAGE, [9])
    with pytest.raises(DatasetError, match="no episode 3; it has 3"):
        written.columns(3)


def test_files_grow_to_lerobots_limits_each_on_its_own(tmp_path, monkeypatch):
    """One data file, a video file per episode of the larger camera: a reader must not take one number for both."""
    monkeypatch.setitem(v3_writing.MAX_MB, "video", 0)
    monkeypatch.setattr(metadata, "CHUNK", 2)
    dataset = data_sets.lerobot(tmp_path / "set", layout=V3Writer)
    assert_same_episodes(dataset)
    assert {path.name for path in (dataset.directory / "data").rglob("*.parquet")} == {"file-000.parquet"}
    assert dataset.video_path(2, IMAGE) == dataset.directory / f"videos/{IMAGE}/chunk-001/file-000.mp4"
    monkeypatch.setitem(v3_writing.MAX_MB, "data", 0)
    dataset = data_sets.lerobot(tmp_path / "more", layout=V3Writer)
    assert_same_episodes(dataset)
    assert (
        dataset.data_path(2) == dataset.directory / "data/chunk-001/file-000.parquet"
        and faults(tmp_path / "more") == []
    )


def test_all_files_of_episodes_are_read(copy):
    """The same name in two chunks is two files."""
    table = pq.read_table(copy / EPISODES)
    (copy / "meta/episodes/chunk-001").mkdir()
    pq.write_table(table.slice(0, 1), copy / EPISODES)
    pq.write_table(table.slice(1), copy / "meta/episodes/chunk-001/file-000.parquet")
    assert_same_episodes(LeRobotDataset(copy))
    assert faults(copy) == []
    assert len(LeRobotDataset(copy).write_statistics()) == 3 and faults(copy) == []


@pytest.mark.parametrize("index", ["task", "__index_level_0__", "instruction"])
def test_instructions_are_those_of_the_rows_task_index(copy, index):
    """The texts are pandas' index, in any order, and the list of episodes need not have them."""
    pandas = json.dumps({"index_columns": [index], "columns": []})
    table = pa.table({"task_index": [1, 0], index: ["push the plate", "open the drawer"]})
    pq.write_table(table.replace_schema_metadata({"pandas": pandas}), copy / v3.TASKS)
    pq.write_table(pq.read_table(copy / EPISODES).drop_columns(["tasks"]), copy / EPISODES)
    assert_same_episodes(LeRobotDataset(copy))
    rewrite(copy / DATA, lambda columns: columns["task_index"].__setitem__(5, 1))
    assert LeRobotDataset(copy).episodes[0].tasks == ("open the drawer", "push the plate")


def test_a_data_set_without_task_index_has_the_listed_instructions(copy):
    pq.write_table(pq.read_table(copy / DATA).drop_columns(["task_index"]), copy / DATA)
    assert [episode.tasks[0] for episode in LeRobotDataset(copy).episodes] == list(data_sets.TASKS)


def test_a_file_in_one_row_group_is_read_as_well(copy):
    """As LeRobot's converter writes it."""
    pq.write_table(pq.read_table(copy / DATA), copy / DATA)
    assert_same_episodes(LeRobotDataset(copy))


def test_images_in_the_rows_are_read(copy):
    import io

    from PIL import Image

    def png(image):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    images = np.concatenate([data_sets.pictures(length, 32, seed) for seed, length in enumerate(data_sets.LENGTHS)])
    table = pq.read_table(copy / DATA).append_column("image", pa.array([png(image) for image in images]))
    info = json.loads((copy / metadata.INFO).read_text())
    feature = {"dtype": "image", "shape": [32, 32, 3], "names": ["height", "width", "channel"]}
    change(copy, features=info["features"] | {"image": feature})
    pq.write_table(table, copy / DATA, row_group_size=7)
    dataset = LeRobotDataset(copy)
    np.testing.assert_array_equal(dataset.frames(1, "image", [8, 0]), images[[20, 12]])
    assert "image" not in dataset.columns(1)
    assert not [fault for fault in faults(copy) if fault.grave]


def _episodes(**changes):
    def spoil(directory):
        def change(columns):
            for name, value in changes.items():
                columns[name.replace("__", "/")][1] = value

        rewrite(directory / EPISODES, change)

    return spoil


def _clip(**changes):
    return _episodes(**{f"videos__{IMAGE}__{name}": value for name, value in changes.items()})


def _moved(directory):
    """Move the rows of episodes 1 and 2 to a second file, of which meta/ knows nothing for episode 1."""
    table = pq.read_table(directory / DATA)
    pq.write_table(table.slice(0, 12), directory / DATA)
    pq.write_table(table.slice(12), directory / "data/chunk-000/file-001.parquet")
    rewrite(directory / EPISODES, lambda columns: columns["data/file_index"].__setitem__(2, 1))


def _cut(name, share=0.5):
    def spoil(directory):
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: int(share * len(data))])

    return spoil


REFUSED = [
    (_moved, r"file-000\.parquet has 12 rows; meta/episodes lists 21, of episode 0 to 1"),
    (lambda d: rewrite(d / DATA, lambda c: c["episode_index"].__setitem__(14, 2)), "row 14: episode_index is 2"),
    (_episodes(dataset_from_index=13), "row 1: dataset_from_index 13, .*; expected 12 to 21, right after the previous"),
    (_episodes(episode_index=2), "row 1: episode_index is 2; expected 1"),
    (_episodes(tasks=["a", None]), r"row 1: tasks is \['a', None\]; expected a list of instructions"),
    (_episodes(data__file_index=3), "row 2: episode 2 is in a data file before the last episode's"),
    (_clip(from_timestamp=0.3), r"episode 1 is at 0\.300 to 1\.050 s; its 9 rows take 0\.450 s"),
    (_clip(from_timestamp=0.3, to_timestamp=0.75), r"episode 1 is at 0\.300 to 0\.750 s; the episode before ends at"),
    (_clip(from_timestamp=9.0, to_timestamp=9.45), r"episode 1 is at 9\.000 to 9\.450 s; .*the video has 31 frames"),
    (_clip(from_timestamp=float("nan")), "from_timestamp must be seconds from 0 on"),
    (_clip(file_index=1), r"file-001\.mp4 is missing; expected a video"),
    (lambda d: videos.write(d / VIDEO, data_sets.pictures(30), 20), r"episode 2 is at .*; the video has 30 frames"),
    (lambda d: (d / VIDEO).unlink(), r"file-000\.mp4 is missing; expected a video"),
    (_cut(VIDEO), r"file-000\.mp4 cannot be read as a video: it is damaged or incomplete"),
    (_cut(DATA), r"data/chunk-000/file-000\.parquet cannot be read as parquet"),
    (_cut(EPISODES), r"meta/episodes/chunk-000/file-000\.parquet cannot be read as parquet"),
    (_cut(v3.TASKS), r"meta/tasks\.parquet cannot be read as parquet"),
    (lambda d: (d / DATA).unlink(), r"data/chunk-000/file-000\.parquet is missing"),
    (lambda d: (d / v3.TASKS).unlink(), r"meta/tasks\.parquet is missing"),
    (lambda d: (d / EPISODES).unlink(), r"meta/episodes has no chunk-000/file-000\.parquet"),
    (lambda d: rewrite(d / EPISODES, lambda c: c.pop("length") and None), "has no column length; LeRobot v3.0"),
    (lambda d: rewrite(d / EPISODES, lambda c: c.pop(f"videos/{IMAGE}/file_index") and None),
     "has no column videos/.*/file_index"),
    (lambda d: change(d, total_frames=20), r"info\.json: total_frames is 20; meta/episodes has 31"),
    (lambda d: rewrite(d / v3.TASKS, lambda c: {name: of[:1] for name, of in c.items()}),
     r"row 12: task_index is 1, which meta/tasks\.parquet does not have \(it has 1 tasks\)"),
    (lambda d: rewrite(d / v3.TASKS, lambda c: c["task_index"].__setitem__(1, 0)), "a task_index is listed twice"),
    (lambda d: rewrite(d / v3.TASKS, lambda c: {"task_index": c["task_index"]}), "has no text of the tasks"),
    (lambda d: change(d, data_path="data/{episode_index:06d}.parquet"), r"the only fields are \{chunk_index\}, \{fi"),
    (lambda d: change(d, video_path="../{video_key}/{file_index:03d}.mp4"), "outside the data set"),
    (lambda d: change(d, codebase_version="v3.1"), "codebase_version is 'v3.1'; expected v2.0, v2.1, v3.0"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), REFUSED)
def test_meta_that_does_not_fit_the_files_is_refused_in_one_sentence(copy, tmp_path, spoil, words):
    spoil(copy)
    with pytest.raises(DatasetError, match=words) as refused:
        open_dataset(copy)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600
    found = [str(fault) for fault in faults(copy)]
    assert len(found) == 1 and found[0].startswith("meta/info.json: "), found
    with pytest.raises(DatasetError, match=words):
        conversion.recode(open_dataset(copy), tmp_path / "converted")
    assert not [path for path in tmp_path.iterdir() if "converted" in path.name]


@pytest.mark.parametrize("name", [EPISODES, v3.TASKS, DATA, VIDEO])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(copy, name, kind):
    (copy / name).unlink()
    os.mkfifo(copy / name) if kind == "pipe" else (copy / name).symlink_to("/dev/zero")
    text = in_a_process(CHECK, copy)
    assert any(name in line and "regular file" in line for line in text.splitlines()), text


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_linked_files_are_read(written, tmp_path, layout):
    directory = data_sets.linked(written.directory, layout, tmp_path)
    assert faults(directory) == []
    assert_same_episodes(open_dataset(directory))


def test_statistics_of_other_data_are_named_and_written_again(copy):
    """Quantiles that were averaged over two recordings, and an episode with another one's statistics."""
    stats = json.loads((copy / metadata.STATS).read_text())
    averaged = stats["action"] | {"q99": [0.2] * 7}
    change(copy, metadata.STATS, action=averaged)
    name = "stats/action/mean"
    rewrite(copy / EPISODES, lambda columns: columns[name].__setitem__(2, columns[name][1]))
    rewrite(copy / EPISODES, lambda columns: columns[f"stats/{IMAGE}/mean"].__setitem__(0, [[[0.9]]] * 3))
    with pytest.raises(DatasetError, match=r"action: q99\[\d\] is 0\.2; the rows' is .*--write-stats"):
        LeRobotDataset(copy).require_current_statistics(["action"])
    found = [str(fault) for fault in faults(copy)]
    assert [line.partition(": ")[0] for line in found] == [
        "meta/stats.json",
        f"{EPISODES}, row 0",
        f"{EPISODES}, row 2",
    ]
    LeRobotDataset(copy).write_statistics()
    assert faults(copy) == [] and LeRobotDataset(copy).require_current_statistics(["action"]) == []
    again = json.loads((copy / metadata.STATS).read_text())
    assert again.keys() == stats.keys() and again["action"] == stats["action"]


def test_statistics_are_those_of_rows_and_images(written):
    stats = json.loads((written.directory / metadata.STATS).read_text())
    rows = np.concatenate([data_sets.numbers(n, seed)["action"] for seed, n in enumerate(data_sets.LENGTHS)])
    for name, share in {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}.items():
        np.testing.assert_allclose(stats["action"][name], np.quantile(rows.astype(float), share, axis=0))
    images = np.concatenate([data_sets.pictures(n, 32, seed) for seed, n in enumerate(data_sets.LENGTHS)]) / 255
    np.testing.assert_allclose(np.ravel(stats[IMAGE]["mean"]), images.mean((0, 1, 2)))
    np.testing.assert_allclose(np.ravel(stats[IMAGE]["std"]), images.std((0, 1, 2)))
    np.testing.assert_allclose(
        np.ravel(stats[IMAGE]["q90"]), np.quantile(images, 0.9, axis=(0, 1, 2), method="inverted_cdf")
    )
    assert stats[IMAGE]["count"] == [31] and stats["task_index"]["count"] == [31]
    second = pq.read_table(written.directory / EPISODES).slice(1, 1).to_pylist()[0]
    np.testing.assert_allclose(second["stats/action/mean"], data_sets.numbers(9, 1)["action"].astype(float).mean(0))
    assert np.shape(second[f"stats/{WRIST}/std"]) == (3, 1, 1) and second["stats/action/count"] == [9]


def test_an_interrupted_set_continues_and_ends_with_the_same_bytes(written, tmp_path, monkeypatch):
    features, modality = libero.features(data_sets.CAMERAS, 32), libero.modality(data_sets.CAMERAS)

    def writer(layout=V3Writer):
        return layout(tmp_path / "small", libero.ROBOT, libero.FPS, features, modality, resume=True)

    def write(episode):
        length = data_sets.LENGTHS[episode]
        images = {key: data_sets.pictures(length, 32, episode + 5 * i) for i, key in enumerate((IMAGE, WRIST))}
        slot = EpisodeSlot(episode, sum(data_sets.LENGTHS[:episode]), episode % 2, data_sets.TASKS[episode])
        writer().write(slot, data_sets.numbers(length, episode), images)

    write(2), write(0)
    assert writer().written() == {0, 2} and not (tmp_path / "small").exists()
    with pytest.raises(DatasetError, match=r"has episodes \[0, 2\]; expected all from 0"):
        writer().finish()
    write(1)
    with monkeypatch.context() as patch:
        patch.setattr(v3_writing, "write_tasks", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer().finish()
    assert not (tmp_path / "small").exists() and draft(tmp_path / "small").exists()
    again = writer().finish()
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    for path in sorted(one for one in written.directory.rglob("*") if one.is_file()):
        other = again.directory / path.relative_to(written.directory)
        if path.suffix == ".mp4":  # x264 looks at memory beyond so small an image, which may hold anything
            ours, theirs = (videos.Video(one) for one in (path, other))
            first, second = (one.frames(range(len(one))).astype(int) for one in (ours, theirs))
            assert ours.pts == theirs.pts and np.abs(first - second).mean() < 1
        else:
            assert path.read_bytes() == other.read_bytes(), path


def test_sets_are_converted_both_ways(written, tmp_path):
    """And bad episodes are left out, the rest numbered again."""
    old = conversion.recode(written, tmp_path / "old")
    assert old.info["codebase_version"] == "v2.1" and faults(old.directory) == [] and old.modality == written.modality
    assert_same_episodes(old)
    new = conversion.recode(old, tmp_path / "new", "lerobot-v3.0")
    assert new.info["codebase_version"] == "v3.0" and faults(new.directory) == []
    assert_same_episodes(new)
    marks.mark(new, bad=[0])
    fewer = conversion.recode(LeRobotDataset(new.directory), tmp_path / "fewer", "lerobot-v3.0")
    assert [episode.length for episode in fewer.episodes] == list(data_sets.LENGTHS[1:])
    np.testing.assert_array_equal(fewer.columns(1)["action"], written.columns(2)["action"])


def test_the_program_checks_and_shows(copy, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(copy, check=True, show=True) == 0
    page = (tmp_path / "volume/logs/datasets/copy.html").read_text()
    assert page.count("data:video/mp4") == 6 and "push the plate" in page
    program.read(copy)
    assert "LeRobot v3.0, panda, 3 episodes, 31 steps" in capsys.readouterr().out
    rewrite(copy / DATA, lambda columns: columns["timestamp"].__setitem__(15, 9.0))
    assert program.read(copy, check=True) == 1
    assert f"{DATA}, row 15: timestamp is 8.9000 s after the last" in capsys.readouterr().out
