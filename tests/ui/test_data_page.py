"""The pages about data sets, over a real data set, in a real browser."""

import io
import subprocess
import tarfile
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from serving import ENVIRONMENT, ROOT, nobody, serving, steward

from services.ui.app import create_app
from services.ui.ask.link import PolicyLink
from tests import axe, data_sets
from tests.mounts import fill, small
from vla_datasets import libero
from vla_datasets.v3_writing import V3Writer

LIBERO = ROOT / "images/libero/.venv/bin/python"
TOKEN = "open-sesame"
V3_VIDEO = "videos/{}/chunk-000/file-000.mp4"
LINE_AT = "Number(document.querySelector('line.now').getAttribute('x1'))"  # where the film is, in the first curve
MAKE = """
from pathlib import Path
from tests import data_sets
sets = Path({!r}) / "datasets"
data_sets.lerobot(sets / "goal-one", size=64)
data_sets.hdf5(sets / "goal-hdf5")
(sets / "cut" / "meta").mkdir(parents=True)
(sets / "cut" / "meta" / "info.json").write_text("<b>no JSON</b>")
"""


def test_nothing_is_marked_without_the_token_or_for_another_site(stack, tmp_path):
    url = site(tmp_path, stack, TOKEN)
    assert httpx.post(f"{url}/data/goal-one/marks", data={"what": "bad", "episode": "0"}).status_code == 401
    url = site(tmp_path, stack)
    from_elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert httpx.post(f"{url}/data/goal-one/marks", headers=from_elsewhere).status_code == 403
    for form in ({"what": "worse", "episode": "0"}, {"what": "bad", "episode": "-1"}, {}):
        assert httpx.post(f"{url}/data/goal-one/marks", data=form).status_code == 400
    assert httpx.post(f"{url}/data/goal-one/marks", content=b"x" * 100_000).status_code == 413


def test_an_episode_of_version_3_plays_its_part_of_a_video(stack, tmp_path):
    directory = tmp_path / "datasets" / "new"
    data_sets.lerobot(directory, layout=V3Writer)
    url = site(tmp_path, stack)
    page = httpx.get(f"{url}/data/new/1").text
    assert 'image.mp4#t=0.6,1.025" data-start="0.6"' in page and "<polyline" in page and "push the plate" in page
    key = libero.video_key("agentview")
    assert httpx.get(f"{url}/data/new/films/1/{key}.mp4").content == (directory / V3_VIDEO.format(key)).read_bytes()
    (directory / V3_VIDEO.format(key)).unlink()  # which no page opens but the player's
    assert httpx.get(f"{url}/data/new/1").status_code == 200
    outside = tmp_path / "outside.parquet"
    (directory / "data/chunk-000/file-000.parquet").rename(outside)
    (directory / "data/chunk-000/file-000.parquet").symlink_to(outside)
    info = directory / "meta/info.json"
    info.write_text(info.read_text() + " ")  # now it is opened again
    assert "<polyline" not in httpx.get(f"{url}/data/new/1").text


def site(volume: Path, stack, token: str | None = None, daemon: str = "") -> str:
    link = PolicyLink(nobody())
    stack.callback(link.close)
    return stack.enter_context(serving(create_app(link, token, control_directory=daemon, volume=volume)))


def test_a_set_is_downloaded_whole_with_links_as_links(stack, tmp_path):
    directory = tmp_path / "datasets" / "new"
    data_sets.lerobot(directory, layout=V3Writer)
    (directory / "outside").symlink_to("/etc/hostname")
    url = site(tmp_path, stack)
    answer = httpx.get(f"{url}/data/new/download")
    assert answer.headers["content-disposition"] == 'attachment; filename="new.tar"'
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        info = archive.extractfile("new/meta/info.json").read()
        assert info == (directory / "meta/info.json").read_bytes() and archive.getmember("new/outside").issym()
        assert {path.name for path in directory.rglob("*.mp4")} <= {Path(name).name for name in archive.getnames()}
    for name in ("nothing", "..", "%2e%2e"):
        assert httpx.get(f"{url}/data/{name}/download").status_code == 404


@axe.in_a_browser
def test_a_set_is_checked_with_its_progress_by_a_click(stack, tmp_path, open_page):
    data_sets.lerobot(tmp_path / "datasets" / "new", layout=V3Writer)
    (control := tmp_path / "control").mkdir()
    began = {"service": "data new", "what": "check", "began": 1.0, "ended": None, "code": None, "output": "1 of 4 read"}
    tells = {"POST /data/new/check": (200, began), "GET /data/new/action": (200, began)}
    asked = stack.enter_context(steward(control, tells))
    url = site(tmp_path, stack, TOKEN, str(control))
    assert httpx.post(f"{url}/data/new/check").status_code == 401 and asked == []
    shown = open_page()
    shown.do("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {TOKEN}"})
    shown.go(f"{url}/data/new?language=en")
    shown.until("document.querySelector('#check').innerText.includes('Not checked yet')")
    shown.click("#check button")
    shown.until("document.querySelector('progress').value == 1 && document.querySelector('progress').max == 4")
    assert axe.violations(shown) == [] and "1 of 4 read" in shown.js("document.querySelector('#action').innerText")
    (logs := tmp_path / "logs" / "datasets").mkdir(parents=True)
    (logs / "new.check.json").write_text('{"at": 9e9, "grave": 0, "lines": ["no faults"]}')
    tells["GET /data/new/action"] = (200, {**began, "ended": 3.0, "code": 0})
    shown.until("document.querySelector('#check .good')?.innerText.includes('no errors')")
    assert shown.errors == [] and shown.complaints == []


# --- over real data sets ------------------------------------------------------------------------------------


def over_data(test):
    """Marks a test that needs a browser and what reads data sets, which no image has together."""
    return axe.in_a_browser(test, pytest.mark.skipif(not LIBERO.exists(), reason="run ./lab env libero"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The volume's folder; where this machine lets us mount one, its data sets lie on a small file system."""
    root = tmp_path_factory.mktemp("lab") / "volume"
    (root / "datasets").mkdir(parents=True)
    with ExitStack() as entered:
        with suppress(pytest.skip.Exception):
            entered.enter_context(small(root / "datasets", "16m"))
        yield root


@pytest.fixture(scope="module")
def url(root):
    """The site over a volume with a set, one of HDF5 and a damaged one."""
    subprocess.run([LIBERO, "-c", MAKE.format(str(root))], env=ENVIRONMENT, cwd=ROOT, check=True)
    with ExitStack() as entered:
        yield site(root, entered)


@over_data
def test_the_list_tells_what_is_in_a_set_and_what_is_wrong_with_one(url, stack):
    client = stack.enter_context(httpx.Client(base_url=url, timeout=60.0))
    page = client.get("/data").text
    one = page.split('href="/data/goal-one"')[1].split("</tr>")[0]
    assert ">3<" in one and ">20<" in one and "image, wrist_image" in one
    assert "./lab dataset goal-hdf5 --format lerobot" in page and "cannot be read as JSON" in page
    for path in ("/data/nothing", "/data/goal-hdf5", "/data/goal-one/9", "/data/goal-one/films/0/x.mp4"):
        assert client.get(path).status_code in (404, 409), path


@over_data
def test_a_person_looks_at_an_episode_and_marks_it(url, open_page):
    shown = open_page(f"{url}/data/goal-one/1?language=en")
    shown.until("document.querySelectorAll('video').length == 2 && document.querySelector('video').readyState >= 1")
    assert shown.js("document.querySelectorAll('.curves polyline').length") == 15
    shown.js("document.querySelector('video').currentTime = 0.25")
    shown.until(f"{LINE_AT} > 0")
    shown.js("document.querySelector('line.now').setAttribute('x1', 0)")
    shown.js("import(document.querySelector('script[src*=\"curves.js\"]').src + '?late').then(() => null)")
    assert shown.js(LINE_AT) > 0, "a script that comes after the film was moved"
    shown.click("button[name=what][value=bad]")
    shown.until("!!document.querySelector('button[value=good]')")
    shown.go(f"{url}/data/goal-one?show=bad")
    shown.until("document.querySelectorAll('tr[data-episode]').length == 1")
    shown.click("tr[data-episode] input")
    shown.click("button[name=what][value=good]")
    shown.until("location.search == '?show=good' && document.querySelectorAll('tr[data-episode]').length == 3")
    assert shown.errors == [] and shown.complaints == []


@over_data
def test_episodes_and_sets_are_found_as_one_types_and_each_has_a_thumbnail(url, open_page):
    count = "document.querySelectorAll('#rows tbody tr').length"
    shown = open_page(f"{url}/data?language=en")
    shown.until(f"{count} == 3 && document.querySelector('.thumb video').readyState >= 2")
    shown.type("[name=q]", "one")
    shown.until(f"{count} == 1 && location.search == '?q=one'")
    shown.click("#rows a")
    shown.until(f"{count} == 3 && document.querySelectorAll('.thumb video').length == 3")
    shown.type("[name=q]", "2")
    shown.until(f"{count} == 1 && document.querySelector('#rows a').innerText == '2'")
    shown.click("details:last-of-type summary")
    assert "std" in shown.js("document.querySelector('details:last-of-type').innerText")
    shown.type("[name=q]", "nothing")
    shown.until("document.querySelector('#rows').innerText.includes('No episode matches')")
    assert shown.errors == [] and shown.complaints == []


@over_data
def test_a_full_disk_takes_no_mark_and_reports_it(url, root, open_page):
    if not (root / "datasets").is_mount():
        pytest.skip("no right to mount a small file system")
    shown = open_page(f"{url}/data/goal-one/2?language=en")
    shown.until("document.readyState == 'complete' && !!document.querySelector('button[value=bad]')")
    filler = fill(root / "datasets" / "cut")
    shown.click("button[name=what][value=bad]")
    shown.until("document.querySelector('[role=alert]')?.innerText.includes('no space left')")
    filler.unlink()
    assert not list((root / "datasets").glob(".*.partial")), "a part of it is left"
    shown.go(f"{url}/data/goal-one/2")
    shown.click("button[name=what][value=bad]")
    shown.click("button[name=what][value=good]")
    shown.until("!!document.querySelector('button[value=bad]')")


@over_data
def test_they_are_for_everyone(url, open_page):
    shown = open_page()
    for scheme, width, language in (("light", 1280, "en"), ("dark", 400, "ko"), ("light", 1920, "ko")):
        shown.scheme(scheme)
        shown.resize(width, 900)
        for path in ("/data", "/data/goal-one", "/data/goal-one/0"):
            shown.go(f"{url}{path}?language={language}")
            shown.until(f"location.pathname == '{path}' && document.readyState == 'complete'")
            shown.until(f"document.documentElement.lang == '{language}'")
            assert axe.violations(shown) == [], path
            assert shown.js("document.documentElement.scrollWidth") <= width, path
    assert shown.errors == [] and shown.complaints == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {urlsplit(url).netloc}
