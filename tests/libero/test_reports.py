"""The service that shows reports, as a program: what it hands out, how films seek, who gets in, what it never opens."""

import base64
import http.client
import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import axe, browser
from tests.libero.invented import make_run
from tests.ports import free_ports
from vla_common import healthcheck
from vla_evaluation import report

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "images/ui/.venv/bin/python"
TOKEN = "open-sesame"
SECRET = b"canary-71d0"
pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(not UI.exists(), reason="environment 'ui' is not made: ./lab env ui"),
]


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with a complete run, one that was cut off, one without a report, one of damage, and planted links."""
    root = tmp_path_factory.mktemp("lab") / "volume"
    for name, settings in (
        ("goal-one", {"trials": 2, "files": 3, "frames": 40}),
        ("goal-two", {"trials": 2, "left": 13}),
        ("object-bare", {"trials": 1}),
        ("object-damaged", {"trials": 1}),
    ):
        directory, store = make_run(root / "runs", name, **settings)
        (directory / "config.json").write_text("{}")
        if name != "object-bare":
            report.build(directory, store)
        store.close()
    (root / "runs" / "object-damaged" / "summary.json").write_text('{"suite": ["<script>alert(1)</script>"]}')
    os.utime(root / "runs" / "goal-two" / "config.json", (4e9, 4e9))
    curve = root / "checkpoints" / "transformer" / "small-en-it" / "curve.png"
    curve.parent.mkdir(parents=True)
    curve.write_bytes(base64.b64decode(PIXEL))
    plant(root)
    return root


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def plant(root: Path) -> None:
    """Puts what must not be handed out where a container could put it."""
    outside = root.parent / "outside"
    (outside / "videos").mkdir(parents=True)
    for name in ("report.html", "secret.mp4", "videos/secret.mp4", "run.sqlite", "config.json", "curve.png"):
        (outside / name).write_bytes(SECRET)
    one = root / "runs" / "goal-one" / "videos"
    (one / "link.mp4").symlink_to(outside / "secret.mp4")
    os.mkfifo(one / "pipe.mp4")
    (one / "folder.mp4").mkdir()
    (root / "runs" / "led-away").symlink_to(outside)
    videos = root / "runs" / "object-bare" / "videos"
    videos.rmdir()
    videos.symlink_to(outside / "videos")
    (root / "checkpoints" / "transformer" / "led-away").symlink_to(outside)


@contextmanager
def serving(volume: Path, *words: str, **variables: str):
    """Start the service on a free port; gives its address as soon as it is ready."""
    (port,) = free_ports(1)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLALAB_")}
    path = os.pathsep.join(
        map(
            str,
            (
                ROOT,
                *(ROOT / "shared" / name for name in ("common", "contract", "evaluation", "datasets", "fast_libero")),
            ),
        )
    )
    env = {**kept, "PYTHONPATH": path, "VLALAB_VOLUME": str(volume), **variables}
    command = [UI, "-m", "services.ui", "--policy-url", "http://127.0.0.1:9", "--port", str(port), *words]
    process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 120
        while not healthcheck.check(f"http://127.0.0.1:{port}", 2.0)[0]:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < end, "the service does not get ready"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[0]
        assert "Traceback" not in said, said
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def url(volume):
    """The service over that volume, without a token."""
    with serving(volume) as address:
        yield address


def ask(url: str, path: str, method: str = "GET", **headers: str):
    """Return an answer's status, headers and body; the path goes out as it is, and no redirect is followed."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body


def test_the_list_names_every_run_and_what_came_of_it(url):
    text = ask(url, "/runs")[2].decode()
    rows = {row.split("</a>")[0].rpartition(">")[2]: row for row in text.split('<th scope="row">')[1:]}
    assert set(rows) == {"goal-one", "goal-two", "object-bare", "object-damaged"}
    assert "7/20" in rows["goal-two"] and "100.0 %" in rows["goal-one"] and "83.9–100.0 %" in rows["goal-one"]
    bare, one = (ask(url, f"/runs/{name}")[2] for name in ("object-bare", "goal-one"))
    assert b"./lab report object-bare" in bare and b"report.html" in one


def test_a_report_comes_as_it_was_written(url, volume):
    status, headers, body = ask(url, "/runs/goal-one/report.html")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert body == (volume / "runs" / "goal-one" / "report.html").read_bytes()


@pytest.mark.parametrize(("asked", "leads"), [("goal-o", "goal-one"), ("latest", "goal-two")])
def test_a_run_is_found_by_a_beginning_and_as_the_latest(url, volume, asked, leads):
    status, headers, _ = ask(url, f"/runs/{asked}")
    assert (status, headers["location"]) == (307, f"/runs/{leads}")
    assert ask(url, f"/runs/{asked}/report.html")[2] == (volume / "runs" / leads / "report.html").read_bytes()


def test_what_is_missing_is_reported_with_what_is(url):
    assert b"run 'goal' matches goal-one, goal-two" in ask(url, "/runs/goal")[2]
    assert b"did you mean 'goal-one'?" in ask(url, "/runs/gaol-one")[2]
    assert b"./lab report object-bare" in ask(url, "/runs/object-bare/report.html")[2]


@pytest.mark.parametrize(
    ("wanted", "first", "last"), [("bytes=0-99", 0, 99), ("bytes=100-", 100, None), ("bytes=-7", -7, None)]
)
def test_a_video_is_had_in_parts(url, volume, wanted, first, last):
    whole = (volume / "runs" / "goal-one" / "videos" / "00-00.mp4").read_bytes()
    status, headers, body = ask(url, "/runs/goal-one/videos/00-00.mp4", Range=wanted)
    assert (status, headers["content-type"]) == (206, "video/mp4")
    assert body == whole[first : None if last is None else last + 1]
    assert headers["content-range"].endswith(f"/{len(whole)}")
    changed = ask(url, "/runs/goal-one/videos/00-00.mp4", Range=wanted, If_Range='"another"')
    assert changed[0] == 200 and changed[2] == whole
    assert ask(url, "/runs/goal-one/videos/00-00.mp4", Range="bytes=99999999-")[0] == 416
    assert ask(url, "/runs/goal-one/videos/00-00.mp4", "HEAD")[1]["content-length"] == str(len(whole))


@pytest.mark.parametrize(
    "path",
    [
        "/runs/goal-one/run.sqlite", "/runs/goal-one/config.json", "/runs/goal-one/summary.json",
        "/runs/goal-one/logs/worker-0.log", "/runs/goal-one/videos/link.mp4", "/runs/goal-one/videos/pipe.mp4",
        "/runs/goal-one/videos/folder.mp4", "/runs/goal-one/videos/..", "/runs/goal-one/videos/%2e%2e",
        "/runs/goal-one/videos/..%2freport.html", "/runs/goal-one/videos/00-00.mp4%00",
        "/runs/goal-one/videos/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2foutside%2fsecret.mp4",
        "/runs/goal-one/videos/.00-00.mp4.partial", "/runs/object-bare/videos/secret.mp4", "/runs/led-away",
        "/runs/led-away/report.html", "/curves/led-away.png", "/curves/%2e%2e.png", "/runs/../outside/report.html",
        "/runs/..%2f..%2foutside/report.html", "//etc/passwd", "/%ff%fe", "/runs/" + "a" * 5000,
        "/runs/goal-one/videos/" + "a" * 300 + ".mp4",
    ],
)  # fmt: skip
def test_nothing_but_reports_is_handed_out_and_no_link_is_followed(url, path):
    status, _, body = ask(url, path)
    assert status == 404 and SECRET not in body and len(body) < 12_000


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_changes_nothing(url, volume, method):
    before = {path: path.lstat().st_mtime_ns for path in volume.rglob("*")}
    assert [ask(url, path, method)[0] for path in ("/runs/goal-one/report.html", "/runs")] == [405, 405]
    assert {path: path.lstat().st_mtime_ns for path in volume.rglob("*")} == before


def test_a_report_may_fetch_nothing_from_elsewhere(url):
    for path in ("/", "/runs/goal-one/report.html", "/nothing"):
        headers = ask(url, path)[1]
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ") and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"


def test_descriptors_are_given_back(url):
    for _ in range(1100):  # more than a process may have open on many machines
        assert ask(url, "/runs/goal-one/videos/00-00.jpg")[0] == 200


def test_with_a_token_nothing_but_the_probes_answers_without_it(volume):
    def basic(password):
        return "Basic " + base64.b64encode(f"student:{password}".encode()).decode()

    with serving(volume, VLALAB_TOKEN=TOKEN) as url:
        inside = ("report.html", "videos/00-00.mp4", "")
        for path in (
            "/",
            "/api/runs",
            "/api/runs/goal-one",
            "/api/data",
            "/curves/small-en-it.png",
            *(f"/runs/goal-one/{name}" for name in inside),
        ):
            assert ask(url, path)[0] == 401 and b"VLALAB_TOKEN" in ask(url, path)[2]
            for wrong in (basic("a guess"), "Basic no base64!", "Bearer", "Bearer x", "\xff"):
                assert ask(url, path, Authorization=wrong)[0] == 401
            assert ask(url, path, Authorization=f"Bearer {TOKEN}")[0] in (200, 307)
            assert ask(url, path, Authorization=basic(TOKEN))[0] in (200, 307)
        assert [ask(url, path)[0] for path in ("/livez", "/readyz")] == [200, 200]
        assert [ask(url, "/api/data/x/episodes/0")[0], ask(url, "/api/data/x/marks", "POST")[0]] == [401, 401]


@pytest.mark.parametrize(("words", "variables"), [(["--host", "0.0.0.0"], {}), ([], {"VLALAB_BIND": "0.0.0.0"})])
def test_beyond_loopback_it_needs_a_token(volume, words, variables):
    with pytest.raises(AssertionError, match="VLALAB_TOKEN"), serving(volume, *words, **variables):
        pass


def test_runs_are_reported_as_json(url):
    rows = {row["name"]: row for row in json.loads(ask(url, "/api/runs")[2])["runs"]}
    assert set(rows) == {"goal-one", "goal-two", "object-bare", "object-damaged"}
    one, two = rows["goal-one"], rows["goal-two"]
    assert (one["state"], one["done"], one["rate"], two["state"], two["done"]) == ("complete", 20, 1.0, "stopped", 7)
    assert one["interval"] == pytest.approx([0.8389, 1.0], abs=1e-4)
    whole = json.loads(ask(url, "/api/runs/goal-one")[2])
    assert [task["done"] for task in whole["tasks"]] == [2] * 10 and len(whole["episodes"]) == 20
    assert whole["tasks"][0]["instruction"] == "open the middle drawer of the cabinet"
    assert whole["episodes"][0]["film"] == "00-00.mp4"
    pairs = json.loads(ask(url, "/api/compare?a=goal-one&b=goal-two&force=1")[2])
    assert (len(pairs["pairs"]), pairs["p_value"], pairs["left_out"]) == (7, 1.0, 13)
    assert b"did you mean" in ask(url, "/api/runs/goal-ome")[2] and ask(url, "/api/runs/..%2f..")[0] == 404
    assert ask(url, "/api/runs/led-away")[0] == ask(url, "/api/compare?a=/etc/passwd&b=x")[0] == 404


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("a=goal-one&b=goal-two", "run goal-two is not complete: 7 of 20"),
        ("a=goal-one&b=goal-one", "same run"),
    ],
)
def test_incomparable_runs_need_force(url, pair, reason):
    status, _, body = ask(url, f"/api/compare?{pair}")
    assert status == 409 and reason in json.loads(body)["detail"] and b"damaged" not in body
    status, _, body = ask(url, f"/api/compare?{pair}&force=1")
    assert status == 200 and reason in json.loads(body)["warnings"][0]


def test_a_result_that_is_not_valid_json_is_reported_with_its_episode(tmp_path):
    """As a machine that joined could store it once; so could it a name with half a surrogate pair."""
    runs = tmp_path / "runs"
    _, store = make_run(runs, "nan", trials=1)
    store.db.execute('UPDATE episodes SET result = \'{"timings_ms": {"total": NaN}}\' WHERE task = 3')
    store.close()
    _, store = make_run(runs, "named", trials=1)
    store.note(1, {"hosts": {"a\ud800": {"host": "a\ud800", "workers": 1}}})
    store.close()
    make_run(runs, "good", trials=1)[1].close()
    for run in ("nan", "named", "good"):
        (runs / run / "config.json").write_text("{}")
    with serving(tmp_path) as url:
        for path in ("/api/runs/nan", "/api/compare?a=nan&b=good", "/api/compare?a=good&b=nan"):
            status, _, body = ask(url, path)
            assert status == 409 and "task 3 episode 0" in json.loads(body)["detail"], path
        for path in ("/runs", "/api/runs", "/api/leaderboard", "/api/runs/named", "/api/compare?a=named&b=good"):
            assert ask(url, path)[0] == 200, path
        assert list(json.loads(ask(url, "/api/runs/named")[2])["invocations"][0]["notes"]["hosts"]) == ["a?"]


def test_an_empty_volume_says_how_to_make_a_run(tmp_path):
    with serving(tmp_path) as url:
        assert b"./lab eval libero_goal" in ask(url, "/runs")[2]


@pytest.mark.parametrize("scheme", [pytest.param(name, marks=axe.NEEDED) for name in ("light", "dark")])
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_list_report_curve_and_a_video_that_seeks(url, stack, volume, width, scheme):
    from vla_evaluation.report import data, page
    from vla_evaluation.store.runstore import RunStore

    directory = volume / "runs" / "goal-one"
    with RunStore(directory / "run.sqlite", readonly=True) as store:
        linked = page.render(directory, data.Summary(directory, store), embed_bytes=0)
    (directory / "report.html").write_text(linked)
    shown = stack.enter_context(browser.Browser(width=width))
    shown.scheme(scheme)
    shown.go(f"{url}/runs")
    shown.until("document.querySelector('figure img')?.naturalWidth == 1")
    assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width
    shown.go(f"{url}/runs/goal-one/report.html")
    shown.click(".watch")
    film = "document.querySelector('dialog video')"
    shown.until(f"{film}.currentTime > 0.2")
    shown.press("Space")
    shown.js(f"{film}.currentTime = 3.5")
    shown.until(f"!{film}.seeking && Math.abs({film}.currentTime - 3.5) < 0.01 && {film}.readyState >= 2")
    assert shown.errors == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {urlsplit(url).netloc}
