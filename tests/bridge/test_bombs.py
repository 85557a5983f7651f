"""Small messages that would become large: refused within a bound of memory, in a real process; large ones are taken."""

import contextlib
import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from PIL import Image
from websockets.sync.client import connect

from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import unpack
from tests.bridge.test_server import Wave, door
from tests.libero.harness import ENVIRONMENT, ROOT, wait_for
from tests.running import running
from vla_contract.protocol.image_budget import MAX_DECODED_BYTES, MAX_IMAGES, MAX_SCANS

BASE_MB, PEAK_MB = 90, 400  # of the process before any message, and whatever one message holds


def encoded(height: int, width: int, kind: str = "PNG", **settings) -> dict:
    """Returns a black image as vla-eval sends one."""
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, kind, **settings)
    return {"__image__": True, "format": kind.lower(), "data": file.getvalue(), "shape": [height, width, 3]}


def observation(images: dict) -> bytes:
    payload = {"images": images, "task_description": "put it away"}
    return msgpack.packb({"type": "observation", "payload": payload, "seq": 7, "timestamp": 0.0})


def with_scans(image: dict, count: int) -> dict:
    """Returns a progressive JPEG whose last scan comes `count` times more."""
    data = image["data"]
    last = data.rfind(b"\xff\xda")
    return {**image, "data": data[:last] + data[last:-2] * (count + 1) + data[-2:]}


@contextlib.contextmanager
def bridge(policy_url: str, log: Path) -> Iterator[tuple[str, int]]:
    """Yields address and pid of the service `openpi` in a process of its own."""
    command = [sys.executable, "-m", "services.bridge", "openpi", "--policy-url", policy_url, "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=output, stderr=output)
    try:
        found = wait_for(lambda: re.search(r"listening on (ws://\S+)", log.read_text()), "the bridge's start")
        yield found[1], process.pid
    finally:
        process.kill()
        process.wait()


def peak_mb(pid: int) -> float:
    """Returns the most memory that a process has held so far."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    policy = Wave(image_hw=None, state=())
    with running(policy) as served, bridge(served.url, tmp_path_factory.mktemp("bridge") / "log") as (url, pid):
        assert peak_mb(pid) < BASE_MB
        yield url, pid


def bombs() -> dict[str, bytes]:
    large, small = encoded(4096, 4096), encoded(8, 8)
    scans = with_scans(encoded(2048, 2048, "JPEG", progressive=True), 2000)
    texts = b"\xdc\x10\x00" + b"\xa2ab" * 4096
    return {
        "200 PNGs of 4096 x 4096": observation({f"camera{n}": large for n in range(200)}),
        "two PNGs that are too large together": observation({"agentview": large, "wrist": large}),
        "many small images": observation({f"camera{n}": small for n in range(MAX_IMAGES + 1)}),
        "a JPEG of 2000 scans": observation({"agentview": scans}),
        "lists of short texts": b"\x81\xa1a\xdc\x02\x00" + texts * 512,
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("200 PNGs of 4096 x 4096", str(MAX_DECODED_BYTES)),
        ("two PNGs that are too large together", str(MAX_DECODED_BYTES)),
        ("many small images", f"more than {MAX_IMAGES} images"),
        ("a JPEG of 2000 scans", f"at most {MAX_SCANS}"),
        ("lists of short texts", "values"),
    ],
)
def test_decompression_bomb_is_rejected_within_the_memory_limit(name, says, service):
    url, pid = service
    frame = bombs()[name]
    assert len(frame) < 10e6
    with connect(f"{url}/vla-eval", compression=None) as client:
        client.send(frame)
        answer = client.recv(timeout=60)
        assert isinstance(answer, str) and says in answer
    assert peak_mb(pid) < PEAK_MB


def test_several_images_of_1080p_are_taken(service):
    url, pid = service
    full = encoded(1080, 1920)
    views = {"agentview": full, "wrist": encoded(1080, 1920, "JPEG", progressive=True), "left": full, "right": full}
    with connect(f"{url}/vla-eval", compression=None) as client:
        client.send(observation(views))
        answer = unpack(client.recv(timeout=60))
        assert (answer.type, answer.seq) == ("action", 7)
    assert peak_mb(pid) < PEAK_MB


def test_values_of_any_depth_are_reported_in_a_sentence(service):
    url, _ = service
    for depth in (500, 950, 980, 1000, 1020):
        nested = b"\x91" * depth + b"\xc0"
        fields = (b"\xa4type" + nested, b"\xa7payload\x80", b"\xa3seq\x01")
        with connect(f"{url}/vla-eval", compression=None) as client:
            client.send(b"\x83" + b"".join(fields))
            assert "the bridge failed" not in client.recv(timeout=10)


def test_work_on_a_message_stops_when_its_client_has_left(monkeypatch):
    """The client closes while the second of eight images is decoded."""
    decoded, in_work, go_on = [], threading.Event(), threading.Event()

    class Formats(dict):
        def __getitem__(self, kind):
            decoded.append(kind)
            if len(decoded) == 2:
                in_work.set()
                assert go_on.wait(30)
            return super().__getitem__(kind)

    monkeypatch.setattr(messages, "_FILES", Formats(messages._FILES))
    views = {"agentview": encoded(8, 8), "wrist": encoded(8, 8), **{f"camera{n}": encoded(8, 8) for n in range(6)}}
    policy = Wave(image_hw=None, state=())
    with door(policy) as url:
        before = len(policy.seen)
        with connect(f"{url}/vla-eval", compression=None) as client:
            client.send(observation(views))
            assert in_work.wait(30)
        go_on.set()
    assert len(decoded) == 2 and len(policy.seen) == before
