"""What a person sees while packages are downloaded: how much is there, and how long the rest takes."""

import functools
import http.server
import os
import sys
import threading
import zipfile

import pytest

from vlalab.environments import venvs
from vlalab.environments.downloads import Downloads

NAMES = ("small", "large")
MIB = 2**20


def wheel(folder, name: str, size: int) -> None:
    """Writes a package of that many bytes which cannot be packed any smaller."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}/data.bin", os.urandom(size))
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path):
    """The address of a package index on loopback, with a package of 2 MiB and one of 6."""
    for name, size in zip(NAMES, (2 * MIB, 6 * MIB), strict=True):
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        wheel(folder, name, size)
        (folder / "index.html").write_text(f'<a href="{name}-1.0-py3-none-any.whl">x</a>')
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "index")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


class Line:
    """What would stand in the status line."""

    def __init__(self):
        self.shown = []

    def update(self, detail: str) -> None:
        self.shown.append(detail)


def test_the_installers_own_words_are_understood(index, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_INDEX_URL", index)
    line = Line()
    there = ["pip", "install", "--target", str(tmp_path / "there"), "--python", sys.executable, *NAMES]
    venvs.uv(there, line)
    assert {(tmp_path / "there" / name / "data.bin").stat().st_size for name in NAMES} == {2 * MIB, 6 * MIB}
    assert "8 MB of 8 MB" in line.shown, line.shown


def test_what_follows_the_installation_is_named(index, tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_INDEX_URL", index)
    line = Line()
    there = ["pip", "install", "--compile-bytecode", "--target", str(tmp_path / "there"), "--python", sys.executable]
    venvs.uv([*there, *NAMES], line)
    assert "compiling bytecode" in line.shown and not any(text.startswith("Installed") for text in line.shown)


def test_the_rest_takes_as_long_as_what_is_there_has_taken():
    now = [0.0]
    downloads = Downloads(clock=lambda: now[0])
    assert downloads.take("Resolved 83 packages in 2ms\n") == "Resolved 83 packages in 2ms"
    assert downloads.take("Downloading torch (1.5GiB)") == "0 MB of 1.6 GB"
    downloads.take("Downloading numpy (512.0MiB)")
    now[0] = 10.0
    assert downloads.take(" Downloaded numpy") == "537 MB of 2.1 GB, about 30 s left"
    assert downloads.take(" Downloaded torch") == "2.1 GB of 2.1 GB"


def test_what_it_downloaded_without_naming_its_size_is_shown_as_said():
    assert Downloads().take(" Downloaded tqdm") == "Downloaded tqdm"
