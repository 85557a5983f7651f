"""Every departure from a data set's layout is named with its file and row; one in order has none."""

import io
import json
import shutil
from pathlib import Path

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests import data_sets
from vla_datasets import conversion, libero, metadata, program, tables, videos
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import open_dataset

IMAGE, WRIST = (libero.video_key(camera) for camera in data_sets.CAMERAS)
ROWS = "data/chunk-000/episode_000001.parquet"
FILM = f"videos/chunk-000/{IMAGE}/episode_000001.mp4"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A data set in order."""
    return data_sets.lerobot(tmp_path_factory.mktemp("sets") / "small").directory


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return data_sets.hdf5(tmp_path_factory.mktemp("files") / "goal")


def grave(directory):
    """Return the grave faults as they are shown."""
    return [str(fault) for fault in faults(directory) if fault.grave]


def test_a_set_in_order_has_no_faults(whole, files):
    assert faults(whole) == [] and grave(files) == []


def _json(name, change):
    def spoil(directory):
        value = json.loads((directory / name).read_text())
        change(value)
        (directory / name).write_text(json.dumps(value))

    return spoil


def _rows(change, path=ROWS):
    def spoil(directory):
        columns = {name: column.copy() for name, column in LeRobotDataset(directory).columns(1).items()}
        columns = change(columns) or columns
        tables.write(directory / path, columns)

    return spoil


def _lines(name, change):
    def spoil(directory):
        path = directory / name
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    return spoil


def _set(column, row, value):
    return _rows(lambda columns: columns[column].__setitem__(row, value))


def _video(length=9, size=32, fps=20, **options):
    def spoil(directory):
        path = directory / FILM
        if not options:
            return videos.write(path, data_sets.pictures(length, size, 1), fps)
        with av.open(str(path), "w") as container:
            stream = container.add_stream(options.pop("codec"), rate=fps, options=options.pop("options", {}))
            stream.height = stream.width = size
            stream.pix_fmt = options.pop("pixels", "yuv420p")
            for place, image in enumerate(data_sets.pictures(length, size, 1)):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format=stream.pix_fmt)
                frame.pts = place
                container.mux(stream.encode(frame))
            container.mux(stream.encode())

    return spoil


def _cut(name, share):
    return lambda directory: (directory / name).write_bytes(
        (directory / name).read_bytes()[: int(share * _size(directory / name))]
    )


def _size(path: Path) -> int:
    return path.stat().st_size


def _garble(name):
    """Overwrites most of the film's pictures, which its index still promises."""

    def spoil(directory):
        data = bytearray((directory / name).read_bytes())
        begin, end = data.index(b"mdat"), data.index(b"moov") - 4  # the index comes last
        begin = (begin + 3 * end) // 4
        data[begin:end] = bytes(end - begin)
        (directory / name).write_bytes(bytes(data))

    return spoil


def _mark(name):
    return lambda directory: (directory / name).write_text((directory / name).read_text(), encoding="utf-8-sig")


TEXTS = (metadata.INFO, metadata.MODALITY, metadata.STATS, metadata.EPISODES, metadata.TASKS, metadata.EPISODES_STATS)


def _exchange(modality):
    video = modality["video"]
    video["image"], video["wrist_image"] = video["wrist_image"], video["image"]


def _stats(key, **values):
    """Changes the statistics of episode 1."""

    def change(rows):
        line = json.loads(rows[1])
        line["stats"][key].update(values)
        return [rows[0], json.dumps(line), rows[2]]

    return _lines(metadata.EPISODES_STATS, change)


def _codec(directory):
    (directory / FILM).write_bytes((directory / FILM).read_bytes().replace(b"avc1", b"zzzz"))


SPOILT = [
    ("v1.6", _json(metadata.INFO, lambda i: i.update(codebase_version="v1.6")),
     "meta/info.json: codebase_version is 'v1.6'; expected v2.0, v2.1, v3.0: take the set's revision v3.0 or v2.1"),
    ("no info", lambda directory: (directory / metadata.INFO).unlink(), "meta/info.json: is missing"),
    ("key", _json(metadata.INFO, lambda i: i.pop("fps")), "meta/info.json: has no fps"),
    ("sum", _json(metadata.INFO, lambda i: i.update(total_frames=9)), "total_frames is 9; the data set has 31"),
    ("fps", _json(metadata.INFO, lambda i: i.update(fps=10)), f"{FILM}: 20 frames per second; info.json says 10"),
    ("shape", _json(metadata.INFO, lambda i: i["features"]["action"].update(shape=[6])),
     f"{ROWS}: column action has 7 numbers a row; info.json says shape [6]"),
    ("video shape", _json(metadata.INFO, lambda i: i["features"][IMAGE].update(shape=[64, 64, 3])),
     f"{FILM}: images of [32, 32, 3]; info.json says [64, 64, 3]"),
    ("names", _json(metadata.INFO, lambda i: i["features"][IMAGE].update(names=None)),
     f"feature {IMAGE}: names is None; expected height, width and channel"),
    ("video fps", _json(metadata.INFO, lambda i: i["features"][IMAGE]["info"].update({"video.fps": 30})),
     f"feature {IMAGE}: video.fps is 30; fps is 20"),
    ("no JSON", _lines(metadata.TASKS, lambda r: [r[0], "{"]), "meta/info.json: meta/tasks.jsonl, row 2: not JSON"),
    ("twice", _lines(metadata.EPISODES, lambda r: [*r, r[2]]), "episode 2 is listed 2 times"),
    ("stray", _lines(metadata.EPISODES, lambda r: r[:2]), "episode_000002.parquet: belongs to no episode"),
    ("length", _lines(metadata.EPISODES, lambda r: [r[0], r[1].replace('"length": 9', '"length": 8'), r[2]]),
     f"{ROWS}: 9 rows; meta/episodes.jsonl says length 8"),
    ("task", _lines(metadata.TASKS, lambda r: r[:1]), "episodes.jsonl, row 2: task 'push the plate' is not in"),
    ("cut", _cut(ROWS, 0.5), f"{ROWS}: cannot be read as parquet"),
    ("no column", _rows(lambda c: {name: one for name, one in c.items() if name != "action"}),
     f"{ROWS}: column action is missing; info.json lists it"),
    ("NaN", _set("action", (4, 2), np.nan), f"{ROWS}, row 4: column action contains NaN or infinity in 1 rows"),
    ("short", _rows(lambda c: {name: one[:7] for name, one in c.items()}), f"{FILM}: 9 frames; the episode has 7 rows"),
    ("frame_index", _set("frame_index", 3, 5), f"{ROWS}, row 3: frame_index is 5; expected 3"),
    ("index", _set("index", 0, 0), f"{ROWS}, row 0: index is 0; expected 12"),
    ("time", _set("timestamp", slice(5, None), 9.0), f"{ROWS}, row 5: timestamp is 8.8000 s after the last"),
    ("late", _rows(lambda c: c.update(timestamp=c["timestamp"] + np.float32(0.05))),
     f"{ROWS}, row 0: timestamp begins at 0.0500 s; expected 0"),
    ("no film", lambda directory: (directory / FILM).unlink(), f"{FILM}: is missing; expected a video"),
    ("garbled", _garble(FILM), f"{FILM}: cannot be read as a video: it is damaged or incomplete (Invalid data"),
    ("frames", _video(length=8), f"{FILM}: 8 frames; the episode has 9 rows"),
    ("size", _video(size=64), f"{FILM}: images of [64, 64, 3]; info.json says [32, 32, 3]"),
    ("codec", _video(codec="mpeg4"), f"{FILM}: the codec is mpeg4; info.json says h264"),
    ("pixels", _video(codec="libx264", pixels="yuv444p"), f"{FILM}: pixels are yuv444p; info.json says yuv420p"),
    ("stale", _json(metadata.STATS, lambda s: s["action"].update(q01=[0.5] * 7)),
     "meta/stats.json: action: q01[4] is 0.5; the rows' is -0.96"),
    ("no q99", _json(metadata.STATS, lambda s: s["action"].pop("q99")), "action lacks q99; GR00T's loader"),
    ("no action", _json(metadata.STATS, lambda s: s.pop("action")), "meta/stats.json: lacks column action"),
    ("width", _json(metadata.STATS, lambda s: s["action"].update(std=[1.0])), "std has 1 numbers; expected 7"),
    ("episode's", _lines(metadata.EPISODES_STATS, lambda r: [r[0], r[2]]), "has no line for episode 1"),
    ("episode's stale", _lines(metadata.EPISODES_STATS, lambda r: [r[0], r[2].replace('_index": 2', '_index": 1'),
                                                                      r[2]]),
     "meta/episodes_stats.jsonl, row 2: action: max"),
    ("backwards", _json(metadata.MODALITY, lambda m: m["state"]["x"].update(end=0)), "state.x: start 0, end 0"),
    ("no key", _json(metadata.MODALITY, lambda m: m["state"]["x"].update(original_key="pose")), "state.x is column"),
    ("video", _json(metadata.MODALITY, lambda m: m["video"]["image"].update(original_key="cam")), "image is 'cam'"),
    ("annotation", _json(metadata.MODALITY, lambda m: m["annotation"].update({"human.coarse_action": {}})),
     "annotation.human.coarse_action is column 'annotation.human.coarse_action', which no table has"),
    ("rotation", _json(metadata.MODALITY, lambda m: m["state"]["x"].update(rotation_type="euler")),
     "state.x: rotation_type 'euler' is none of"),
    ("overlap", _json(metadata.MODALITY, lambda m: m["state"]["y"].update(start=0)),
     "meta/modality.json: state.y starts at 0 in state.x, observation.state[0:1]: they overlap"),
    ("exchanged", _json(metadata.MODALITY, _exchange),
     f"meta/modality.json: video.image is '{WRIST}', the name of video.wrist_image: exchanged"),
    ("one for two", _json(metadata.MODALITY, lambda m: m["video"]["wrist_image"].update(original_key=IMAGE)),
     f"meta/modality.json: video.wrist_image is '{IMAGE}', which is also video.image"),
    ("stats list", _json(metadata.STATS, lambda s: s.update(action=[1.0, 2.0])),
     "meta/stats.json: action is a list; expected an object with mean"),
    ("episode's std", _stats("action", std=[9.0] * 7),
     "meta/episodes_stats.jsonl, row 2: action: std[6] is 9; the rows' is"),
    ("image's mean", _stats(IMAGE, mean=[[[0.9]]] * 3), f"row 2: {IMAGE}: mean is [0.9, 0.9, 0.9]; the frames' is [0."),
    ("whole numbers", _rows(lambda c: c.update({libero.STATE: c[libero.STATE].astype(np.int64)})),
     f"{ROWS}: column observation.state is int64; info.json says float32"),
    ("other task", _set("task_index", slice(2, None), 0),
     f"{ROWS}, row 2: task_index is 0, 'open the drawer'; meta/episodes.jsonl says 'push the plate'"),
    ("no codec", _codec, f"{FILM}: cannot be read as a video: it is damaged or incomplete (no images that can"),
    ("an image", lambda directory: Image.new("RGB", (32, 32)).save(directory / FILM, "PNG"),
     f"{FILM}: cannot be read as a video: it is damaged or incomplete (its format is not MP4, Matroska or AVI)"),
    ("no action part", _json(metadata.MODALITY, lambda m: m.pop("action")), "meta/modality.json: names no action"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), [one[1:] for one in SPOILT], ids=[one[0] for one in SPOILT])
def test_each_fault_is_named_with_file_and_row(copy, spoil, words):
    spoil(copy)
    assert any(words in one for one in grave(copy)), faults(copy)


NOTED = [
    ("more columns", _rows(lambda c: c | {"force": np.zeros(9)}), f"note: {ROWS}: column force is not a feature"),
    ("dtype", _rows(lambda c: c.update(action=c["action"].astype(float))), "action is double; info.json says float32"),
    ("no videos", _json(metadata.INFO, lambda i: i.update(total_videos=3)), "total_videos is 3"),
    ("splits", _json(metadata.INFO, lambda i: i.update(splits={"train": "0:100"})),
     "meta/info.json: splits: train is '0:100'; expected FIRST:END within 0:3"),
    ("splits text", _json(metadata.INFO, lambda i: i.update(splits="all")), "splits: all is 'all'; expected FIRST:END"),
    ("chunks", _json(metadata.INFO, lambda i: i.update(total_chunks=0)), "info.json: total_chunks is 0; "),
    ("not needed", _json(metadata.INFO, lambda i: i["features"].update(
        {"far": {**i["features"][IMAGE]}})), "note: meta/info.json: feature far has no videos"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "words"), [one[1:] for one in NOTED], ids=[one[0] for one in NOTED])
def test_what_only_few_readers_mind_is_a_note(copy, spoil, words):
    spoil(copy)
    found = faults(copy)
    assert not any(one.grave for one in found) and any(words in str(one) for one in found), found


@pytest.mark.parametrize("name", TEXTS)
def test_a_byte_order_mark_is_read_over(copy, name):
    _mark(name)(copy)
    assert faults(copy) == []
    dataset = LeRobotDataset(copy)
    assert dataset.tasks[0] == "open the drawer" and dataset.modality and dataset.stated_statistics()


ALONE = [
    ("cut", _cut(ROWS, 0.5)),
    ("gone", lambda directory: (directory / ROWS).unlink()),
    ("odd columns", _rows(lambda c: c | {"force": np.array([None] * 9)})),
    ("film", lambda directory: (directory / FILM).unlink()),
]


@pytest.mark.parametrize("spoil", [one[1] for one in ALONE], ids=[one[0] for one in ALONE])
def test_a_file_that_cannot_be_read_is_the_only_fault(copy, spoil):
    spoil(copy)
    assert len(grave(copy)) == 1, faults(copy)


def test_a_shorter_table_moves_no_index_of_the_next(copy):
    _rows(lambda c: {name: one[:7] for name, one in c.items()})(copy)
    assert not any("episode_000002" in one for one in grave(copy)), faults(copy)


def test_write_stats_writes_those_of_each_episode_too(copy):
    before = [json.loads(line) for line in (copy / metadata.EPISODES_STATS).read_text().splitlines()]
    for spoil in (_stats("action", std=[9.0] * 7), _stats(IMAGE, mean=[[[0.9]]] * 3)):
        spoil(copy)
    assert len(grave(copy)) == 2
    assert [path.name for path in LeRobotDataset(copy).write_statistics()] == ["stats.json", "episodes_stats.jsonl"]
    assert faults(copy) == []
    after = [json.loads(line) for line in (copy / metadata.EPISODES_STATS).read_text().splitlines()]
    assert [one["stats"].keys() for one in after] == [one["stats"].keys() for one in before]
    assert [one["stats"]["action"] for one in after] == [one["stats"]["action"] for one in before]
    (copy / metadata.EPISODES_STATS).unlink()
    LeRobotDataset(copy).write_statistics()
    assert faults(copy) == []


def test_a_video_with_few_key_frames_is_noted(copy):
    length = 40
    path = copy / FILM
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20, options={"g": "250", "sc_threshold": "0"})
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        for image in data_sets.pictures(length, 32, 1):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    assert f"note: {FILM}: a key frame only every 40 frames" in "\n".join(map(str, faults(copy)))
    shown = LeRobotDataset(copy).frames(1, IMAGE)  # with frames that are kept in another order than they are shown in
    assert np.abs(shown.astype(int) - data_sets.pictures(length, 32, 1)).mean() < 8
    np.testing.assert_array_equal(LeRobotDataset(copy).frames(1, IMAGE, [30, 3, 31]), shown[[30, 3, 31]])


def test_an_empty_instruction_of_liberos_files_is_the_name(files, tmp_path):
    directory = shutil.copytree(files, tmp_path / "copy")
    with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": ["", ""]})
    assert open_dataset(directory).episodes[0].tasks == ("open the drawer",)


def test_rows_that_no_array_holds(copy):
    table = pq.read_table(copy / ROWS).drop_columns(["action"])
    pq.write_table(table.append_column("action", pa.array([[0.0] * 7] * 8 + [[0.0] * 6])), copy / ROWS)
    assert any(f"{ROWS}" in one and "row 8 holds 6 numbers; expected 7" in one for one in grave(copy))


def _demo(change):
    def spoil(directory):
        with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
            change(file["data"])

    return spoil


def _replace(key, change):
    def spoil(data):
        values = change(data["demo_0"][key][:])
        del data["demo_0"][key]
        data["demo_0"][key] = values

    return _demo(spoil)


def _late_nan(values):
    values[3, 1] = np.nan
    return values


DEMOS = [
    ("key", _demo(lambda data: data["demo_0"].__delitem__("obs/ee_ori")), "data/demo_0 has no obs/ee_ori"),
    ("shape", _replace("actions", lambda a: a[:, :6]), "data/demo_0/actions has [6] numbers a row; expected [7]"),
    ("rows", _replace("obs/ee_pos", lambda a: a[:5]), "data/demo_0/obs/ee_pos has 5 rows; it has 12 actions"),
    ("NaN", _replace("actions", _late_nan), "open_the_drawer_demo.hdf5, row 3: data/demo_0/actions contains NaN"),
    (
        "picture",
        _replace("obs/agentview_rgb", lambda a: a / 2),
        "obs/agentview_rgb is float64 [12, 32, 32, 3] with values outside 0 to 1; expected",
    ),
    ("count", _demo(lambda data: data.attrs.update(num_demos=9)), "num_demos is 9; the file has 2"),
    ("none", _demo(lambda data: [data.__delitem__(name) for name in list(data)]), "has no demonstrations"),
    (
        "no observations",
        _demo(lambda data: data["demo_1"].__delitem__("obs")),
        "data/demo_1 has no observations (obs); it is a raw recording of robosuite. Play it back",
    ),
    ("cut", _cut("open_the_drawer_demo.hdf5", 0.5), "open_the_drawer_demo.hdf5: cannot be read as LIBERO's HDF5"),
]


def _encode(kind, dtype):
    def change(images):
        files = []
        for image in images:
            with io.BytesIO() as file:
                Image.fromarray(image).save(
                    file, kind, **({"quality": 100, "subsampling": 0} if kind == "JPEG" else {})
                )
                files.append(np.frombuffer(file.getvalue(), np.uint8))
        if dtype == "padded":
            return np.stack([np.pad(file, (0, 20_000 - len(file))) for file in files])
        array = np.empty(len(files), object)
        array[:] = files
        return array

    def spoil(directory):
        with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
            for demo in file["data"].values():
                values = change(demo["obs/agentview_rgb"][:])
                del demo["obs/agentview_rgb"]
                where = {} if dtype == "padded" else {"dtype": h5py.vlen_dtype(np.uint8)}
                demo["obs"].create_dataset("agentview_rgb", data=values, **where)

    return spoil


def _stored(change):
    def spoil(directory):
        with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
            for demo in file["data"].values():
                values = change(demo["obs/agentview_rgb"][:])
                del demo["obs/agentview_rgb"]
                demo["obs/agentview_rgb"] = values

    return spoil


IMAGES = {
    "JPEG": (_encode("JPEG", "variable"), 4),
    "PNG": (_encode("PNG", "variable"), 0),
    "padded": (_encode("PNG", "padded"), 0),
    "float": (_stored(lambda a: (a / 255).astype(np.float32)), 0),
    "channels first": (_stored(lambda a: a.transpose(0, 3, 1, 2)), 0),
    "RGBA": (_stored(lambda a: np.concatenate([a, np.full_like(a[..., :1], 255)], -1)), 0),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_images_are_read_however_they_are_stored(files, tmp_path, kind, monkeypatch):
    spoil, room = IMAGES[kind]
    directory = shutil.copytree(files, tmp_path / "copy")
    spoil(directory)
    dataset, plain = open_dataset(directory), open_dataset(files)
    assert dataset.features == plain.features
    for rows in (None, [3], [5, 0]):
        apart = np.abs(dataset.frames(1, IMAGE, rows).astype(int) - plain.frames(1, IMAGE, rows))
        assert apart.mean() <= room, apart.mean()
    found = faults(directory)
    assert not any(one.grave for one in found) and any(
        "agentview_rgb" in str(one) and "lab" in one.message for one in found
    )
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(directory, show=True) == 0 and program.read(directory) == 0
    assert len(conversion.recode(dataset, tmp_path / "written")) == len(plain)


def test_grey_images_become_three_channels(files, tmp_path):
    directory = shutil.copytree(files, tmp_path / "copy")
    for change in (lambda a: a[..., 0], lambda a: a[..., None]):
        _stored(change)(directory)
        shown = open_dataset(directory).frames(0, IMAGE)
        expected = open_dataset(files).frames(0, IMAGE)[..., :1]
        np.testing.assert_array_equal(shown, np.repeat(expected, 3, -1))


NO_IMAGES = {
    "depth": (_stored(lambda a: a[..., 0] / 50), "is float64 [12, 32, 32] with values outside 0 to 1"),
    "uint16": (_stored(lambda a: a.astype(np.uint16)), "is uint16 [12, 32, 32, 3]; expected images"),
    "channels": (_stored(lambda a: a.repeat(2, -1)), "is uint8 [12, 32, 32, 6]; expected images"),
    "bytes": (_stored(lambda a: a[:, 0, 0]), "row 0 cannot be read as a PNG or JPEG image"),
}


@pytest.mark.parametrize("kind", NO_IMAGES)
def test_what_is_not_an_image_is_named(files, tmp_path, kind, monkeypatch):
    spoil, words = NO_IMAGES[kind]
    directory = shutil.copytree(files, tmp_path / "copy")
    spoil(directory)
    named = [str(fault) for fault in faults(directory) if fault.grave]
    assert len(named) == 2 and words in named[0] and "data/demo_0/obs/agentview_rgb" in named[0]
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(directory, show=True) == 0 and open_dataset(directory).video_keys == (WRIST,)
    with pytest.raises(DatasetError, match=f"no images '{IMAGE}'"):
        open_dataset(directory).frames(0, IMAGE)


@pytest.mark.parametrize(("spoil", "words"), [one[1:] for one in DEMOS], ids=[one[0] for one in DEMOS])
def test_each_fault_of_liberos_files_is_named(files, tmp_path, spoil, words):
    spoilt = shutil.copytree(files, tmp_path / "copy")
    spoil(spoilt)
    assert any(words in one for one in grave(spoilt)), faults(spoilt)
