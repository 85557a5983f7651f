"""The pages about runs, over real stores: a list, one as it goes, two compared."""

import csv
import io
import re
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from policies import WaitingPolicy
from serving import ENVIRONMENT, nobody, serving
from starlette.requests import Request

from services.ui.runs.routes import verdict
from services.ui.site import tables
from services.ui.site.tables import ROWS, csv_response
from services.ui.volume.runs import Stores
from tests import axe
from tests.mounts import fill
from vla_evaluation.config import config_hash
from vla_evaluation.runs import description
from vla_evaluation.store.runstore import RunStore

ROOT = Path(__file__).resolve().parents[2]
LIBERO = ROOT / "images/libero/.venv/bin/python"
FILM = ROOT / "services/ui/ask/static/examples"
WORDS = ("open the drawer", "<b>put</b> the bowl on the plate")


def identity(policy="vla", suite="libero_goal", assets="kit"):
    return {
        "suite": suite, "tasks": [0, 1], "episodes": "0-4", "profile": "openvla", "seed": 0, "max_steps": 300,
        "policy": {"name": policy, "checkpoint": None}, "assets": {"kind": assets, "digest": "d"}, "versions": {},
    }  # fmt: skip


def begun(root: Path, name: str, now: float = 0.0, **about) -> RunStore:
    """Return the store of a run that was just begun: two tasks, five episodes each."""
    directory = root / "runs" / name
    (directory / "videos").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    plan = [(task, episode) for task in range(2) for episode in range(5)]
    told = {"tasks": [{"instruction": words} for words in WORDS], "profile": {}, "assets": {"advice": ""}}
    meta = {"identity": identity(**about), "created": now, "about": told}
    found = identity(**about)
    store = RunStore.create(
        directory / "run.sqlite", suite=found["suite"], config_hash=config_hash(found), plan=plan, meta=meta
    )
    store.begin_invocation(now, {})
    return store


def finish(store: RunStore, now: float, success) -> None:
    """Finishes the run's next episode; success: by task and episode. The first of a task has a film."""
    lease = store.lease("worker-0", 1, now, 60.0)
    result = {
        "success": success(lease.task, lease.episode),
        "steps": 100,
        "start_hash": f"{lease.task}.{lease.episode}",
    }
    if lease.episode == 0:
        result |= {"video": f"videos/{lease.task:02d}-00.mp4", "still": f"videos/{lease.task:02d}-00.jpg"}
        (store.path.parent / result["video"]).write_bytes(bytes(range(256)) * 8)
        still = next(FILM.glob("*/*.jpg"))
        (store.path.parent / result["still"]).write_bytes(still.read_bytes())
    store.finish(lease, result, now)


def complete(root: Path, name: str, success, **about) -> None:
    with begun(root, name, **about) as store:
        for _ in range(10):
            finish(store, 30.0, success)
        store.end_invocation(1, 60.0, "complete")


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    root = tmp_path_factory.mktemp("lab") / "volume"
    complete(root, "goal-vla-1", lambda task, episode: episode != 3)
    complete(root, "goal-oracle-1", lambda task, episode: (task, episode) != (0, 1), policy="oracle")
    complete(root, "object-vla-1", lambda task, episode: True, suite="libero_object")
    (root / "runs" / "broken-1").mkdir()
    for name in ("run.sqlite", "config.json"):
        (root / "runs" / "broken-1" / name).write_text("no store")
    (root / "runs" / "goal-vla-1" / "report.html").write_text("<script>fetch('/logout', {method: 'POST'})</script>")
    return root


@pytest.fixture(scope="module")
def url(volume):
    """The site over that volume."""
    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    with closing(PolicyLink(nobody())) as link, serving(create_app(link, volume=volume)) as address:
        yield address


def test_the_list_has_every_run_and_keeps_to_its_filters(url):
    page = httpx.get(f"{url}/runs").text
    for name in ("goal-vla-1", "goal-oracle-1", "object-vla-1", "broken-1"):
        assert name in page
    left = httpx.get(f"{url}/runs?policy=vla&suite=libero_goal").text
    assert 'href="/runs/goal-vla-1"' in left and 'href="/runs/goal-oracle-1"' not in left
    assert "No run matches" in httpx.get(f"{url}/runs?policy=nobody").text


def names(page: str) -> list[str]:
    """Return the runs of a list, in its order."""
    return re.findall(r'<tr id="run-([\w.-]+)"', page)


def test_the_list_is_searched_and_sorted(url):
    assert set(names(httpx.get(f"{url}/runs?q=GOAL+oracle").text)) == {"goal-oracle-1"}
    best = names(httpx.get(f"{url}/runs/rows?sort=-rate").text)
    assert best == ["object-vla-1", "goal-oracle-1", "goal-vla-1", "broken-1"], "a damaged one has no rate"
    assert names(httpx.get(f"{url}/runs/rows?sort=rate").text)[0] == "goal-vla-1"
    assert len(names(httpx.get(f"{url}/runs?sort=nothing").text)) == 4
    page = httpx.get(f"{url}/runs?sort=rate&suite=libero_goal").text
    assert 'aria-sort="ascending"><a href="/runs?suite=libero_goal&amp;sort=-rate"' in page


def test_a_rate_has_no_whisker_before_three_episodes(url, volume):
    with begun(volume, "few", now=time.time()) as store:
        try:
            for count in range(1, 4):
                finish(store, time.time(), lambda task, episode: True)
                row = _row(httpx.get(f"{url}/runs").text, "few")
                assert "100.0 %" in row and ('class="interval"' in row) == (count == 3)
        finally:
            shutil.rmtree(store.path.parent)


def test_home_shows_what_runs_and_what_there_is(url, volume):
    (volume / "checkpoints" / "tiny").mkdir(parents=True)
    (volume / "checkpoints" / "tiny" / "weights").write_bytes(bytes(2_000_000))
    with begun(volume, "growing", now=time.time()) as store:
        try:
            finish(store, time.time(), lambda task, episode: True)
            page = httpx.get(f"{url}/").text
            running, last = page.split('id="running"')[1].split("</section>")[0], page.split('id="last"')[1]
            assert 'href="/runs/growing"' in running and "1/10" in running
            assert 'href="/runs/goal-vla-1"' in last and "2.0 MB" in last and 'id="start"' not in page
        finally:
            shutil.rmtree(store.path.parent)
            shutil.rmtree(volume / "checkpoints")


def test_an_empty_lab_says_where_to_start(tmp_path, stack):
    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    link = stack.enter_context(closing(PolicyLink(nobody())))
    url = stack.enter_context(serving(create_app(link, services={"simulator": nobody()}, volume=tmp_path)))
    start = httpx.get(url).text.split('id="start"')[1].split("</section>")[0]
    assert "./lab eval libero_goal" in start and 'href="/simulator"' in start and "./lab notebook ws_mdl" in start
    compare = httpx.get(f"{url}/runs/compare").text
    assert "./lab eval libero_goal" in compare and 'id="sides"' not in compare
    away = httpx.get(f"{url}/simulator", headers={"Accept": "text/html"}).text
    assert "./lab up simulator" in away and 'href="/simulator" aria-current="page"' in away


def test_runs_are_shown_on_a_full_disk(small_disk, stack):
    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    complete(small_disk, "goal-vla-1", lambda task, episode: episode != 3)
    fill(small_disk)
    link = stack.enter_context(closing(PolicyLink(nobody())))
    url = stack.enter_context(serving(create_app(link, volume=small_disk)))
    pages = {path: httpx.get(f"{url}{path}") for path in ("/", "/runs", "/runs/goal-vla-1", "/runs/leaderboard")}
    assert [path for path, page in pages.items() if page.status_code != 200 or "80.0 %" not in page.text] == []


def test_a_run_is_shown_with_its_tasks_videos_and_their_filters(url):
    page = httpx.get(f"{url}/runs/goal-vla-1").text
    assert "80.0 %" in page and "&lt;b&gt;put&lt;/b&gt; the bowl" in page and "<b>put</b>" not in page
    assert page.count("<video") == 2
    assert httpx.get(f"{url}/runs/goal-vla-1?task=1&outcome=success").text.count("<video") == 1
    assert httpx.get(f"{url}/runs/goal-vla-1?outcome=failure").text.count("<video") == 0


def test_the_protocol_is_called_one(url):
    """Its name is that of a model, which stands beside another policy's."""
    for path in ("/runs/goal-vla-1", "/runs/leaderboard"):
        assert "protocol: openvla" in httpx.get(f"{url}{path}").text


def test_a_long_list_is_turned_over():
    def turns(start, count: int) -> dict[str, str]:
        request = Request({"type": "http", "query_string": f"from={start}".encode(), "headers": []})
        rows, paging = tables.page(request, range(count), {"policy": "vla"})
        assert len(rows) <= ROWS and rows[0] == paging["start"] and paging["left"] == count
        return {name: int(query.removeprefix("policy=vla&from=")) for name, query in paging["turns"].items()}

    assert turns(0, ROWS) == {} and turns(0, ROWS + 1) == {"older": ROWS}
    assert turns(ROWS, 3 * ROWS) == {"newer": 0, "older": 2 * ROWS} and turns(2 * ROWS, 3 * ROWS) == {"newer": ROWS}
    assert turns(999, ROWS) == {"newer": 0} and {str(turns(odd, ROWS)) for odd in ("", "-1", "x", "9" * 50)} == {"{}"}


def test_a_report_cannot_act_in_the_name_of_who_looks_at_it(url):
    answer = httpx.get(f"{url}/runs/goal-vla-1/report.html")
    assert answer.status_code == 200 and "sandbox allow-scripts" in answer.headers["content-security-policy"]
    assert "allow-same-origin" not in answer.headers["content-security-policy"]


def test_a_damaged_run_says_why(url):
    answer = httpx.get(f"{url}/runs/broken-1")
    assert answer.status_code == 409 and "the file is damaged" in answer.text


def test_two_runs_are_compared_and_the_episodes_that_differ_are_shown(url):
    page = httpx.get(f"{url}/runs/compare?a=goal-vla-1&b=goal-oracle-1").text
    shown = re.findall(r'pair" data-task="(\d+)" data-episode="(\d+)"', page)
    assert set(shown) == {("0", "1"), ("0", "3"), ("1", "3")}
    assert "No difference is shown: B − A is +10.0 points" in page and "p = 1, 10 pairs, kit assets" in page
    assert '<th scope="row">policy.name</th><td>vla</td><td>oracle</td>' in page
    every = httpx.get(f"{url}/runs/compare?a=goal-vla-1&b=goal-oracle-1&show=all").text
    assert every.count("data-episode=") == 10 and every.count("<video") == 4


@pytest.mark.parametrize(
    ("difference", "interval", "words"),
    [
        (-0.12, (-0.21, -0.03), "B is worse by 12.0 points (95 % 3.0 to 21.0, p = 0.012, 100 pairs)."),
        (0.12, (0.03, 0.21), "B is better by 12.0 points (95 % 3.0 to 21.0, p = 0.012, 100 pairs)."),
        (
            -0.02,
            (-0.1, 0.06),
            "No difference is shown: B − A is -2.0 points (95 % -10.0 to 6.0, p = 0.012, 100 pairs).",
        ),
    ],
)
def test_the_verdict_is_a_sentence(difference, interval, words):
    result = {"difference": difference, "interval": interval, "p_value": 0.0123, "pairs": [None] * 100, "warnings": []}
    assert verdict({**result, "assets": "official"}, "en") == words
    unclear = verdict({**result, "p_value": 0.06, "assets": "official"}, "en")
    assert unclear.startswith("No difference is shown") and "p = 0.06" in unclear, "the interval alone is no proof"
    assert "not for publication, not comparable" in verdict({**result, "assets": "kit", "warnings": ["x"]}, "en")


def test_a_run_is_resumed_and_deleted_with_the_token_only(url):
    """With one, by the control daemon: tests/host/test_control_daemon.py has its commands."""
    for path in ("first", "goal-vla-1/resume", "goal-vla-1/delete"):
        assert httpx.post(f"{url}/runs/{path}").status_code == 403, path
    page = httpx.get(f"{url}/runs/goal-vla-1").text
    assert "./lab runs --delete goal-vla-1" in page and "data-act" not in page


def test_runs_that_cannot_be_paired_say_why(url):
    answer = httpx.get(f"{url}/runs/compare?a=goal-vla-1&b=object-vla-1")
    assert answer.status_code == 200 and "suite: libero_goal and libero_object" in answer.text
    plain = httpx.get(f"{url}/runs/compare?a=goal-vla-1&b=goal-vla-1").text
    assert "same run" in plain and "data-episode=" not in plain and "p = 1" not in plain
    forced = httpx.get(f"{url}/runs/compare?a=goal-vla-1&b=goal-vla-1&show=all&force=1").text
    assert "same run" in forced and forced.count("data-episode=") == 10 and "p = 1" in forced


def test_tables_are_had_csv_response(url):
    rows = list(csv.DictReader(io.StringIO(httpx.get(f"{url}/runs.csv").text)))
    assert {row["name"]: row["rate"] for row in rows}["goal-vla-1"] == "0.8"
    episodes = list(csv.DictReader(io.StringIO(httpx.get(f"{url}/runs/goal-vla-1/episodes.csv").text)))
    assert len(episodes) == 10 and episodes[3]["success"] == "False"


def test_a_cell_is_not_a_formula():
    assert b"'=HYPERLINK" in csv_response("a.csv", ["a"], [{"a": '=HYPERLINK("http://x")'}]).body
    assert rb"x\x1b[2J" in csv_response("a.csv", ["a"], [{"a": "x\x1b[2J"}, {"a": -1.5}]).body
    assert b"\n-1.5" in csv_response("a.csv", ["a"], [{"a": "x"}, {"a": -1.5}]).body


def test_the_leaderboard_has_what_may_be_compared_in_one_table_and_says_what_is_left_out(url, volume):
    """The same board as `./lab leaderboard` prints: tests/libero/test_leaderboard.py has its rules."""
    complete(volume, "official-vla-1", lambda task, episode: True, assets="official")
    try:
        with RunStore(volume / "runs" / "official-vla-1" / "run.sqlite") as store:
            about = store.meta("about")
            kinds = [task | {"kind": kind} for task, kind in zip(about["tasks"], ("base", "position"), strict=True)]
            store.set_meta("about", about | {"tasks": kinds})
        page = httpx.get(f"{url}/runs/leaderboard").text
        tables = page.split("<table>")[1:]
        assert len(tables) == 2 and "official" in page and "left out" in page.lower()
        (mine,) = [table for table in tables if 'href="/runs/goal-vla-1"' in table]
        assert "80.0 %" in mine and "49.0–94.3 %" in mine and 'href="/runs/object-vla-1"' in mine
        assert 'href="/runs/goal-oracle-1"' in mine and "official-vla-1" not in mine
        assert "<b>90.0 %</b></td>" in mine, "the mean of goal's 80 and object's 100"
        assert re.search(r"<b>broken-1</b> cannot be read: run store", page)
        assert "base <b>100.0 %</b>" in page and "position <b>100.0 %</b>" in page
        rows = list(csv.DictReader(io.StringIO(httpx.get(f"{url}/runs/leaderboard.csv").text)))
        assert {(row["policy"], row["suite"], row["assets"], row["rate"]) for row in rows if not row["kind"]} == {
            ("vla", "libero_goal", "kit", "0.8"), ("vla", "libero_object", "kit", "1.0"),
            ("oracle", "libero_goal", "kit", "0.9"), ("vla", "libero_goal", "official", "1.0"),
        }  # fmt: skip
    finally:
        shutil.rmtree(volume / "runs" / "official-vla-1")


def test_what_is_read_is_as_new_as_the_store(url, volume):
    with begun(volume, "growing", now=time.time()) as store:
        try:
            for count in range(3):
                assert f">{count}/10<" in _row(httpx.get(f"{url}/runs").text, "growing")
                finish(store, time.time(), lambda task, episode: True)
        finally:
            shutil.rmtree(store.path.parent)


def test_a_run_that_stays_as_it_is_is_read_once(volume, tmp_path):
    """Also one that nobody has read yet, although reading leaves an empty log beside it."""
    (copy := tmp_path / "runs" / "goal").mkdir(parents=True)
    for name in ("run.sqlite", "config.json"):
        shutil.copy(volume / "runs" / "goal-vla-1" / name, copy / name)
    stores = Stores(tmp_path)
    rows = stores.rows()
    stores.read = None
    assert stores.rows() == rows and rows[0]["state"] == "complete"


def test_the_time_left_leaves_the_simulators_start_out_and_counts_steps_under_way(tmp_path):
    with begun(tmp_path, "run") as store:
        assert description.pace(store, store.counts(), 20.0) == {"seconds": 1e-9, "steps_per_s": 0.0, "left_s": None}
        first = store.lease("worker-0", 1, 30.0, 60.0)
        store.finish(first, {"success": True, "steps": 100}, 40.0)
        second = store.lease("worker-0", 1, 40.0, 60.0)
        store.heartbeat(second, 45.0, 60.0, steps=50)
        found = description.pace(store, store.counts(), 45.0)
        assert found == {"seconds": 45.0, "steps_per_s": 10.0, "left_s": 85.0}  # ten episodes of 100 steps, 150 done


def _row(page: str, name: str) -> str:
    return next(row for row in page.split("<tr ") if f'href="/runs/{name}"' in row)


# --- in a browser --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [pytest.param(width, marks=axe.NEEDED) for width in (400, 1280)])
def test_the_numbers_of_a_run_that_is_under_way_move(width, url, volume, stack, open_page):
    name = f"running-{width}"
    store = stack.enter_context(begun(volume, name, now=time.time()))
    shown = open_page(f"{url}/runs/{name}", width=width)
    figure = "document.querySelector('#standing [data-figure=done]').textContent"
    shown.until(f"{figure} == '0'")
    for count in range(1, 4):
        finish(store, time.time(), lambda task, episode: task == 0)
        shown.until(f"{figure} == '{count}'")
    assert shown.js("document.querySelector('tr[data-task=\"0\"] [data-figure=done]').textContent") != "0"
    assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width
    for _ in range(7):
        finish(store, time.time(), lambda task, episode: task == 0)
    store.end_invocation(1, time.time(), "complete")
    shown.until("document.querySelector('#standing').dataset.state == 'complete'")
    assert "50.0" in shown.js("document.querySelector('#standing [data-figure=rate]').textContent")
    assert shown.errors == [] and shown.complaints == []


@axe.in_a_browser
def test_the_list_filters_at_once_keeps_what_is_chosen_and_moves(url, volume, stack, open_page):
    shown = open_page(f"{url}/runs")
    count, button = "document.querySelectorAll('#rows tbody tr').length", "document.querySelector('#compare')"
    added = len(list((volume / "runs").glob("running-*")))  # by other tests
    shown.until(f"{count} == {4 + added} && {button}.disabled")
    shown.click("[data-choose='goal-vla-1']")
    shown.type("[name=q]", "oracle")
    shown.until(f"{count} == 1 && location.search == '?q=oracle'")
    assert shown.js(f"{button}.disabled"), "one is chosen"
    shown.click("[data-choose='goal-oracle-1']")
    shown.until(f"!{button}.disabled && {button}.textContent.includes('goal-vla-1 with goal-oracle-1')")
    with begun(volume, "oracle-now", now=time.time()) as store:
        shown.js(
            "document.querySelector('[name=q]').value = '', document.querySelector('[name=state]').value = 'running'"
        )
        shown.js("document.querySelector('#filters').dispatchEvent(new Event('input'))")
        row = "document.querySelector('#run-oracle-now')?.innerText"
        shown.until(f"{count} == 1 && {row}.includes('0/10')")
        finish(store, time.time(), lambda task, episode: True)
        shown.until(f"{row}.includes('1/10')")
        shutil.rmtree(store.path.parent)
    shown.click("#compare")
    shown.until("document.querySelector('.verdict')?.innerText.includes('+10.0 points')")
    assert shown.errors == [] and shown.complaints == []


@axe.in_a_browser
@pytest.mark.skipif(not LIBERO.exists(), reason="environment 'libero' is not made: ./lab env libero")
def test_the_numbers_of_a_real_evaluation_move(url, volume, stack, serve_policy, open_page, tmp_path):
    """An evaluator with its worker in MuJoCo, over real HTTP; after two of three episodes the policy waits for us."""
    policy = WaitingPolicy(2)
    words = ["libero_goal", "--policy-url", serve_policy(policy), "--run-dir", volume / "runs", "--run-id", "real"]
    few = ["--tasks", "0", "--episodes", "0-2", "--max-steps", "5", "--workers", "1", "--video", "none"]
    with open(tmp_path / "said.txt", "w") as said:
        command = [LIBERO, "-m", "services.libero", *words, *few]
        evaluator = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said)
    stack.callback(evaluator.wait)
    stack.callback(evaluator.kill)
    end = time.monotonic() + 300
    while httpx.get(f"{url}/runs/real").status_code != 200:
        assert evaluator.poll() is None and time.monotonic() < end, (tmp_path / "said.txt").read_text()
        time.sleep(0.2)
    shown = open_page(f"{url}/runs/real")
    figure = "document.querySelector('#standing [data-figure={}]').textContent"
    shown.until(
        f"{figure.format('done')} == '2' && document.querySelector('#standing').dataset.state == 'running'", 300
    )
    assert shown.js("document.querySelectorAll('#workers li').length") == 1
    policy.gate.set()
    shown.until("document.querySelector('#standing').dataset.state == 'complete'", 300)
    assert shown.js(figure.format("done")) == "3" and "0.0" in shown.js(figure.format("rate"))
    assert shown.errors == [] and shown.complaints == []


@pytest.mark.parametrize("scheme", [pytest.param(name, marks=axe.NEEDED) for name in ("light", "dark")])
def test_lists_comparison_and_leaderboard_are_for_everyone(scheme, url, open_page):
    shown = open_page()
    shown.scheme(scheme)
    for width, language in ((1280, "en"), (400, "ko"), (1920, "en")):
        shown.resize(width, 900)
        for path in (
            "/",
            "/runs",
            "/runs/compare?a=goal-vla-1&b=goal-oracle-1",
            "/runs/leaderboard",
            "/runs/goal-vla-1",
        ):
            shown.go(f"{url}{path}{'&' if '?' in path else '?'}language={language}")
            shown.until(f"location.href.includes('{path}') && document.readyState == 'complete'")
            assert shown.js("document.documentElement.lang") == language
            assert axe.violations(shown) == [], path
            assert shown.js("document.documentElement.scrollWidth") <= width, path
    assert shown.errors == [] and shown.complaints == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {urlsplit(url).netloc}
