"""Attacks on the page as it really runs, by people who speak Gradio's protocol by hand: no file of the host gets out.

They go to a process of its own, logged in and not, with a token set and none, and hold whatever Gradio's version
serves: what counts is that the secret is in no answer and in no file of the page, and that the probes go on.
"""

import contextlib
import functools
import http.server
import json
import os
import pickle
import stat
import threading
import time
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path

import httpx
import pytest
from serving import address_of, nobody, program

TOKEN = "open-sesame"
SECRET = "root:$6$the-planted-secret:19000:0:99999:7:::"
META = {"_type": "gradio.FileData"}
SESSION = "attacker01"
HOW = ["no token", "logged in", "not logged in"]


@functools.cache
def values_taken() -> list[int]:
    """Returns how many values the page's functions take, up to the one that looks at an upload: others are like it."""
    from services.ui.ask import page
    from services.ui.ask.choice import Choice
    from services.ui.ask.link import PolicyLink

    with contextlib.closing(PolicyLink(nobody())) as link:
        functions = list(page.build(Choice(link)).fns.values())
    names = [function.api_name for function in functions]
    return [len(function.inputs) for function in functions[: names.index("look_at") + 1]]


class Page:
    """A page in a process, its temporary folder, a secret beside that, and a client to attack with."""

    def __init__(self, url: str, tmp: Path, secret: Path, logged_in: bool | None):
        self.url, self.tmp, self.secret, self.allowed = url, tmp, secret, logged_in is not False
        self.http = httpx.Client(base_url=f"{url}/ask", timeout=20.0)
        if logged_in:
            data = {"username": "me", "password": TOKEN}
            self.http.cookies.update(httpx.post(f"{url}/login", data=data).cookies)
        self.said: list[str] = []

    @property
    def cache(self) -> Path:
        """The folder of uploads."""
        return next(self.tmp.glob("vlalab-ui-*"))

    def __call__(self, method: str, path: str, **settings) -> int:
        """Returns the status of a request and keeps what was answered; streams are read for two seconds."""
        end = time.monotonic() + 2.0
        text = ""
        with (
            self.http.stream(method, path, **settings) as response,
            suppress(httpx.NetworkError, httpx.RemoteProtocolError),
        ):
            for piece in response.iter_text():  # Gradio ends a stream of nothing by hanging up
                text += piece
                if time.monotonic() > end or "process_completed" in text or "close_stream" in text:
                    break
        self.said.append(text)
        return response.status_code

    def uploaded(self, name: str = "a.png", data: bytes = b"mine") -> str:
        """Returns the path of a file that was uploaded as everyone may."""
        return self.http.post("/gradio_api/upload", files={"files": (name, data)}).json()[0]

    def ask(self, *data) -> None:
        """Sends values through every way that leads to a function, again from the first to those that take more."""
        for fn_index, count in enumerate(values_taken()):
            body = {"data": list(islice(cycle(data), count)), "session_hash": SESSION}
            if self("POST", "/gradio_api/queue/join", json={**body, "fn_index": fn_index}) == 200:
                self("GET", "/gradio_api/queue/data", params={"session_hash": SESSION})
            self("POST", "/gradio_api/run/predict", json={**body, "fn_index": fn_index})
        for name in ("ask", "look_afresh", "load_example"):
            for way in ("run", "api", "call", "call/v2"):
                body = {"data": list(data), "session_hash": SESSION}
                self("POST", f"/gradio_api/{way}/{name}", json=body)

    def look_for_it(self) -> None:
        """Asks for whatever may now hold a copy, and fails where the secret is in an answer or in the cache."""
        for path in ("/", "/config", f"/gradio_api/deep_link?session_hash={SESSION}"):
            self("GET", path)
        for link in [text.strip('"') for text in self.said if 0 < len(text) < 64]:
            self("GET", "/config", params={"deep_link": link})
        copies = [path for path in self.cache.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        assert copies == []
        assert not any(SECRET in text for text in self.said)

    def is_well(self) -> None:
        """Fails where a probe does not answer."""
        for probe in ("/livez", "/readyz"):
            assert httpx.get(self.url + probe, timeout=20).status_code == 200


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two pages that run: (address, temporary folder) with no token and with one."""
    started, found = [], {}
    try:
        for token in ("", TOKEN):
            tmp = tmp_path_factory.mktemp("tmp")
            process = program("--port", "0", "--policy-url", nobody(), TMPDIR=str(tmp), VLALAB_TOKEN=token)
            started.append(process)
            found[bool(token)] = address_of(process), tmp
        yield found
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(params=HOW)
def attacked(request, pages, tmp_path):
    url, tmp = pages[request.param != "no token"]
    secret = tmp_path / "shadow"
    secret.write_text(SECRET)
    page = Page(url, tmp, secret, {"no token": None, "logged in": True, "not logged in": False}[request.param])
    yield page
    page.http.close()
    page.is_well()


@contextmanager
def inner_server():
    """Gives the address of a server that no stranger may reach, and what it was asked for."""
    asked = []

    class Inner(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(SECRET.encode())

        do_HEAD = do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Inner)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/inner.png", asked
    finally:
        server.shutdown()


def spellings(page: Page) -> list[str]:
    """Returns ways to write the path of the secret."""
    path, here = str(page.secret), str(page.cache)
    up = "/".join([".."] * (here.count("/") + 0))
    found = [path, f"file://{path}", f"/{path}", f"{here}/../{os.path.relpath(path, page.tmp)}", f"{here}/{up}{path}"]
    return [*found, os.path.relpath(path), f"{here}/%2e%2e/%2e%2e{path}", f"/proc/self/root{path}"]


def test_a_path_in_a_form_is_not_read(attacked):
    for path in spellings(attacked):
        file = {"path": path, "meta": META}
        attacked.ask(file, "open it", "libero_goal", False)
    attacked.ask(file, file, file, file)
    attacked.ask({"value": file, "__type__": "update"}, [[file]], {"a": {"b": [file]}}, False)
    attacked.ask({"path": str(attacked.secret), "is_stream": True, "meta": META}, "x", None, False)
    attacked.look_for_it()


def test_a_second_key_of_the_same_name_hides_nothing(attacked):
    file = json.dumps({"path": str(attacked.secret), "meta": META})
    data = f'[{file[:-1]}, "path": "{attacked.secret}"}}, "x", null, false]'
    body = f'{{"data": {data}, "session_hash": "{SESSION}", "fn_index": 4}}'
    for way in ("queue/join", "run/predict"):
        attacked("POST", f"/gradio_api/{way}", content=body, headers={"Content-Type": "application/json"})
        attacked("POST", f"/gradio_api/{way}", content=body, headers={"Content-Type": "text/plain"})
    attacked.look_for_it()


def test_a_path_in_an_address_is_not_served(attacked):
    for path in spellings(attacked):
        for way in ("file=", "file/", "proxy=", "stream/", "custom_component/"):
            attacked("GET", f"/gradio_api/{way}{path}")
        for way in ("static/", "assets/", "svelte/", "file="):
            attacked("GET", f"/{way}{path}")
            attacked("GET", f"/{way}" + "%2e%2e/" * 12 + path)
    attacked.look_for_it()


def test_a_link_in_the_cache_leads_nowhere(attacked):
    folder = attacked.cache / ("0" * 64)
    folder.mkdir(exist_ok=True)
    (folder / "a.png").symlink_to(attacked.secret)
    (folder / "b").symlink_to(attacked.secret.parent)
    try:
        for path in (folder / "a.png", folder / "b" / attacked.secret.name):
            attacked("GET", f"/gradio_api/file={path}")
            attacked.ask({"path": str(path), "meta": META}, "x", None, False)
        assert not any(SECRET in text for text in attacked.said)
    finally:
        (folder / "a.png").unlink()
        (folder / "b").unlink()


def test_a_device_does_not_hang_it(attacked):
    """`/dev/zero` never ends; the page must not begin to read it, nor a pipe that nobody writes to."""
    os.mkfifo(attacked.secret.parent / "pipe")
    for path in ("/dev/zero", str(attacked.secret.parent / "pipe")):
        body = {"data": [{"path": path, "meta": META}, "x", None, False, []], "session_hash": SESSION}
        for fn_index in (3, 4, 5):
            for way in ("queue/join", "run/predict"):
                attacked("POST", f"/gradio_api/{way}", json={**body, "fn_index": fn_index})
        attacked("GET", f"/gradio_api/file={path}")
        attacked.is_well()
    assert sum(path.stat().st_size for path in attacked.cache.rglob("*") if path.is_file()) < 1e6


def test_it_fetches_nothing_for_strangers(attacked):
    with inner_server() as (inner, asked):
        mine = attacked.uploaded() if attacked.allowed else "/x"
        for file in ({"path": inner}, {"path": mine, "url": inner}, {"path": mine, "url": inner, "is_stream": True}):
            attacked.ask({**file, "meta": META}, "x", None, False)
        for way in ("file=", "proxy=", "stream/"):
            attacked("GET", f"/gradio_api/{way}{inner}")
        assert asked == []
    attacked.look_for_it()


def test_huge_deep_and_foreign_bodies_are_refused(attacked):
    kinds = ("application/json", "application/octet-stream", "text/plain")
    bodies = (
        b"[" * 60_000,
        pickle.dumps({"data": [os.system]}),
        b'{"data":' + b"9" * 2**21 + b"}",
        b'"\\ud800"',
        b"\xff",
    )
    for way in ("queue/join", "run/predict"):
        for content in bodies:
            for kind in kinds:
                status = attacked("POST", f"/gradio_api/{way}", content=content, headers={"Content-Type": kind})
                assert 400 <= status < 500
    endless = (bytes(2**16) for _ in range(2**11))  # 128 MiB, chunked: its length is not told
    with suppress(httpx.TransportError):  # it may hang up in mid-body: as good
        assert 400 <= attacked("POST", "/gradio_api/upload", content=endless) < 500


def test_before_the_login_there_is_the_login(pages):
    url, _ = pages[True]
    for path in ("/ask/config", "/ask/gradio_api/info", "/ask/gradio_api/queue/data?session_hash=x", "/runs"):
        assert httpx.get(url + path).status_code == 401
    for path in (
        "/openapi.json",
        "/gradio_api/openapi.json",
        "/docs",
        "/redoc",
        "/monitoring",
        "/gradio_api/app_id",
        "/gradio_api/heartbeat/x",
    ):
        assert httpx.get(url + path).status_code in (401, 404)
    first = httpx.get(url).text
    assert "VLALAB_TOKEN" in first and "Unnorm key" not in first and "gradio" not in first


def test_only_what_the_page_uses_is_served(attacked):
    """Every route that this version of Gradio has, but those that the filter lists, is no route here."""
    from services.ui.ask.request_filter import ROUTES

    found = 0
    for method, path in gradio_routes():
        if not any(route.fits(method, path) for route in ROUTES):
            assert attacked(method, path) == (404 if attacked.allowed else 401), (method, path)
            found += 1
    assert found > 40


def test_a_name_longer_than_a_file_system_takes_is_no_route(attacked):
    for path in (f"/assets/{'a' * 2000}", f"/static/{'a' * 2000}.js", "/static/" + "a/" * 2000 + "b"):
        assert attacked("GET", path) in (401, 404)


def test_values_that_suit_no_component_are_the_senders_fault(attacked):
    values = ("\u202e", None, -1, [], {"a": 1}, 1e308)
    for index in range(12):
        for value in values:
            for count in range(4):
                call = {"data": [value] * count, "fn_index": index, "session_hash": SESSION, "trigger_id": 1}
                assert attacked("POST", "/gradio_api/run/predict", json=call) < 500, call


def gradio_routes() -> list[tuple[str, str]]:
    """Returns the method and an address of every route of a Gradio application."""
    import re

    import gradio as gr
    from gradio.routes import App

    with gr.Blocks() as empty:
        pass
    schema = App.create_app(empty).openapi()
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "x", path)) for path, ways in schema["paths"].items() for method in ways
    ]


def test_the_cache_is_this_users_alone_and_has_a_bound(attacked):
    assert stat.S_IMODE(attacked.cache.stat().st_mode) == 0o700
    if not attacked.allowed:
        return
    from services.ui.ask.uploads import MAX_BYTES

    first = attacked.uploaded(data=bytes(2**20))
    for n in range(MAX_BYTES // (19 * 2**20) + 3):
        attacked.uploaded(f"{n}.png", os.urandom(16) + bytes(19 * 2**20))
    held = sum(path.stat().st_size for path in attacked.cache.rglob("*") if path.is_file())
    assert held <= MAX_BYTES and not Path(first).exists()
    examples = [path for path in attacked.cache.rglob("*.jpg")]
    assert len(examples) >= 3, "what the page itself put there stays"


def test_the_login_says_what_is_wrong(pages):
    url, _ = pages[True]
    assert httpx.post(f"{url}/login", data={"username": "me", "password": "a guess"}).status_code == 400
    assert httpx.post(f"{url}/login", content=bytes(2**20)).status_code == 413


def test_an_uploaded_drawing_cannot_act_in_the_pages_name(attacked):
    if not attacked.allowed:
        return
    path = attacked.uploaded("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    attacked.ask({"path": path, "meta": META}, "x", None, False)
    answer = attacked.http.get(f"/gradio_api/file={path}")
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_gradio_itself_checks_paths_too(serve_policy, link_to, tmp_path):
    """The filter is not the only lock: without it, Gradio refuses the path as well."""
    from fastapi import FastAPI
    from fastapi.testclient import TestClient
    from policies import SeeingPolicy

    from services.ui.ask import mounting
    from services.ui.ask.choice import Choice

    secret = tmp_path / "shadow"
    secret.write_text(SECRET)
    gradio_app = mounting.unfiltered(FastAPI(), Choice(link_to(serve_policy(SeeingPolicy()))))
    with TestClient(gradio_app) as client:
        for fn_index in gradio_app.get_blocks().fns:
            file = {"path": str(secret), "meta": META}
            body = {"data": [file] * 5, "fn_index": fn_index, "session_hash": SESSION}
            assert "shadow" not in client.post("/gradio_api/run/predict", json=body).text
    folder = Path(gradio_app.uploaded_file_dir)
    assert not [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
