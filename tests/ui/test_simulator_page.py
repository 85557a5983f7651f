"""The simulator's page: in a real browser over real MuJoCo, and what it says where there is no simulator."""

import contextlib
import functools
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import ROOT, nobody, serving

from services.ui.app import create_app
from services.ui.ask.link import PolicyLink
from tests import axe, browser
from tests.mounts import fill, small
from tests.ports import free_ports

LIBERO = ROOT / "images/libero/.venv/bin/python"
TOKEN = "open-sesame"
WAIT_S = 240.0  # for a scene to stand, on two busy cores
API = "/simulator/api"


def browsing(test):
    """Marks a test that needs a browser and a simulator, which no image has together."""
    return axe.in_a_browser(test, pytest.mark.skipif(not LIBERO.exists(), reason="run ./lab env libero"))


@contextlib.contextmanager
def site(simulator: str, token: str | None = None):
    """The site's address over that simulator, and over no policy."""
    link = PolicyLink(nobody())
    with contextlib.closing(link), serving(create_app(link, token, {"simulator": simulator})) as url:
        yield url


# --- without a simulator ------------------------------------------------------------------------------------


def test_without_a_simulator_the_page_says_how_to_start_one():
    with site(nobody()) as url, httpx.Client(base_url=url) as client:
        shown = client.get("/simulator", headers={"Accept": "text/html"})
        assert shown.status_code == 502 and "./lab up simulator" in shown.text
        for method, path in (("GET", "policies"), ("POST", "sessions"), ("GET", "sessions/x/frame")):
            answer = client.request(method, f"{API}/{path}")
            assert answer.status_code == 502 and "does not respond" in answer.json()["detail"]
        assert client.post(f"{API}/sessions", content=b"{").status_code == 400
        assert client.post(f"{API}/sessions", content=b"x" * 100_000).status_code == 413
        from_elsewhere = client.post(f"{API}/sessions", json={}, headers={"Sec-Fetch-Site": "cross-site"})
        assert from_elsewhere.status_code == 403


@pytest.mark.parametrize(
    "value", ['"\\ud800"', '{"\\udfff": 1}', "NaN", "1e999", "9" * 4000, *("[" * n + "]" * n for n in (900, 960, 980))]
)
def test_what_cannot_be_passed_on_as_json_is_refused(value):
    with site(nobody()) as url, httpx.Client(base_url=url) as client:
        for path in ("sessions", "sessions/x/do"):
            answer = client.post(f"{API}/{path}", content=f'{{"instruction": {value}}}')
            assert answer.status_code == 400 and answer.json()["detail"]


def test_nothing_of_it_exists_without_the_token():
    with site(nobody(), TOKEN) as url, httpx.Client(base_url=url) as client:
        for method, path in (("GET", "policies"), ("POST", "sessions"), ("POST", "sessions/x/do")):
            assert client.request(method, f"{API}/{path}").status_code == 401


# --- in a browser -------------------------------------------------------------------------------------------


class Program:
    """A program of the libero environment on a port of its own, with its log."""

    def __init__(self, log: Path, *words: str, port: int = 0, **variables: str):
        self.log = log
        shared = (ROOT / "shared" / name for name in ("common", "contract", "evaluation", "datasets", "fast_libero"))
        env = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *shared)))}
        with open(log, "w") as output:
            command = [str(LIBERO), "-m", *words, "--port", str(port)]
            self.process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=output)
        self.url = self.await_address()

    def await_address(self) -> str:
        end = time.monotonic() + WAIT_S
        while not (found := re.search(r"listening on (\S+)", self.log.read_text())):
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)
        return found[1]

    def children(self) -> list[int]:
        """Return the processes that it has started: its sessions."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = status.read_text().rpartition(")")[2].split()
                if fields[1] == str(self.process.pid) and fields[0] != "Z":
                    found.append(int(status.parent.name))
        return found

    def end(self, how: int = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(30)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """An oracle, a simulator that may ask it, the site over both, and a browser that looks at the page."""
    directory = tmp_path_factory.mktemp("simulator")
    oracle = Program(directory / "oracle.txt", "services.libero.policies", "oracle")
    port, random_port = free_ports(2)  # stopped and started again: both addresses stay theirs
    policies = f"oracle={oracle.url},random=http://127.0.0.1:{random_port}"
    (directory / "tmp").mkdir()
    words = ("services.libero.live", "--policies", policies)
    places = {"VLALAB_VOLUME": str(directory / "volume"), "TMPDIR": str(directory / "tmp")}
    simulator = Program(directory / "simulator.txt", *words, port=port, **places)
    simulator.policies = policies
    simulator.again = functools.partial(Program, directory / "again.txt", *words, port=port, **places)
    try:
        with site(simulator.url) as url, browser.Browser() as shown:
            shown.go(f"{url}/simulator")
            shown.until("!document.querySelector('#opening button').disabled")
            yield oracle, simulator, url, shown
            assert shown.errors == []
            hosts = {urlsplit(asked).netloc for asked in shown.requests if asked.startswith("http")}
            assert hosts == {urlsplit(url).netloc}, "the page asked somebody else"
    finally:
        simulator.end()
        oracle.end(signal.SIGKILL)
        assert simulator.children() == []


def state(shown: browser.Browser, *names: str) -> str:
    """Return the page's state once it is one of these."""
    at = "document.querySelector('#state').dataset.state"
    return shown.until(f"{list(names)}.includes({at}) && {at}", WAIT_S)


def choose(shown: browser.Browser, **values: str) -> None:
    for name, value in values.items():
        field = f"document.querySelector('[name={name}]')"
        shown.until(f"[...{field}.options].some((one) => one.value === {value!r})")
        shown.js(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('change', {{bubbles: true}}))")


@browsing
def test_nothing_can_be_opened_before_it_does_something(parts):
    """A form that the browser sent by itself would lose what was chosen."""
    *_, url, shown = parts
    with shown.holding("*/simulator.js*"):
        shown.go(f"{url}/simulator?again")
        shown.until("location.search && !!document.querySelector('#opening button')")
        assert shown.js("document.querySelectorAll('#sim button:enabled, #opening button:enabled').length") == 0
    shown.until("!document.querySelector('#opening button').disabled")


@browsing
def test_a_task_is_found_by_suite_and_search(parts):
    *_, shown = parts
    tasks = "[...document.querySelector('[name=task]').options].map((one) => one.text)"
    choose(shown, suite="libero_goal")
    assert len(shown.until(tasks)) == 10
    shown.type("[name=search]", "RACK wine")
    assert shown.until(f"{tasks}.length == 1 && {tasks}") == ["9. put the wine bottle on the rack"]
    shown.type("[name=search]", " nowhere")
    invalid = "document.querySelector('[name=search]:invalid')?.validationMessage"
    assert "No task of this suite matches" in shown.until(invalid)
    shown.click("#opening button")  # which opens nothing
    assert shown.js("document.querySelector('#state').dataset.state") is None and len(shown.js(tasks)) == 10
    choose(shown, suite="libero_object")
    soup = shown.until(f"{tasks}.length == 10 && {tasks}[0]")
    assert soup.startswith("0. pick up the alphabet soup") and not shown.js(invalid)


@browsing
def test_a_policy_that_is_not_up_cannot_be_chosen_and_its_command_is_named(parts):
    *_, shown = parts
    option = "document.querySelector('[name=policy] option[value=random]')"
    shown.until(f"{option}.disabled && {option}.textContent === 'random (not running: ./lab up random)'")
    assert not shown.js("document.querySelector('[name=policy] option[value=oracle]').disabled")


@browsing
def test_a_policy_that_comes_up_is_opened_by_the_same_button(parts, tmp_path):
    _, simulator, _, shown = parts
    choose(shown, policy="random")  # as a page does that is loaded anew
    shown.click("#opening button")
    said = "document.querySelector('#told [role=alert]')?.innerText"
    assert "./lab up random" in shown.until(said)
    assert simulator.children() == []
    port = re.search(r"random=\S+:(\d+)", simulator.policies)[1]
    late = Program(tmp_path / "late.txt", "services.libero.policies", "random", port=int(port))
    try:
        shown.click("#anew")
        assert state(shown, "running", "failed", "trouble") == "running"
        assert not shown.js("document.querySelector('[name=policy] option[value=random]').disabled")
    finally:
        late.end()


@browsing
def test_an_oracles_episode_ends_in_success(parts):
    *_, shown = parts
    choose(shown, suite="libero_goal", policy="oracle")
    choose(shown, task="7")
    shown.js("document.querySelector('#speed').value = '0'")
    shown.click("#opening button")
    assert state(shown, "ended", "failed", "gone") == "ended"
    assert "Solved in" in shown.until("document.querySelector('#told .good').innerText")
    steps = shown.js("Number(document.querySelector('#at-step').textContent)")
    assert 20 < steps < 300 and shown.js("document.querySelector('#latency').textContent").endswith("ms")
    captions = "[...document.querySelectorAll('#cameras figcaption')].map((one) => [one.textContent, one.title])"
    assert shown.js(captions) == [["front camera", "agentview"], ["wrist camera", "robot0_eye_in_hand"]]
    canvases = "[...document.querySelectorAll('#cameras canvas')]"
    assert shown.js(f"{canvases}.map((one) => [one.width, Number(one.dataset.step)])") == [[256, steps]] * 2
    ink = "(one) => new Set(one.getContext('2d').getImageData(0, 0, 256, 256).data).size > 50"
    assert shown.js(f"{canvases}.every({ink})"), "a picture is plain"
    points = (
        "[...document.querySelectorAll('.trace polyline')].map((one) => one.getAttribute('points').split(' ').length)"
    )
    assert shown.js(points) == [min(steps, 200)] * 7


@browsing
@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(parts, width, language):
    _, _, url, shown = parts
    shown.resize(width, 900)
    shown.go(f"{url}/simulator?language={language}")
    assert state(shown, "ended") == "ended", "a page that is loaded anew shows its session"
    for scheme in ("light", "dark"):
        shown.scheme(scheme)
        assert axe.violations(shown) == []
    assert shown.js("document.documentElement.scrollWidth <= innerWidth")
    shown.go(f"{url}/simulator?language=en")
    shown.resize(1280, 900)


@browsing
def test_a_full_disk_keeps_neither_video_nor_demonstration_and_reports_it(parts):
    _, simulator, _, shown = parts
    state(shown, "ended")
    volume = simulator.log.parent / "volume"
    (volume / "demonstrations").mkdir(exist_ok=True)
    (work,) = (simulator.log.parent / "tmp").glob("vlalab-live-*")
    said = "document.querySelector('#told').innerText"
    with small(volume / "demonstrations", "64k"):
        shown.click("#keep")
        assert "free some space" in shown.until(f"!!document.querySelector('#told [role=alert]') && {said}")
    with small(work, "4k"):
        fill(work)
        shown.click("#film")
        assert "o space left" in shown.until(f"{said}.includes('o space left') && {said}")
    shown.do("Browser.setDownloadBehavior", behavior="deny")
    shown.click("#film")
    shown.until(f"{said}.includes('Video saved')")
    shown.click("#keep")
    shown.until(f"{said}.includes('libero_goal-oracle-live')")


@browsing
def test_other_words_are_reported_to_be_others_and_stay_text(parts):
    *_, shown = parts
    state(shown, "ended")
    shown.js("document.querySelector('#instruction').value = ''")
    shown.type("#instruction", "<img src=x onerror=alert(1)>")
    shown.click("#words button")
    assert "turn on the stove" in shown.until("document.querySelector('#other-words').innerText")
    assert shown.js("document.querySelectorAll('main img').length") == 0
    shown.click("#own-words")
    shown.until("document.querySelector('#other-words').hidden")


@browsing
def test_a_policy_that_died_is_reported_and_a_persons_keys_move_the_arm(parts):
    oracle, _, _, shown = parts
    oracle.end(signal.SIGKILL)
    shown.click("#again")
    assert state(shown, "trouble") == "trouble"
    assert "refused" in shown.until("document.querySelector('#told [role=alert]').innerText")
    shown.click("[name=driver][value=person]")
    state(shown, "waiting")
    assert shown.until("document.activeElement.id") == "pad"
    hand = "document.querySelector('#hand').textContent.split(/\\s+/).map(Number)"
    before = shown.until(f"{hand}.length === 3 && {hand}")
    for _ in range(3):  # a tap is a stride upwards
        shown.press("KeyQ")
    rises = f"{hand}[2] > {before[2]} + 0.004"
    assert shown.until(rises, WAIT_S)
    assert shown.js("document.querySelector('#told').innerText") == ""


@browsing
def test_a_killed_simulator_is_reported_and_the_page_recovers(parts):
    _, simulator, _, shown = parts
    (session,) = simulator.children()
    os.kill(session, signal.SIGKILL)
    assert state(shown, "gone") == "gone"
    assert "SIGKILL" in shown.js("document.querySelector('#told [role=alert]').innerText")
    choose(shown, policy="")
    shown.click("#anew")
    assert state(shown, "waiting", "failed") == "waiting"
    assert shown.js("document.querySelector('#told').innerText") == ""


@browsing
def test_a_killed_service_is_reported_and_so_is_that_its_sessions_are_gone(parts):
    _, simulator, url, shown = parts
    shown.go(f"{url}/simulator?language=ko")
    state(shown, "waiting")
    simulator.end(signal.SIGKILL)
    said = "document.querySelector('#told [role=alert]')?.innerText"
    shown.until(f"{said}.includes('시뮬레이터가 응답하지 않습니다')")
    again = simulator.again()
    try:
        assert state(shown, "gone") == "gone" and shown.until("!!document.querySelector('#anew')")
        assert "이 세션은 (더 이상) 없습니다" in shown.js(said), "what the service says, in the page's language"
    finally:
        again.end()
