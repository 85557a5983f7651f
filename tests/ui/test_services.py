"""The page about the lab: what it shows, whom it lets start things, and real services started on it in a browser."""

import os
import re
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from policies import GatedLoader, SeeingPolicy
from serving import ROOT, nobody, serving, steward

from services.ui.services.routes import routes
from services.ui.services.tokens import read_metrics
from services.ui.site import texts
from services.ui.site.login import Guard
from services.ui.site.requests import PageError
from services.ui.site.site import Site
from tests import axe
from tests.ports import free_ports
from vla_contract.server import token_file

TOKEN = "open-sesame"
HOST_TOOL, WS_MDL = ROOT / ".venv/bin/python", ROOT / "images/ws_mdl/.venv/bin/python"
UP = {
    "name": "oracle", "service": "oracle", "state": "up", "health": "healthy", "since": 1.0,
    "restarts": 2, "private": False, "memory": 3e9, "gpus": "0", "gpu_memory": {"0": 2048},
    "url": "http://127.0.0.1:8101", "runtime": "docker",
    "environment": "libero", "lock": "0123456789ab", "image_fits": False, "environment_fits": None,
}  # fmt: skip
DOWN = {**dict.fromkeys(UP), "name": "random", "service": "random", "state": "down", "environment": "libero",
        "lock": "0123456789ab", "environment_fits": True}  # fmt: skip
GPU = {"index": 0, "name": "H<100>", "used": 20e9, "memory": 80e9}
STATUS = {"host": "gpu01", "docker": None, "commit": "c0ffee" * 6, "gpus": [GPU],
          "services": [{**UP, "name": "oracle-7", "private": True}, UP, DOWN,
                       {**DOWN, "service": "gr00t"}]}  # fmt: skip
FAILED = {"service": "random", "what": "start", "began": 1.0, "ended": 3.0, "code": 1, "output": "<i>no weights</i>"}
CHECK = {"id": "disk", "title": "Disk", "verdict": "pass", "why": "100 GB", "hint": "", "fix": ""}
DOCTOR = {"running": False, "at": 5.0, "error": "", "told": {"verdict": "not ready (local)", "checks": [
    CHECK, {**CHECK, "id": "clock", "verdict": "fail", "why": "<b>1970</b>", "fix": "sudo timedatectl"}]}}  # fmt: skip
TELLS = {
    "GET /status": (200, {"status": STATUS, "error": "", "actions": [FAILED], "obstacles": {"gr00t": "missing a <b>"}}),
    "GET /doctor": (200, DOCTOR), "POST /doctor": (200, {**DOCTOR, "running": True}),
    "POST /services/random/start": (409, {"detail": "random is being started"}),
    "GET /services/oracle/log": (200, {"log": "ready"}),
}  # fmt: skip


@pytest.fixture
def lab(serve_policy, link_to, stack):
    """A site over a policy that is ready, one that loads, and a service that is away."""
    from services.ui.app import create_app

    loader = GatedLoader(SeeingPolicy())
    stack.callback(loader.gate.set)
    services = {
        "openvla": serve_policy(SeeingPolicy(device="<b>cuda:0</b>")), "oracle": serve_policy(loader, wait=False),
        "simulator": nobody(),
    }  # fmt: skip
    return stack.enter_context(serving(create_app(link_to(services["openvla"]), services=services)))


def test_every_service_is_reported_with_what_to_type(lab):
    page = httpx.get(f"{lab}/services/state").text
    for name, state, command in (
        ("openvla", "ready", "down"),
        ("oracle", "starting", "logs"),
        ("simulator", "away", "up"),
    ):
        row = page.split(f'<tr id="row-{name}"')[1].split("</tr>")[0]
        assert f'data-state="{state}"' in row and f"./lab {command} {name}" in row
    assert "&lt;b&gt;cuda:0&lt;/b&gt;" in page and "<b>cuda:0</b>" not in page


def test_the_use_by_token_is_for_who_has_logged_in(serve_policy, stack, tmp_path):
    """A real policy with two tokens, which the page reads with the lab's own."""
    tokens = {name: token_file.add(tmp_path / "tokens.json", name, concurrency=1) for name in ("alice", "bob")}
    url = serve_policy(SeeingPolicy(), token=TOKEN, token_file=tmp_path / "tokens.json")
    app = lab_alone(tmp_path, TOKEN, url)
    client = stack.enter_context(httpx.Client(base_url=stack.enter_context(serving(app)), timeout=60.0))
    for name, count in (("alice", 3), ("bob", 1)):
        for _ in range(count):
            httpx.get(f"{url}/v1/info", headers={"Authorization": f"Bearer {tokens[name]}"}).raise_for_status()
    assert client.get("/services/tokens").status_code == 401
    page = client.get("/services/tokens", headers={"Authorization": f"Bearer {TOKEN}"}).text
    rows = dict(re.findall(r'<tr><th scope="row">(\w+)</th><td class="n">(\d+)</td>', page))
    assert (rows["alice"], rows["bob"]) == ("3", "1") and not any(token in page for token in tokens.values())


def test_use_by_token_has_shares_and_waits():
    text = """# TYPE vla_token_requests counter
vla_token_requests_total{token="a",status="200"} 6.0
vla_token_requests_total{token="a",status="429"} 4.0
# TYPE vla_token_infer_seconds counter
vla_token_infer_seconds_total{token="a"} 1.0
vla_token_infer_seconds_total{token="b"} 3.0
# TYPE vla_token_queue_seconds counter
vla_token_queue_seconds_total{token="a"} 3.0
# TYPE vla_token_inferences counter
vla_token_inferences_total{token="a"} 6.0
"""
    most, least = read_metrics(text)
    assert (most.name, most.share, most.wait_s) == ("b", 0.75, 0.0)
    assert (least.requests, least.limited, least.inferences, least.wait_s) == (10, 4, 6, 0.5)


def lab_alone(directory: Path | str, token: str | None, tensorboard: str) -> FastAPI:
    """Return the site of the one page, behind its guard; what this page needs not takes long to make."""
    site = Site(("services",), {"tensorboard": tensorboard}, token, str(directory))
    app = FastAPI()
    app.router.routes.extend([*site.routes(), *routes(site)])
    app.add_exception_handler(PageError, site.answer_problem)
    app.add_middleware(Guard, login=site.login, login_response=site.login_response)
    return app


@pytest.fixture
def site(stack):
    """Return a function that serves the page over a folder and gives a client that has logged in."""

    def make(directory: Path | str, token: str | None = TOKEN) -> httpx.Client:
        url = stack.enter_context(serving(lab_alone(directory, token, nobody())))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=60.0))
        client.headers["Authorization"] = f"Bearer {token}"
        return client

    return make


def row_of(client: httpx.Client, name: str) -> str:
    return client.get("/services/state").text.split(f'<tr id="row-{name}"')[1].split("</tr>")[0]


def test_nothing_starts_or_stops_without_the_token(site, tmp_path):
    """Without one in the lab everybody looks and nobody does anything; with one, who has not logged in does not."""
    paths = ("/services/doctor", "/services/random/start", "/services/oracle/stop")
    with steward(tmp_path, TELLS) as asked:
        open_to_all, closed = site(tmp_path, None), site(tmp_path)
        del closed.headers["Authorization"]
        for client, status in ((open_to_all, 403), (closed, 401)):
            assert {client.post(path).status_code for path in paths} == {status}
            assert client.get("/services/oracle/log").status_code == status
        assert asked == []
        page = open_to_all.get("/services/state").text
        assert "gpu01" in page and "<button" not in page and "no weights" not in page and "VLALAB_TOKEN" in page
        assert "./lab down oracle" in row_of(open_to_all, "oracle")
        assert "<button" not in open_to_all.get("/services/doctor").text
        assert "./lab up random" in page and "./lab up gr00t" not in page, "it lacks its checkpoint"
        assert "/services/tokens" not in open_to_all.get("/services").text
        for path in ("/services", "/services/state"):
            assert {open_to_all.request(method, path).status_code for method in ("POST", "PUT", "DELETE")} == {405}
        assert set(asked) == {"GET /status", "GET /doctor"}


def test_another_sites_page_starts_nothing_with_a_persons_login(site, tmp_path):
    with steward(tmp_path, TELLS) as asked:
        headers = {"Sec-Fetch-Site": "cross-site"}
        assert site(tmp_path).post("/services/random/start", headers=headers).status_code == 403 and asked == []


def test_it_shows_what_the_machine_knows_of_its_services(site, tmp_path):
    with steward(tmp_path, TELLS):
        client = site(tmp_path)
        up, down, page = row_of(client, "oracle"), row_of(client, "random"), client.get("/services/state").text
    assert 'data-state="ready"' in up and "8101" in up and "3.0 GB" in up and "0: 2.1 GB" in up and "docker" in up
    assert "missing a &lt;b&gt;" in page and 'data-service="gr00t"' in page and 'id="do-gr00t"' not in page
    assert "2× restarted" in up and "outdated lock" in up and 'data-do="stop"' in up
    assert 'data-state="down"' in down and 'data-do="start"' in down and "lock</span>" not in down
    assert "H&lt;100&gt;" in page and "20.0" in page and "80.0 GB" in page and "c0ffee" in page
    assert '<details id="done-random-1" data-what="start" data-code="1" open>' in page and "&lt;i&gt;no weights" in page


def test_the_doctors_table_has_what_is_wrong_first(site, tmp_path):
    with steward(tmp_path, TELLS):
        client = site(tmp_path)
        page = client.get("/services/doctor").text
        assert "준비 안 됨 (local)" in client.get("/services/doctor", headers={"Accept-Language": "ko"}).text
        assert client.post("/services/doctor").json()["running"] is True
    assert page.index('data-check="clock"') < page.index("<details") < page.index('data-check="disk"')
    assert "&lt;b&gt;1970" in page and "sudo timedatectl" in page and "not ready (local)" in page


def test_what_the_steward_refuses_is_reported_in_its_words_and_no_name_is_a_path(site, tmp_path):
    with steward(tmp_path, TELLS) as asked:
        client = site(tmp_path)
        refused = client.post("/services/random/start")
        assert (refused.status_code, refused.json()) == (409, {"detail": "random is being started"})
        assert client.get("/services/oracle/log").json() == {"log": "ready"}
        client.post("/services/%2e%2e%3fx%23/start")
        assert asked[-1] == "POST /services/..%3Fx%23/start"


@pytest.mark.parametrize(("there", "why"), [("", "none"), ("/dev/null", "none"), ("empty", "gone"), ("left", "gone")])
@pytest.mark.parametrize("language", ["en", "ko"])
def test_where_nobody_answers_the_page_reports_it_and_shows_what_answers(site, tmp_path, there, why, language):
    directory = tmp_path / there if there and not there.startswith("/") else there
    if there in ("empty", "left"):
        directory.mkdir()
    if there == "left":  # it was killed
        with steward(directory, TELLS):
            pass
    client = site(directory)
    client.headers["Accept-Language"] = language
    page, told = client.get("/services/state").text, texts.table(language)[f"services.alone_{why}"]
    assert told.split("`")[0] in page.replace("&#39;", "'") and 'data-service="tensorboard" data-state="away"' in page
    assert "<button" not in page and client.get("/services/doctor").text == ""
    refused = client.post("/services/tensorboard/start")
    assert refused.status_code == 502 and refused.json()["detail"] == told.replace("`", "")


@pytest.fixture
def started(stack, tmp_path):
    """A steward of this clone, which starts real services, with state and volume of its own; and the site over it."""
    own = {"VLALAB_STATE": tmp_path / "state", "VLALAB_VOLUME": tmp_path / "volume", "VLALAB_TOKEN": TOKEN}
    (port,) = free_ports(1)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "PYTHONPATH"))}
    environment = {**kept, **{name: str(value) for name, value in own.items()}, "VLALAB_TENSORBOARD_PORT": str(port)}
    (directory := tmp_path / "steward").mkdir()
    (tmp_path / "volume").mkdir()
    command = [HOST_TOOL, "-m", "vlalab.control_daemon", directory, "local"]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGTERM)
    stack.callback(subprocess.run, [ROOT / "lab", "down"], env=environment, capture_output=True)
    return stack.enter_context(serving(lab_alone(directory, TOKEN, f"http://127.0.0.1:{port}")))


@axe.in_a_browser
@pytest.mark.skipif(not WS_MDL.exists(), reason="environment 'ws_mdl' is not made: ./lab env ws_mdl")
@pytest.mark.skipif(not HOST_TOOL.exists(), reason="the host tool is not made: ./lab")
def test_a_service_is_started_looked_at_and_stopped_by_keys(started, open_page):
    shown = open_page(f"{started}/services")
    shown.type("input[type=password]", TOKEN)
    shown.press("Enter")

    def press(selector: str) -> None:
        shown.until(f"!!document.querySelector({selector!r})")
        shown.js(f"document.querySelector({selector!r}).focus()")
        shown.press("Enter")

    def becomes(name: str, state: str) -> None:
        failed = f"""document.querySelector('#done details[id^=done-{name}-]:not([data-code=""], [data-code="0"])')"""
        row = f"document.querySelector('#row-{name}')"
        try:
            shown.until(f"{failed} || {row}.dataset.state == {state!r}", 240.0)
        except TimeoutError as error:
            seen = [shown.js(f"{one}.innerText") for one in (row, "document.querySelector('#done')")]
            raise AssertionError(f"{name} did not become {state}: {seen}, {shown.requests[-9:]}") from error
        assert not (said := shown.js(f"{failed}?.innerText")), said

    press("#do-tensorboard[data-do=start]")
    shown.until("document.querySelector('#confirm').open")
    press("#confirm [value=yes]")
    becomes("tensorboard", "ready")
    assert shown.until("document.querySelector('#open-tensorboard').href").startswith("http://127.0.0.1:")
    press("#log-tensorboard")
    shown.until("document.querySelector('#log-text').textContent.includes(' started ')")
    assert shown.js("document.activeElement.id") == "log-text"
    shown.press("Escape")
    shown.until("!document.querySelector('#log').open")
    assert shown.js("document.activeElement.id") == "log-tensorboard"
    # which run is to be played back nobody has said
    replay = shown.js("document.querySelector('#row-replay').innerText")
    assert "VLALAB_REPLAY_RUN" in replay and "Start" not in replay
    press("#do-tensorboard[data-do=stop]")
    shown.until("document.querySelector('#confirm').open")
    press("#confirm [value=yes]")
    becomes("tensorboard", "down")
    shown.js("window.scrollTo(0, 0)")
    shown.scheme("dark")
    for width in (400, 1920):
        shown.resize(width, 900)
        assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width
    assert shown.errors == [] and [complaint for complaint in shown.complaints if "401" not in complaint] == []


@axe.in_a_browser
def test_nothing_can_be_pressed_before_it_does_something(site, open_page, tmp_path):
    """The page comes with what to type; what hears its buttons comes after it, on a busy machine much later."""
    with steward(tmp_path, TELLS) as asked:
        shown = open_page()
        shown.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {TOKEN}"})
        button = "document.querySelector('#do-random')"
        with shown.holding("*/services.js*"):
            shown.go(f"{site(tmp_path).base_url}/services")
            found = "[...document.querySelectorAll('tr[data-service]')]"
            rows = dict(shown.until(f"{found}.map((one) => [one.dataset.service, one.innerText])"))
            assert {name for name, row in rows.items() if "./lab " not in row} == {"gr00t"}
            assert "missing a" in rows["gr00t"]  # its obstacle instead of a command
            assert shown.js("document.querySelectorAll('#state button').length") == 0
        shown.until(f"!!{button}")
        shown.js(f"{button}.click()")
        shown.click("#confirm [value=yes]")
        shown.until("!document.querySelector('#refused').hidden")  # TELLS refuse it, in words
        assert asked.count("POST /services/random/start") == 1


@axe.in_a_browser
def test_the_page_ask_starts_an_audit_and_shows_what_it_found(serve_policy, link_to, stack, open_page, tmp_path):
    from services.ui.app import create_app

    (directory := tmp_path / "audits" / "logs" / "audit" / "audit-goal-seeing").mkdir(parents=True)
    (directory / "audit.html").write_text("<p>an arm upside down</p>")
    began = {
        **FAILED,
        "service": "seeing",
        "what": "audit",
        "ended": None,
        "code": None,
        "output": "<i>recording</i>",
    }
    tells = {**TELLS, "POST /services/seeing/audit": (200, began)}
    asked = stack.enter_context(steward(tmp_path, tells))
    link = link_to(serve_policy(SeeingPolicy(), token=TOKEN), token=TOKEN)
    app = create_app(link, TOKEN, {}, {"seeing": link}, str(tmp_path), tmp_path / "audits")
    shown, url = open_page(), stack.enter_context(serving(app))
    shown.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {TOKEN}"})
    shown.go(f"{url}/ask/")
    shown.until("document.querySelector('#audit code').innerText == './lab audit seeing'")
    tells["GET /services/seeing/action"] = (200, began)
    shown.click("#audit button")
    shown.until("document.querySelector('#audit pre')?.innerText == '<i>recording</i>'")
    assert asked.count("POST /services/seeing/audit") == 1
    found = "wrong  orientation of images: upside down\npage: volume/logs/audit/audit-goal-seeing/audit.html"
    tells["GET /services/seeing/action"] = (200, {**began, "ended": 3.0, "code": 1, "output": found})
    shown.until("document.querySelector('#audit pre').innerText.includes('upside down')")
    shown.until("!!document.querySelector('#audit a')")
    assert axe.violations(shown) == [] and shown.errors == [] and shown.complaints == []
    page = httpx.get(shown.js("document.querySelector('#audit a').href"), headers={"Authorization": f"Bearer {TOKEN}"})
    assert "an arm upside down" in page.text and "sandbox" in page.headers["content-security-policy"]
    tells["POST /services/seeing/audit"] = (409, {"detail": "seeing is busy with another action"})
    shown.click("#audit button")
    shown.until("document.querySelector('#refused').innerText == 'seeing is busy with another action'")


@pytest.mark.parametrize("width", [pytest.param(400, marks=axe.NEEDED), pytest.param(1280, marks=axe.NEEDED)])
def test_it_is_for_everyone(lab, open_page, width):
    shown = open_page(f"{lab}/services", width=width)
    shown.until("document.querySelectorAll('tr[data-service]').length >= 3")
    assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width
    assert shown.errors == [] and shown.complaints == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {urlsplit(lab).netloc}
