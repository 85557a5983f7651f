"""Data sets from strangers: no path template, file or promise in one costs more than a sentence."""

import json
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress

import h5py
import numpy as np
import pytest

from tests import data_sets
from vla_common.entrypoint import CONTROL
from vla_datasets import conversion, hdf5, marks, metadata, program, summary, tables, videos
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import open_dataset

ROWS = "data/chunk-000/episode_000001.parquet"
IMAGE = "observation.images.image"
FILM = "videos/chunk-000/observation.images.image/episode_000001.mp4"
NUMBERS = (metadata.INFO, metadata.MODALITY, metadata.STATS, metadata.EPISODES, metadata.TASKS, metadata.EPISODES_STATS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return data_sets.lerobot(tmp_path_factory.mktemp("sets") / "small").directory


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def change(directory, name=metadata.INFO, **facts):
    value = json.loads((directory / name).read_text())
    (directory / name).write_text(json.dumps(value | facts))


def in_a_process(code, directory, limit_s=120):
    """Return what code prints that could hang or fill the memory: both end it."""
    bounded = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30,) * 2)\n{code}"
    command = [sys.executable, "-c", bounded, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


CHECK = "import sys; from vla_datasets.checks import faults; print(*faults(sys.argv[1]), sep='\\n')"


# --- path templates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "data/{episode_index:300000000d}.parquet",
        "data/{episode_index:012d}.parquet",
        "data/{episode_index!r}.parquet",
        "data/{episode_chunk.__class__}.parquet",
        "data/{video_key:06d}.parquet",
        "data/{0}.parquet",
        "data/{{episode_index}}.parquet",
        "data/{episode_index",
        "data/" + 1000 * "x",
        ["data/{episode_index}"],
    ],
)
@pytest.mark.parametrize("pattern", ["data_path", "video_path"])
def test_a_path_template_holds_the_documented_fields_only(copy, pattern, template):
    change(copy, **{pattern: template})
    with pytest.raises(DatasetError, match=r"meta/info\.json: " + pattern) as refused:
        LeRobotDataset(copy)
    assert repr(template)[:100] in str(refused.value) and "{episode_index}" in str(refused.value)
    assert len(str(refused.value)) < 1000 and any(pattern in str(fault) for fault in faults(copy))


def test_the_documented_fields_are_filled_in(copy):
    change(copy, data_path="d/{episode_chunk}/{episode_index:06d}", video_path="v/{video_key}/{episode_index:03d}.mp4")
    dataset = LeRobotDataset(copy)
    assert dataset.data_path(2001) == copy / "d/2/002001"
    assert dataset.video_path(7, "observation.images.image") == copy / "v/observation.images.image/007.mp4"


# --- files that are none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NUMBERS, ROWS, FILM])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_opened(copy, name, kind):
    (copy / name).unlink()
    os.mkfifo(copy / name) if kind == "pipe" else (copy / name).symlink_to("/dev/zero")
    text = in_a_process(CHECK, copy)
    assert any(name in line and "regular file" in line for line in text.splitlines()), text


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_links_to_regular_files_are_followed(whole, tmp_path, layout, monkeypatch, capsys):
    directory = data_sets.linked(whole, layout, tmp_path)
    assert faults(directory) == []
    dataset, plain = open_dataset(directory), open_dataset(whole)
    np.testing.assert_array_equal(dataset.frames(1, IMAGE), plain.frames(1, IMAGE))
    assert summary.size(directory) == summary.size(whole) > 0
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(directory, check=True, show=True) == 0 and "no faults" in capsys.readouterr().out
    written = conversion.recode(dataset, tmp_path / "written")
    np.testing.assert_array_equal(written.columns(2)["action"], plain.columns(2)["action"])


@pytest.mark.parametrize("layout", ("cache", "copy"))
def test_linked_hdf5_files_are_read(tmp_path, layout):
    files = data_sets.hdf5(tmp_path / "goal")
    directory = data_sets.linked(files, layout, tmp_path)
    plain = open_dataset(files)
    np.testing.assert_array_equal(open_dataset(directory).columns(0)["action"], plain.columns(0)["action"])
    assert [fault for fault in faults(directory) if fault.grave] == []


@pytest.mark.parametrize("name", [*NUMBERS, ROWS, FILM])
def test_a_link_to_a_missing_file_is_named(copy, name):
    (copy / name).unlink()
    (copy / name).symlink_to("../blobs/0a1b")
    text = "\n".join(map(str, faults(copy)))
    assert name in text and "is a link to ../blobs/0a1b, which is missing" in text


def test_a_stray_behind_a_linked_directory_is_named(whole, tmp_path):
    directory = data_sets.linked(whole, "disk", tmp_path)
    shutil.copy(directory / ROWS, directory / "data/chunk-000/old.parquet")
    (directory / "data/chunk-000/again").symlink_to("..")
    assert [fault.file for fault in faults(directory) if "belongs to no episode" in fault.message] == [
        "data/chunk-000/old.parquet"
    ]


@pytest.mark.parametrize("name", ["../{episode_index}", "/data/{episode_index}", "data/../../{episode_index}"])
@pytest.mark.parametrize("pattern", ["data_path", "video_path"])
def test_a_name_out_of_the_data_set_is_refused(copy, pattern, name):
    change(copy, **{pattern: name})
    assert any(f"{pattern} gives '{name.format(episode_index=0)}'" in str(fault) for fault in faults(copy))


DISGUISES = {
    "pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * b"b" + b"\nsize 694\n",
        "git lfs pull",
    ),
    "page": (b"<!DOCTYPE html><html><head><title>Box | Login</title></head></html>", "web page"),
    "empty": (b"", "it is empty"),
}


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("name", [*NUMBERS, ROWS, FILM, "open_the_drawer_demo.hdf5"])
def test_a_file_of_another_kind_is_named(copy, tmp_path, name, disguise):
    content, cause = DISGUISES[disguise]
    directory = data_sets.hdf5(tmp_path / "goal") if name.endswith(".hdf5") else copy
    (directory / name).write_bytes(content)
    text = "\n".join(map(str, faults(directory)))
    assert name in text and (cause in text or (disguise == "empty" and name.endswith("l"))), text


def test_a_locked_hdf5_file_is_named(tmp_path):
    path = data_sets.hdf5(tmp_path / "goal") / "open_the_drawer_demo.hdf5"
    code = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(DatasetError, match=r"open_the_drawer_demo\.hdf5.*another program"):
            open_dataset(path)
        other.stdin.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("name", [*NUMBERS, ROWS, FILM, "open_the_drawer_demo.hdf5"])
def test_a_file_without_permission_names_its_owner(copy, tmp_path, name):
    directory = data_sets.hdf5(tmp_path / "goal") if name.endswith(".hdf5") else copy
    (directory / name).chmod(0)
    assert f"uid {os.geteuid()}" in "\n".join(map(str, faults(directory)))


def test_a_raw_recording_says_how_observations_are_made(tmp_path):
    """demo.hdf5 as robosuite's and LIBERO's collection scripts write it."""
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        group = file.create_group("data/demo_1")
        group["states"], group["actions"] = np.zeros((20, 79)), np.zeros((20, 7))
    with pytest.raises(DatasetError, match=r"demo\.hdf5: demo_1 has no observations.*create_dataset\.py.*robomimic"):
        open_dataset(tmp_path)
    assert any("create_dataset.py" in str(fault) for fault in faults(tmp_path))


def test_a_camera_that_one_demonstration_lacks_is_named(tmp_path):
    directory = data_sets.hdf5(tmp_path / "goal")
    with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
        del file["data/demo_1/obs/eye_in_hand_rgb"]
    with pytest.raises(DatasetError, match="demo_1 has no obs/eye_in_hand_rgb; demo_0 has"):
        open_dataset(directory).frames(1, "observation.images.wrist_image")


def test_a_slip_in_a_text_is_not_a_damaged_file(copy):
    (copy / metadata.MODALITY).write_text('{"state": {},}')
    with pytest.raises(DatasetError, match=r"modality\.json cannot be read as JSON: .*line 1 column 1[34]"):
        LeRobotDataset(copy)


def test_a_video_names_no_other_file(copy, tmp_path):
    """FFmpeg would read such a text as a video, and open what it names."""
    shutil.copy(copy / FILM, copy / "other.mp4")
    text = "ffconcat version 1.0\nfile other.mp4\n"
    (copy / "list.mp4").write_text(text)
    assert len(videos.Video(copy / "other.mp4")) == 9
    with pytest.raises(DatasetError, match=r"list\.mp4 cannot be read as a video"):
        videos.Video(copy / "list.mp4")
    with pytest.raises(DatasetError, match="cannot be read"):
        videos.decode_image(f"ffconcat version 1.0\nfile {copy / 'other.mp4'}\n".encode(), "row 1")


def _linked(data, directory):
    data["demo_0/obs/ee_pos_2"] = h5py.ExternalLink(str(directory / "push_the_plate_demo.hdf5"), "data/demo_0/actions")


def _outside(data, directory):
    (directory / "bytes").write_bytes(bytes(12 * 3 * 4))
    del data["demo_0/obs/ee_pos"]
    outside = [(str(directory / "bytes"), 0, h5py.h5f.UNLIMITED)]
    data.create_dataset("demo_0/obs/ee_pos", (12, 3), np.float32, external=outside)


def _virtual(data, directory):
    layout = h5py.VirtualLayout((12, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(directory / "push_the_plate_demo.hdf5"), "data/demo_0/obs/ee_pos", (12, 3))
    del data["demo_0/obs/ee_pos"]
    data.create_virtual_dataset("demo_0/obs/ee_pos", layout)


def _huge(data, directory):
    del data["demo_0/obs/ee_pos"]
    data.create_dataset("demo_0/obs/ee_pos", (2**40, 3), np.float32, chunks=(1024, 3))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(_linked, "in another file"), (_outside, "in another file"), (_virtual, "in another file"),
     (_huge, "13,194,139,533,312 bytes; expected at most 4,294,967,296")],
)  # fmt: skip
def test_hdf5_reads_its_own_bytes_only(tmp_path, spoil, words):
    directory = data_sets.hdf5(tmp_path / "goal")
    with h5py.File(directory / "open_the_drawer_demo.hdf5", "r+") as file:
        spoil(file["data"], directory)
    with pytest.raises(DatasetError, match=r"open_the_drawer_demo\.hdf5: data/demo_0/obs/ee_pos") as refused:
        open_dataset(directory)
    assert words in str(refused.value) and any(words in str(fault) for fault in faults(directory))


def test_hdf5_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.hdf5")
    with pytest.raises(DatasetError, match=r"pipe\.hdf5.*regular file"):
        hdf5.LiberoFiles(tmp_path)


# --- sizes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NUMBERS, ROWS])
def test_a_file_beyond_its_limit_is_not_read(copy, name):
    limit = metadata.MAX_BYTES[f".{name.rpartition('.')[2]}"]
    os.truncate(copy / name, limit + 1)  # sparse: it takes no disk
    text = in_a_process(CHECK, copy)
    assert any(name in line and f"{limit + 1:,} bytes; expected at most {limit:,}" in line for line in text.split("\n"))


def test_a_line_beyond_its_limit_is_not_read(copy):
    with open(copy / metadata.EPISODES, "a") as file:
        file.write(json.dumps({"episode_index": 3, "tasks": ["x" * metadata.MAX_LINE_BYTES], "length": 1}))
    with pytest.raises(DatasetError, match=r"episodes\.jsonl, row 4.*16,777,216 bytes"):
        LeRobotDataset(copy)


def test_more_lines_than_the_limit_are_not_read(copy, monkeypatch):
    monkeypatch.setattr(metadata, "MAX_LINES", 2)
    with pytest.raises(DatasetError, match=r"episodes\.jsonl, row 3.*at most 2 lines"):
        LeRobotDataset(copy)


def test_a_line_ends_at_a_line_feed_alone(copy):
    (copy / metadata.TASKS).write_text(json.dumps({"task_index": 0, "task": "a\u2028b"}, ensure_ascii=False) + "\n")
    assert LeRobotDataset(copy).tasks == {0: "a\u2028b"}


def test_rows_that_a_few_bytes_promise_are_not_read(copy):
    tables.write(copy / ROWS, {"action": np.zeros(metadata.MAX_ROWS + 1, np.int8)})
    assert (copy / ROWS).stat().st_size < 2**20
    with pytest.raises(DatasetError, match="10,000,001 rows; expected at most 10,000,000"):
        LeRobotDataset(copy).columns(1)


@pytest.mark.parametrize("number", [10**12, -1, 10**400], ids=["many", "negative", "digits"])
def test_numbers_beyond_an_episode_are_refused(copy, number):
    with open(copy / metadata.EPISODES, "a") as file:
        file.write(f'{{"episode_index": {number}, "tasks": ["a"], "length": 1}}\n')
    with pytest.raises(DatasetError, match=r"episodes\.jsonl, row 4.*1,000,000,000"):
        LeRobotDataset(copy)


@pytest.mark.parametrize("chunks", ["x", 0, -3, 1.5])
def test_a_chunk_size_is_a_whole_number(copy, chunks):
    change(copy, chunks_size=chunks)
    with pytest.raises(DatasetError, match="chunks_size"):
        LeRobotDataset(copy)


def test_a_shape_beyond_its_limit_is_refused(copy):
    features = json.loads((copy / metadata.INFO).read_text())["features"]
    change(copy, features=features | {"action": {"dtype": "float32", "shape": [10**12], "names": None}})
    with pytest.raises(DatasetError, match=r"feature action has shape \[1000000000000\].*1000000"):
        LeRobotDataset(copy)


@pytest.mark.parametrize("shape", [True, "x", {"x": 1}, [[]], ["7"], [-1], [float("inf")]])
def test_a_shape_is_a_list_of_whole_numbers(copy, shape):
    features = json.loads((copy / metadata.INFO).read_text())["features"]
    change(copy, features=features | {"action": {"dtype": "float32", "shape": shape}})
    with pytest.raises(DatasetError, match="feature action has shape"):
        LeRobotDataset(copy)


@pytest.mark.parametrize("parts", [True, "x", ["x"], {"x": 1}])
@pytest.mark.parametrize("kind", ["state", "action", "video", "annotation"])
def test_parts_of_a_modality_are_objects(copy, kind, parts):
    change(copy, metadata.MODALITY, **{kind: parts})
    with pytest.raises(DatasetError, match=rf"modality\.json: {kind} is "):
        LeRobotDataset(copy)


def test_curves_end_where_the_column_does(copy):
    """A modality.json that names 10^12 numbers of a column of 7."""
    modality = json.loads((copy / metadata.MODALITY).read_text())
    change(copy, metadata.MODALITY, action=modality["action"] | {"x": {"start": 0, "end": 10**12}})
    text = in_a_process(
        "import sys; from vla_datasets.lerobot import LeRobotDataset; from vla_datasets.pages import page\n"
        "dataset = LeRobotDataset(sys.argv[1])\n"
        "print([len(one['lines']) for one in page.charts(dataset, dataset.episodes[0]) if one['title'] == 'action x'])",
        copy, 60,
    )  # fmt: skip
    assert text.strip() == "[7]"


# --- text ------------------------------------------------------------------------------------------------------

EVIL = "x\x1b[2J\x1b]0;owned\x07\r\x9b\u202e\nno faults"


@pytest.fixture
def evil(copy):
    """A data set whose every text would clear the screen and forge a line."""
    tasks = (copy / metadata.TASKS).read_text().replace("open the drawer", json.dumps(EVIL)[1:-1])
    (copy / metadata.TASKS).write_text(tasks)
    episodes = (copy / metadata.EPISODES).read_text().replace("open the drawer", json.dumps(EVIL + "2")[1:-1])
    (copy / metadata.EPISODES).write_text(episodes)
    features = json.loads((copy / metadata.INFO).read_text())["features"]
    change(copy, robot_type=EVIL, features=features | {EVIL: {"dtype": EVIL, "shape": [2], "names": [EVIL, "b"]}})
    modality = json.loads((copy / metadata.MODALITY).read_text())
    change(copy, metadata.MODALITY, action=modality["action"] | {EVIL: {"start": 0, "end": 1, "rotation_type": EVIL}})
    return copy


@pytest.mark.parametrize("flags", [(), ("--check",), ("--show",), ("--bad", "0")])
def test_text_of_a_data_set_steers_no_terminal(evil, tmp_path, flags):
    command = [sys.executable, "-m", "services.libero.datasets", str(evil), *flags]
    environment = {**os.environ, "VLALAB_VOLUME": str(tmp_path / "volume")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    text = done.stdout + done.stderr
    assert not CONTROL.search(text) and "\nno faults" not in text, text
    assert r"\x1b[2J" in text or "--show" in flags or "--bad" in flags, text


def test_an_error_about_a_data_set_steers_no_terminal(copy, tmp_path):
    change(copy, codebase_version=EVIL, data_path=EVIL)
    command = [sys.executable, "-m", "services.libero.datasets", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "VLALAB_VOLUME": str(tmp_path)})
    assert done.returncode == 1 and r"\x1b[2J" in done.stderr and not CONTROL.search(done.stderr)


def test_the_colours_of_help_reach_the_terminal():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "services.libero.datasets", "--help"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        sent = b""
        with suppress(OSError), open(ours, "rb", buffering=0) as terminal:  # reading ends with an error
            while part := terminal.read(2**16):
                sent += part
    assert process.returncode == 0 and b"\x1b[1m" in sent and rb"\x1b" not in sent


# --- episodes without rows -------------------------------------------------------------------------------------


def test_an_episode_without_rows_is_named_and_left_out(copy, tmp_path, monkeypatch, capsys):
    data_sets.without_rows(copy)
    grave = [str(fault) for fault in faults(copy) if fault.grave]
    assert "meta/episodes.jsonl, row 2: length is 0; expected at least one step" in grave
    assert f"{ROWS}: has no rows; training skips episode 1" in grave
    assert not any(FILM in one or "reshape" in one for one in grave)
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(copy, show=True) == 0 and program.read(copy) == 0
    assert "episodes without rows, which training leaves out: 1\n" in capsys.readouterr().out
    written = conversion.recode(open_dataset(copy), tmp_path / "written")
    assert [episode.length for episode in written.episodes] == [12, 10]
    assert "copy: 1 without rows (1) are left out" in capsys.readouterr().out


def test_a_demonstration_without_rows_is_named_and_left_out(tmp_path, monkeypatch, capsys):
    directory = data_sets.without_rows(data_sets.hdf5(tmp_path / "goal"))
    words = [str(fault) for fault in faults(directory) if fault.grave]
    assert words == [
        "open_the_drawer_demo.hdf5: data/demo_1 has no rows; training skips it",
        "push_the_plate_demo.hdf5: data/demo_0 has no rows; training skips it",
    ]
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    assert program.read(directory, show=True) == 0 and program.read(directory) == 0
    written = conversion.recode(open_dataset(directory), tmp_path / "written")
    assert [episode.length for episode in written.episodes] == [12]
    assert "goal: 2 without rows (1, 2) are left out" in capsys.readouterr().out


def test_where_no_episode_has_rows_nothing_is_learned(copy):
    for index in range(3):
        data_sets.without_rows(copy, index)
    assert program.read(copy) == 0
    with pytest.raises(DatasetError, match="no episode with a step"):
        marks.leave_out(open_dataset(copy))
