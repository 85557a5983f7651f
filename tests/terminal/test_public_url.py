"""The pages, a notebook's kernel and TensorBoard behind the proxies that docs/ui.md shows, under one public address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests import browser
from tests.ports import free_ports
from tests.terminal.test_host_names import serving
from vlalab.environments import venvs
from vlalab.host import paths

NAME, TOKEN = "lab.localhost", "behind-a-proxy"  # browsers resolve names below .localhost themselves
PORTS = {"ui": 7860, "tensorboard": 6006, "ws_mdl": 8888}
PAGES = ("/", "/ask/", "/runs", "/runs/leaderboard", "/runs/compare", "/data", "/services")
NGINX = shutil.which("nginx")
IN_NGINX = (
    "events {{}} pid {0}/pid; {1} error_log stderr; http {{ access_log off; client_body_temp_path {0}/body; {2} }}"
)
COMPUTE = """
import json, ssl, sys, urllib.request, uuid
import websocket
base, name, port, token, cert = sys.argv[1:]
context = ssl.create_default_context(cafile=cert)
headers = {"Authorization": f"token {token}", "Origin": base.partition("/vla")[0]}
local = {"host": "127.0.0.1", "port": int(port)}
import socket
real = socket.getaddrinfo
socket.getaddrinfo = lambda host, *rest, **more: real("127.0.0.1" if host == name else host, *rest, **more)
asked = urllib.request.Request(f"{base}/api/kernels", b"{}", headers, method="POST")
kernel = json.load(urllib.request.urlopen(asked, context=context))["id"]
channel = websocket.create_connection(
    f"wss{base[5:]}/api/kernels/{kernel}/channels", timeout=60, sslopt={"context": context},
    header=[f"Authorization: token {token}"], origin=headers["Origin"],
)
header = {"msg_id": uuid.uuid4().hex, "session": "s", "username": "u", "msg_type": "execute_request", "version": "5.3"}
content = {"code": "6 * 7", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
sent = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
channel.send(json.dumps(sent))
while True:
    got = json.loads(channel.recv())
    if got["header"]["msg_type"] == "execute_result":
        print(got["content"]["data"]["text/plain"])
        break
"""

pytestmark = pytest.mark.skipif(
    not all(venvs.get(name, paths.ROOT).is_ready() for name in ("ui", "libero", "ws_mdl")),
    reason="environments are missing: ./lab env ui libero ws_mdl",
)


class ToProxy(httpx.HTTPTransport):
    """Connects to 127.0.0.1 for NAME: no resolver knows it for sure."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url.copy_with(host="127.0.0.1")
        more = {**request.extensions, "sni_hostname": NAME}
        there = httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=more)
        return super().handle_request(there)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", directory / "lab.key", "-days", "2",
         "-out", directory / "lab.pem", "-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[tuple[str, dict[str, str]]]:
    """Gives the public address and where each service listens."""
    (port,) = free_ports(1)
    public = f"https://{NAME}:{port}/vla"
    volume = tmp_path_factory.mktemp("volume")
    (volume / "logs" / "tensorboard").mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        settings = {"VLALAB_PUBLIC_URL": public, "VLALAB_TOKEN": TOKEN, "VLALAB_ALLOWED_HOSTS": ""}
        urls = {name: stack.enter_context(serving(name, volume, **settings)) for name in ("tensorboard",)}
        services = ",".join(f"{name}={url}" for name, url in urls.items())
        urls["ws_mdl"] = stack.enter_context(serving("ws_mdl", volume, **settings))
        services += f",ws_mdl={urls['ws_mdl']}"
        urls["ui"] = stack.enter_context(serving("ui", volume, **settings, VLALAB_UI_SERVICES=services))
        yield public, urls


def example(program: str, port: str, urls: dict[str, str], certificate: Path) -> str:
    """Returns the page's example with the test's name, ports and certificate."""
    page = (paths.ROOT / "docs" / "ui.md").read_text()
    (text,) = re.findall(rf"```{program}\n(.*?)```", page, re.DOTALL)
    for name, default in PORTS.items():
        assert f"127.0.0.1:{default}" in text
        text = text.replace(f"127.0.0.1:{default}", urlsplit(urls[name]).netloc)
    if program == "caddy":
        tls = f"tls {certificate}/lab.pem {certificate}/lab.key"
        options = "{\nadmin off\nauto_https disable_redirects\n}\n"
        return options + text.replace("lab.example.org {", f"{NAME}:{port} {{\n{tls}")
    for old, new in {
        "lab.example.org": NAME, "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/certs/lab.pem": f"{certificate}/lab.pem", "/etc/ssl/private/lab.key": f"{certificate}/lab.key",
    }.items():  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("nginx", marks=pytest.mark.skipif(NGINX is None, reason="nginx is not installed")),
        pytest.param("caddy", marks=pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")),
    ],
)
def public(request, lab, certificate, tmp_path_factory) -> Iterator[str]:
    """Gives the public address while a proxy runs there."""
    url, urls = lab
    port = str(urlsplit(url).port)
    directory = tmp_path_factory.mktemp(request.param)
    text = example(request.param, port, urls, certificate)
    config = directory / "config"
    if request.param == "nginx":
        text = IN_NGINX.format(directory, "user root;" if os.geteuid() == 0 else "", text)
        command = [NGINX, "-p", directory, "-c", config, "-e", "stderr", "-g", "daemon off;"]
    else:
        command = ["caddy", "run", "--adapter", "caddyfile", "--config", config]
    config.write_text(text)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HOME": str(directory)})
    try:
        end = time.monotonic() + 30
        with client(url, certificate) as asking:
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    asking.get("/readyz")
                    break
                assert process.poll() is None and time.monotonic() < end, (directory / "log").read_text()
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def client(url: str, certificate: Path, **headers: str) -> httpx.Client:
    transport = ToProxy(verify=ssl.create_default_context(cafile=str(certificate / "lab.pem")))
    return httpx.Client(transport=transport, base_url=url, headers={"Accept": "text/html", **headers}, timeout=60)


def log_in(asking: httpx.Client) -> httpx.Response:
    return asking.post("/login", data={"username": "anna", "password": TOKEN, "then": "/runs"})


def test_a_login_leads_on_below_the_public_address(public, certificate):
    with client(public, certificate) as asking:
        assert asking.get("/runs").status_code == 401
        answer = log_in(asking)
        assert (answer.status_code, answer.headers["location"]) == (303, "/vla/runs")
        assert {"Path=/vla/", "Secure", "HttpOnly"} <= set(answer.headers["set-cookie"].split("; "))
        assert asking.get("/runs").status_code == 200


@pytest.mark.parametrize("path", PAGES)
def test_links_and_files_of_a_page_lie_below_the_public_address(path, public, certificate):
    with client(public, certificate) as asking:
        log_in(asking)
        answer = asking.get(path)
        assert answer.status_code == 200
        found = set(re.findall(r'\b(?:href|src|action)="([^"#][^"]*)"', answer.text)) - {"/vla/logout"}
        assert len(found) >= 5
        while found:
            link = urljoin(str(answer.url), found.pop())
            assert link.startswith(f"{public}/"), link
            there = asking.get(link, follow_redirects=True)
            own = {f"{public}/simulator": 502, f"{public}/tensorboard/": 401}  # away; a login
            assert there.status_code == own.get(link, 200), link
            if ".js" in link and "/static/" in link:
                found |= {urljoin(link, one) for one in re.findall(r'from "([^"]+)"', there.text)}


def test_the_lab_page_leads_to_the_other_services_there(public, certificate):
    with client(public, certificate) as asking:
        log_in(asking)
        found = set(re.findall(r'id="open-\w+" href="([^"]+)"', asking.get("/services/state").text))
    assert found == {f"{public}/{path}/" for path in ("tensorboard", "notebook/ws_mdl")}


def test_the_page_that_asks_answers_there(public, certificate):
    with client(public, certificate) as asking:
        log_in(asking)
        assert 'id="policy"' in asking.get("/ask/state").text


def test_tensorboard_answers_there(public, certificate):
    with client(public, certificate) as asking:
        asking.auth = httpx.BasicAuth("anna", TOKEN)
        assert "TensorBoard" in asking.get("/tensorboard/").text
        assert asking.get("/tensorboard/data/environment").json()["data_location"].endswith("logs/tensorboard")
        asking.auth = None
        for path in ("/tensorboard/", "/tensorboard/data/environment"):
            assert asking.get(path).status_code == 401


def test_a_kernel_computes_over_the_proxys_websocket(public, certificate):
    env = venvs.get("ws_mdl", paths.ROOT)
    port = str(urlsplit(public).port)
    words = [f"{public}/notebook/ws_mdl", NAME, port, TOKEN, str(certificate / "lab.pem")]
    done = subprocess.run([env.python, "-c", COMPUTE, *words], capture_output=True, text=True, timeout=120)
    assert done.stdout == "42\n", done.stderr


def test_jupyter_serves_its_page_and_files_there(public, certificate):
    with client(public, certificate, Authorization=f"token {TOKEN}") as asking:
        page = asking.get("/notebook/ws_mdl/lab")
        settings = json.loads(
            re.findall(r'(?s)id="jupyter-config-data" type="application/json">(.*?)</script>', page.text)[0]
        )
        assert settings["baseUrl"] == "/vla/notebook/ws_mdl/"
        files = re.findall(r'src="([^"]+\.js[^"]*)"', page.text)
        assert files and all(asking.get(urljoin(str(page.url), file)).status_code == 200 for file in files)


def test_another_host_gets_nothing(public, lab, certificate):
    with client(public, certificate, Host="evil.example", Authorization=f"Bearer {TOKEN}") as asking:
        for path in ("/", "/tensorboard/", "/notebook/ws_mdl/lab"):
            with contextlib.suppress(httpx.RemoteProtocolError):  # nginx closes, Caddy answers with nothing
                assert asking.get(path).text == ""
    answer = httpx.get(f"{lab[1]['ws_mdl']}/vla/notebook/ws_mdl/lab", headers={"Host": "evil.example"})
    assert answer.status_code == 403, "JupyterLab looks at Host itself"


def test_a_health_check_needs_no_prefix(lab):
    for name, path in {"ui": "/readyz", "tensorboard": "/readyz", "ws_mdl": "/api"}.items():
        assert httpx.get(lab[1][name] + path).status_code == 200, name


@pytest.mark.skipif(browser.find() is None, reason="no browser is installed")
def test_pages_work_in_a_browser(public):
    with browser.Browser() as page:
        page.do("Security.setIgnoreCertificateErrors", ignore=True)
        page.go(f"{public}/services")
        page.until("document.querySelector('[name=password]') !== null")
        page.complaints.clear()  # of the 401 that the login is sent with
        page.js(f"document.querySelector('[name=password]').value = {TOKEN!r}")
        page.js("document.querySelector('form').requestSubmit()")
        page.until("document.querySelector('#open-tensorboard') !== null")
        page.until("document.querySelector('#doctor').childElementCount >= 0 && document.querySelector('#lost').hidden")
        page.go(f"{public}/ask/")
        page.until("document.querySelector('#ask') !== null")
        assert not page.errors and not page.complaints
        page.go(f"{public}/notebook/ws_mdl/lab?token={TOKEN}")
        page.until("document.querySelector('.jp-LauncherCard') !== null")
