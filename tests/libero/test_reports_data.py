"""Data sets as the service of reports hands them out: what is in one, films, marks, and what it never opens."""

import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest

from tests import data_sets
from tests.libero.test_reports import SECRET, UI, ask, serving
from vla_datasets import libero, marks, program
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.tables import pq

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not UI.exists(), reason="environment 'ui' is not made: ./lab env ui"),
]
FILM = f"{libero.video_key('agentview')}.mp4"


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with a set in order, one of HDF5, damaged ones, and planted links."""
    root = tmp_path_factory.mktemp("lab") / "volume"
    sets = root / "datasets"
    data_sets.lerobot(sets / "goal-one")
    data_sets.hdf5(sets / "goal-hdf5")
    outside = root.parent / "outside"
    shutil.copytree(sets / "goal-one", outside)
    (outside / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": SECRET.decode()}) + "\n")
    (sets / "led-away").symlink_to(outside)
    for name in ("inner", "filmed", "escaping", "cut", "version3", "wide", "half", "endless", "swollen", "dressed"):
        shutil.copytree(sets / "goal-one", sets / name)
    (sets / "inner" / "meta" / "tasks.jsonl").unlink()
    (sets / "inner" / "meta" / "tasks.jsonl").symlink_to(outside / "meta" / "tasks.jsonl")
    film, rows = (next((sets / "filmed").rglob(f"*0.{kind}")) for kind in ("mp4", "parquet"))
    for path in (film, rows):
        path.unlink()
        path.symlink_to(next(outside.rglob(path.name)))
    change(sets / "escaping", video_path="../../../outside/{episode_index}.mp4", data_path="/etc/{episode_index}")
    change(sets / "wide", data_path="data/{episode_index:300000000d}.parquet")
    (sets / "half" / "meta" / "tasks.jsonl").write_text('{"task_index": 0, "task": "a\\ud800"}\n')
    change(sets / "endless", fps=float("inf"))
    (sets / "cut" / "meta" / "info.json").write_text("{")
    change(sets / "version3", codebase_version="v3.1")
    (sets / "notes.txt").write_text("no data set")
    os.mkfifo(sets / "pipe.hdf5")
    return root


def change(directory, **facts):
    path = directory / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


@pytest.fixture(scope="module")
def url(volume):
    with serving(volume) as address:
        yield address


def told(url, path="", **headers):
    status, _, body = ask(url, f"/api/data{path}", **headers)
    return status, json.loads(body)


def mark(url, name, **asked):
    import http.client

    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    kind = asked.pop("kind", "application/json")
    connection.request("POST", f"/api/data/{name}/marks", json.dumps(asked), {"Content-Type": kind})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def test_every_set_is_listed_with_what_is_in_it_or_why_it_cannot_be_read(url):
    rows = {row["name"]: row for row in told(url)[1]["sets"]}
    assert set(rows) == {
        "goal-one", "goal-hdf5", "inner", "filmed", "escaping", "cut", "version3", "wide", "half", "endless",
        "swollen", "dressed", "pipe.hdf5",
    }  # fmt: skip
    one = rows["goal-one"]
    assert (one["episodes"], one["tasks"], one["fps"], one["steps"]) == (3, 2, 20, 31) and one["bytes"] > 5000
    assert one["cameras"] == ["image", "wrist_image"] and one["bad"] == 0
    assert (rows["goal-hdf5"]["episodes"], rows["goal-hdf5"]["tasks"]) == (3, 2)
    assert "cannot be read as JSON" in rows["cut"]["why"] and "v3.1" in rows["version3"]["why"]
    assert "data_path is 'data/{episode_index:300000000d}.parquet'" in rows["wide"]["why"]
    assert "tasks.jsonl, row 1" in rows["half"]["why"] and "fps is inf" in rows["endless"]["why"]
    assert all(told(url, f"/{name}")[0] in (200, 409) for name in rows)
    assert "tasks.jsonl" in rows["inner"]["why"] and "pipe.hdf5" in rows["pipe.hdf5"]["why"]


def test_an_episode_has_curves_and_videos_that_seek(url, volume):
    status, shown = told(url, "/goal-one/episodes/1")
    assert (status, shown["steps"], shown["task"]) == (200, 9, data_sets.TASKS[1])
    names = {line["name"] for chart in shown["charts"] for line in chart["lines"]}
    assert {*libero.ACTION_NAMES, *libero.STATE_NAMES} <= names
    path = f"/api/data/goal-one/films/1/{FILM}"
    status, headers, part = ask(url, path, Range="bytes=4-7")
    assert (status, part, headers["content-type"]) == (206, b"ftyp", "video/mp4")
    whole = LeRobotDataset(volume / "datasets" / "goal-one").video_path(1, libero.video_key("agentview"))
    assert ask(url, path)[2] == whole.read_bytes()


@pytest.mark.parametrize("path", [
    "/led-away", "/led-away/episodes/0", f"/led-away/films/0/{FILM}", "/inner", f"/filmed/films/0/{FILM}",
    "/filmed/episodes/0", f"/escaping/films/0/{FILM}", "/escaping/episodes/0", "/goal-one/episodes/7", "/goal-hdf5",
    "/goal-one/films/0/observation.state.mp4", "/goal-one/films/0/..%2f..%2fmeta%2finfo.json.mp4", "/..%2fruns",
    "/%2e%2e", "/.goal-one.marks.json", "/notes.txt", "/nothing", "/goal-one/episodes/-1", "/goal-one/episodes/%D9%A1",
    f"/goal-one/episodes/{'9' * 5000}", f"/goal-one/films/{'9' * 10}/{FILM}",
])  # fmt: skip
def test_what_a_link_or_a_name_leads_to_is_not_handed_out(url, path):
    status, _, body = ask(url, f"/api/data{path}")
    assert status in (404, 409) and SECRET not in body and b"Traceback" not in body and b"ftyp" not in body


def test_rows_that_would_fill_the_memory_are_not_read(url, volume):
    """64 kB of parquet for 200 million zeros, which took 3.1 GB."""
    rows = next((volume / "datasets" / "swollen").rglob("*0.parquet"))
    with pq.ParquetWriter(rows, pa.schema([("action", pa.float64())])) as writer:
        for _ in range(200):
            writer.write_table(pa.table({"action": np.zeros(1_000_000)}))
    assert rows.stat().st_size < 100_000
    for name in (rows.name, "0.rows"):
        rows = rows.rename(rows.with_name(name))
        change(volume / "datasets" / "swollen", data_path=str(rows.relative_to(volume / "datasets" / "swollen")))
        status, answer = told(url, "/swollen/episodes/0")
        assert status == 409 and "200,000,000" in answer["detail"]
    assert peak_mb(urlsplit(url).port) < 400


def test_images_in_rows_are_not_decoded_for_a_page(url, volume):
    """100 kB of parquet: 20,000 rows name one image of 100 kB, 2 GB in all."""
    rows = next((volume / "datasets" / "dressed").rglob("*0.parquet"))
    same, kept = np.zeros(20_000, np.int32), pq.read_table(rows)
    images = pa.DictionaryArray.from_arrays(pa.array(same), pa.array([os.urandom(100_000)]))
    columns = {name: kept.column(name).take(pa.array(same)) for name in kept.column_names}
    pq.write_table(pa.table({**columns, "front": images, f"{libero.ACTION}.x": images}), rows)
    assert rows.stat().st_size < 1_000_000
    status, answer = told(url, "/dressed/episodes/0")
    titles = [one["title"] for one in answer["charts"]]
    assert status == 200 and any("state" in title for title in titles) and len(answer["charts"]) >= 2
    assert peak_mb(urlsplit(url).port) < 400


def peak_mb(port):
    """Return the most memory that the service at a port has held so far."""
    ended = f"\0--port\0{port}\0".encode()
    process = next(path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if ended in path.read_bytes())
    return int(re.search(r"VmHWM:\s+(\d+)", (process / "status").read_text())[1]) / 1024


def test_a_mark_is_kept_next_to_the_set_and_taken_back(url, volume):
    directory = volume / "datasets" / "goal-one"
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert mark(url, "goal-one", bad=[2, 0]) == (200, {"bad": [0, 2]})
    assert [one["bad"] for one in told(url, "/goal-one")[1]["episodes_told"]] == [True, False, True]
    assert marks.read(LeRobotDataset(directory)).bad == (0, 2)
    assert {row["name"]: row["bad"] for row in told(url)[1]["sets"] if "bad" in row}["goal-one"] == 2
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert mark(url, "goal-one", good=[0, 2]) == (200, {"bad": []}) and not marks.path_of(directory).exists()


def test_marks_that_make_no_sense_are_refused(url, volume):
    for asked in ({"bad": [9]}, {"bad": ["x"]}, {"bad": "0"}, {"bad": [True]}, {"bad": [0], "kind": "text/plain"}):
        assert mark(url, "goal-one", **asked)[0] in (400, 409, 415)
    assert mark(url, "led-away", bad=[0])[0] == 404 and mark(url, "goal-hdf5", bad=[0])[0] == 409
    path = marks.path_of(volume / "datasets" / "goal-one")
    path.symlink_to(volume.parent / "outside" / "meta" / "info.json")
    assert mark(url, "goal-one", bad=[0])[0] == 409 and told(url, "/goal-one")[1]["marks_trouble"]
    path.unlink()
    path.write_text(json.dumps({"of": "another", "bad": [0]}))
    assert "an earlier set" in told(url, "/goal-one")[1]["marks_trouble"]
    path.unlink()


def test_a_check_s_verdict_is_shown_until_the_set_changes(url, volume, monkeypatch):
    monkeypatch.setenv("VLALAB_VOLUME", str(volume))
    assert told(url, "/goal-one")[1]["check"] is None
    directory = volume / "datasets" / "goal-one"
    assert program.read(directory, check=True) == 0
    found = told(url, "/goal-one")[1]["check"]
    assert (found["lines"][0], found["grave"], found["is_old"]) == ("no faults", 0, False)
    assert found["lines"][-1].endswith("no suspicions")
    os.utime(directory / "meta" / "info.json", (4e9, 4e9))
    assert told(url, "/goal-one")[1]["check"]["is_old"]
