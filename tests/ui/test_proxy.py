"""Every page below a path and behind TLS, as `VLALAB_PUBLIC_URL` promises: a real small proxy, a real browser."""

import os
import subprocess
import time
from contextlib import ExitStack

import httpx
import pytest
from policies import SeeingPolicy
from serving import address_of, program, serving, steward
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from test_runs import begun, complete, finish
from test_services import TELLS
from test_simulator_page import LIBERO, Program, state

from tests import axe, data_sets
from tests.ports import free_ports
from tests.running import running

NAME, PREFIX, TOKEN = "lab.localhost", "/lab", "behind-a-proxy"  # browsers resolve names below .localhost themselves
PAGES = ("/", "/runs", "/runs/goal-a", "/runs/compare?a=goal-a&b=goal-b", "/runs/leaderboard", "/simulator", "/ask/",
         "/data", "/data/goal-one", "/data/goal-one/0", "/services", "/services/tokens", "/nope")  # fmt: skip
LINKS = """[...document.querySelectorAll("[href], [src], [action], [poster]")].flatMap((one) =>
  ["href", "src", "action", "poster"].map((name) => one.getAttribute(name) && one[name])).filter(Boolean)"""


def proxy(upstream: str) -> Starlette:
    """Returns a proxy of what lies below PREFIX, path and Host unchanged; everything else is another's (404)."""
    client = httpx.AsyncClient(base_url=upstream, timeout=60.0)

    async def forward(request: Request) -> Response:
        if not f"{request.url.path}/".startswith(f"{PREFIX}/"):
            return PlainTextResponse("not of the lab", 404)
        path = f"{request.url.path}?{request.url.query}"
        outgoing = client.build_request(request.method, path, headers=request.headers.raw, content=request.stream())
        answer = await client.send(outgoing, stream=True)
        response = StreamingResponse(answer.aiter_raw(), answer.status_code)
        response.raw_headers = answer.headers.raw
        return response

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "HEAD", "POST"])])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab below the public address: the pages' program, a policy, two runs, a data set; (address, volume, asked)."""
    directory = tmp_path_factory.mktemp("proxy")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
         "-subj", f"/CN={NAME}", "-days", "2"], cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    (volume := directory / "volume").mkdir()
    complete(volume, "goal-a", lambda task, episode: episode != 3)
    complete(volume, "goal-b", lambda task, episode: episode == 0, policy="oracle")
    data_sets.lerobot(volume / "datasets" / "goal-one", size=64)
    (daemon := directory / "daemon").mkdir()
    (port,) = free_ports(1)
    public = f"https://{NAME}:{port}{PREFIX}"
    with ExitStack() as stack:
        asked = stack.enter_context(steward(daemon, TELLS))
        policy = stack.enter_context(running(SeeingPolicy(unnorm_keys=()), token=TOKEN)).url
        services = ""
        if LIBERO.exists():
            os.environ["VLALAB_TOKEN"] = TOKEN  # for the simulator, which inherits it
            stack.callback(os.environ.pop, "VLALAB_TOKEN")
            simulator = Program(directory / "simulator.txt", "services.libero.live")
            stack.callback(simulator.end)
            services = f"simulator={simulator.url}"
        words = ["--policy-url", policy, "--port", "0", "--services", services, "--steward", str(daemon)]
        pages = program(*words, VLALAB_PUBLIC_URL=public, VLALAB_TOKEN=TOKEN, VLALAB_VOLUME=str(volume))
        stack.callback(pages.wait)
        stack.callback(pages.terminate)
        tls = {"ssl_keyfile": directory / "key.pem", "ssl_certfile": directory / "cert.pem"}
        stack.enter_context(serving(proxy(address_of(pages)), port, **tls))
        yield public, volume, asked


@pytest.fixture
def shown(lab, open_page):
    """A browser that has logged in by the public address."""
    page = open_page()
    page.do("Security.setIgnoreCertificateErrors", ignore=True)
    page.go(f"{lab[0]}?language=en")
    page.until("!!document.querySelector('input[type=password]')")
    page.type("input[type=password]", TOKEN)
    page.press("Enter")
    page.until("!!document.querySelector('#home #last')")
    page.complaints.clear()  # of the login's 401
    yield page
    assert page.errors == [] and page.complaints == []
    requests = {one for one in page.requests if one.startswith("http")}
    assert requests and all(one.startswith(f"{lab[0]}/") or one == f"{lab[0]}?language=en" for one in requests), (
        requests
    )


@axe.in_a_browser
def test_every_link_lies_below_the_path_and_leads_somewhere(lab, shown):
    pages = PAGES if LIBERO.exists() else [page for page in PAGES if page != "/simulator"]
    links = set()
    for page in pages:
        shown.go(f"{lab[0]}{page}")
        shown.until(f"location.href == '{lab[0]}{page}' && document.readyState == 'complete'")
        links |= {link.partition("#")[0] for link in shown.js(LINKS)}
        if page == "/nope":
            shown.complaints.clear()
    links = {link for link in links if not link.startswith("blob:")}
    assert len(links) > 40 and all(link.startswith(f"{lab[0]}/") for link in links), links
    posts_and_languages = ("/marks", "/logout", "language=en", "language=ko")
    away = {f"{lab[0]}/nope", *([] if LIBERO.exists() else [f"{lab[0]}/simulator"])}
    gets = [link for link in links - away if not link.endswith(posts_and_languages)]
    status = f"Promise.all({gets!r}.map((one) => fetch(one).then((answer) => [answer.status, one])))"
    assert [pair for pair in shown.js(status) if pair[0] != 200] == []
    shown.complaints.clear()  # of /nope's 404


@axe.in_a_browser
def test_a_run_moves_is_filtered_and_found_by_its_beginning(lab, shown):
    with begun(lab[1], "moving-now", now=time.time()) as store:
        shown.go(f"{lab[0]}/runs/moving")
        shown.until("location.pathname == '/lab/runs/moving-now'")
        for count in (1, 2):
            finish(store, time.time(), lambda task, episode: True)
            shown.until(f"document.querySelector('[data-figure=done]').textContent == '{count}'")
        store.end_invocation(1, time.time(), "interrupted")
    shown.go(f"{lab[0]}/runs")
    shown.type("[name=q]", "goal-")
    shown.until("document.querySelectorAll('#rows tbody tr').length == 2 && location.search == '?q=goal-'")
    shown.click("[data-choose='goal-a']")
    shown.click("[data-choose='goal-b']")
    shown.click("#compare")
    shown.until("location.pathname == '/lab/runs/compare' && document.querySelectorAll('.pair').length > 0")


@axe.in_a_browser
def test_a_picture_is_uploaded_and_a_form_and_the_language_lead_back(lab, shown, picture):
    shown.go(f"{lab[0]}/ask")
    shown.until("location.pathname == '/lab/ask/' && !document.querySelector('#ask').disabled")
    shown.upload("#picture input[type=file]", picture)
    shown.type("#instruction input", "go")
    shown.click("#ask")
    shown.until("document.querySelectorAll('#numbers .value').length == 7")
    shown.go(f"{lab[0]}/data/goal-one/0")
    shown.click("button[name=what][value=bad]")
    shown.until(
        "!!document.querySelector('button[name=what][value=good]') && location.pathname == '/lab/data/goal-one/0'"
    )
    shown.click("a[lang=ko]")
    shown.until("document.documentElement.lang == 'ko' && location.pathname == '/lab/data/goal-one/0'")
    shown.click("a[lang=en]")
    shown.until("document.documentElement.lang == 'en'")


@axe.in_a_browser
def test_services_are_acted_on_and_logging_out_ends_it(lab, shown):
    public, _, asked = lab
    shown.go(f"{public}/services")
    shown.click("#log-oracle")
    shown.until("document.querySelector('#log-text').textContent == 'ready'")
    shown.press("Escape")
    shown.click("#do-random")
    shown.click("#confirm [value=yes]")
    shown.until("document.querySelector('#refused').textContent == 'random is being started'")
    assert {"GET /services/oracle/log", "POST /services/random/start"} <= set(asked)
    shown.click("form[action='/lab/logout'] button")
    shown.until("!!document.querySelector('input[type=password]') && location.pathname == '/lab/'")
    shown.complaints.clear()  # the refusal, and the login's 401


@axe.in_a_browser
@pytest.mark.skipif(not LIBERO.exists(), reason="run ./lab env libero")
def test_a_session_of_the_simulator_is_driven(lab, shown):
    shown.go(f"{lab[0]}/simulator")
    shown.click("#opening button")
    assert state(shown, "waiting", "failed", "gone") == "waiting"
    hand = "document.querySelector('#hand').textContent.split(/\\s+/).map(Number)"
    before = shown.until(f"{hand}.length === 3 && {hand}")
    for _ in range(3):
        shown.press("KeyQ")
    assert shown.until(f"{hand}[2] > {before[2]} + 0.004", 120.0)
    shown.click("#ask-frame")
    shown.until("location.pathname == '/lab/ask/' && !!document.querySelector('#picture img').naturalWidth")
