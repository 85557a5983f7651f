"""The report in a real browser: on a phone and a desk, in both colour schemes, by pointer, finger and keyboard."""

import itertools

import pytest

from tests import axe, browser
from tests.libero.invented import make_run
from vla_evaluation import report
from vla_evaluation.report import data, page

SIZES = [pytest.param(width, scheme, marks=axe.NEEDED) for width in (400, 1280) for scheme in ("light", "dark")]
STEPS = {"frames": 60}  # of a film: 6 s, and the last frame held
FILM, BUTTONS = "document.querySelector('dialog video')", "[...document.querySelectorAll('dialog button')]"
OWN = "[...e.childNodes].some(node => node.nodeType == 3 && node.data.includes('%'))"  # not what is further inside
PERCENTS = f"[...document.querySelectorAll('.headline *')].filter(e => {OWN})"
LARGEST = f"Math.max(...{PERCENTS}.map(e => parseFloat(getComputedStyle(e).fontSize)))"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The reports of a complete run with failures and films, of one that was cut off, and of a fresh one."""
    root = tmp_path_factory.mktemp("runs")
    said = "a policy's words without any blank: " + "x" * 300
    runs = {
        "complete": make_run(root, "complete", lambda task, episode: episode == 0, trials=2, files=4, **STEPS),
        "cut off": make_run(root, "cut-off", trials=6, files=2, left=17, **STEPS),
        "fresh": make_run(root, "fresh", trials=1, left=10),
    }
    store = runs["complete"][1]
    store.db.execute("UPDATE episodes SET result = json_set(result, '$.policy_error', ?) WHERE episode = 1", [said])
    for directory, store in runs.values():
        report.build(directory, store)
    return {name: directory / "report.html" for name, (directory, _) in runs.items()}


@pytest.fixture
def open_page(pages, stack):
    """Return a function that opens a report in a browser of its own."""

    def make(name, width=1280, scheme="light", query=""):
        shown = stack.enter_context(browser.Browser(width=width))
        shown.scheme(scheme)
        shown.go(pages[name].as_uri() + query)
        shown.until("document.readyState == 'complete' && document.title != ''")
        return shown

    return make


def box(shown, selector):
    """Return an element's place: left, top, right, bottom."""
    place = f"document.querySelector({selector!r}).getBoundingClientRect()"
    return shown.js(f"(r => [r.left, r.top, r.right, r.bottom])({place})")


# --- what it looks like ----------------------------------------------------------------------------------------


def test_every_stage_has_a_fixed_colour(tmp_path):
    _, store = make_run(tmp_path, trials=1)
    summary = data.Summary(tmp_path / "run", store)
    every = {key: 5.0 for key, *_ in data.STAGES} | {"total": 100.0}
    found = {}
    for missing in [*every, None]:
        timings = {key: ms for key, ms in every.items() if key != missing}
        summary.timings_ms = timings
        for part in page.timing_split(summary):
            found.setdefault(part["words"], set()).add(part["colour"])
    assert len(found) == len(data.STAGES) + 1 and all(len(colours) == 1 for colours in found.values())
    assert len(set.union(*found.values())) == len(found), "no two stages share a colour"


@pytest.mark.parametrize(("first", "second"), [*itertools.product(page.COLOURS.values(), ("#ffffff", "#1a2029"))])
def test_a_stage_stands_out_from_the_card(first, second):
    def luminance(colour):  # as WCAG 2 defines it
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    assert (light + 0.05) / (dark + 0.05) >= 3


@pytest.mark.parametrize(("width", "scheme"), SIZES)
@pytest.mark.parametrize("name", ["complete", "cut off", "fresh"])
def test_no_rule_is_breached_and_nothing_scrolls_sideways(open_page, name, width, scheme):
    shown = open_page(name, width, scheme)
    shown.js("document.querySelectorAll('details').forEach(folded => folded.open = true)")
    assert axe.violations(shown) == [] and shown.errors == []
    wide = "[...document.querySelectorAll('*')].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)"
    scrolling = f"{wide}.filter(e => ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.className)"
    assert shown.js("document.documentElement.scrollWidth") <= width and shown.js(scrolling) == []


@pytest.mark.parametrize(("width", "beneath"), [pytest.param(400, True, marks=axe.NEEDED),
                                                pytest.param(1280, False, marks=axe.NEEDED)])  # fmt: skip
def test_a_narrow_page_has_the_rate_under_the_instruction(open_page, width, beneath):
    shown = open_page("complete", width)
    instruction, rate, bar = (box(shown, f"tbody tr .{name}-cell") for name in ("what", "rate", "bar"))
    assert (rate[1] >= instruction[3] - 1) == beneath
    assert rate[2] <= width and bar[2] <= width and bar[2] - bar[0] > 100
    assert shown.js("document.querySelector('tbody .rate-cell').innerText").startswith("50 %")


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_only_a_complete_run_has_its_rate_in_large_letters(open_page, width, scheme):
    assert open_page("complete", width, scheme).js(LARGEST) >= 28
    shown = open_page("cut off", width, scheme)
    said = shown.js("document.querySelector('.headline').innerText")
    assert said.startswith("43 of 60 episodes done") and "success rate so far 100 %" in said
    assert shown.js(LARGEST) <= 16 and "%" not in shown.js("document.title")
    assert "3 of 6 done" not in said and "1 of 6 done" in shown.js("document.querySelector('.tasks').innerText")
    fresh = open_page("fresh", width, scheme).js("document.querySelector('.headline').innerText")
    assert fresh.startswith("0 of 10 episodes done") and "rate" not in fresh


@pytest.mark.parametrize(("width", "scheme"), SIZES[:1])
def test_provenance_is_collapsed_by_default(open_page, width, scheme):
    shown = open_page("complete", width, scheme)
    visible = "document.querySelector('details .prov').checkVisibility()"
    assert not shown.js(visible)
    shown.js("document.querySelector('summary').focus()")
    shown.press("Enter")
    shown.until(visible)


# --- films -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_video_controls_fit_a_finger_and_breach_no_rule(open_page, width, scheme):
    shown = open_page("complete", width, scheme)
    mark = box(shown, ".watch svg")
    assert min(mark[2] - mark[0], mark[3] - mark[1]) >= 44
    shown.click(".watch")
    shown.until(f"{FILM}.currentTime > 0.2")
    assert axe.violations(shown) == []
    sizes = shown.js(f"[...{BUTTONS}, document.querySelector('[name=at]')].map(e => [e.offsetWidth, e.offsetHeight])")
    assert len(sizes) == 9 and all(min(size) >= 44 for size in sizes)
    inside = box(shown, "dialog")
    assert inside[0] >= 0 and inside[2] <= width and inside[1] >= 0 and inside[3] <= 900
    assert shown.js("document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth")
    words = shown.js(f"{BUTTONS}.map(e => e.innerText)")
    assert words == ["Close", "Previous", "Pause", "Next", "½×", "1×", "2×", "4×"]


@pytest.mark.parametrize(("width", "scheme"), SIZES[:1] + SIZES[2:3])
def test_a_finger_plays_stops_and_changes_the_speed(open_page, width, scheme):
    shown = open_page("complete", width, scheme)
    shown.click(".watch")
    shown.until(f"{FILM}.currentTime > 0.2")
    shown.click("dialog [name=play]")
    shown.until(f"{FILM}.paused && document.querySelector('dialog [name=play]').innerText == 'Play'")
    shown.click("dialog [value='4']")
    assert shown.js(f"{FILM}.playbackRate") == 4
    shown.click("dialog [name=next]")
    shown.until(f"!{FILM}.paused && {FILM}.playbackRate == 4")
    shown.until(f"{FILM}.ended && document.querySelector('dialog [name=play]').innerText == 'Play again'")
    shown.click("dialog [name=at]")  # its middle
    shown.until(f"Math.abs({FILM}.currentTime / {FILM}.duration - 0.5) < 0.05")
    shown.click("dialog [name=close]")
    shown.until("!document.querySelector('dialog').open")


@pytest.mark.parametrize(("width", "scheme"), SIZES[:1] + SIZES[2:3])
def test_keyboard_reaches_every_video_and_control(open_page, width, scheme):
    shown = open_page("complete", width, scheme)
    reached = []
    while len(reached) < 7:
        shown.press("Tab")
        reached.append(shown.js("document.activeElement.ariaLabel ?? document.activeElement.localName"))
    assert reached[:2] == ["a", "a"], "the two languages"
    assert reached[2].startswith("Play: open the middle drawer of the cabinet, episode 1, policy error")
    assert [line[:5] for line in reached[2:]] == ["Play:"] * 4 + ["summa"], "one stop for each film, then provenance"
    shown.js("document.querySelector('.watch').focus()")
    shown.press("Enter")
    shown.until(f"{FILM}.currentTime > 0.2")
    shown.press("Space")
    shown.until(f"{FILM}.paused")
    before = shown.js(f"{FILM}.currentTime")
    shown.press("ArrowRight")
    shown.until(f"Math.abs({FILM}.currentTime - {before} - 1) < 0.01")
    shown.until(f"document.querySelector('output').innerText == `step ${{Math.round({FILM}.currentTime * 20)}} of 100`")
    shown.press("ArrowUp")
    assert shown.js(f"{FILM}.playbackRate") == 2
    assert shown.js("document.querySelector('[aria-pressed=true]').innerText") == "2×"
    how = "document.querySelector('.player-how').innerText"
    assert shown.js(how).startswith("policy error · task 0 · episode 1")
    shown.press("KeyN"), shown.press("KeyN")
    shown.until(f"{how}.startsWith('success · task 0 · episode 0')")
    shown.press("KeyP")
    shown.until(f"{how}.startsWith('policy error · task 1 · episode 1')")
    for _ in range(12):
        shown.press("Tab")
        assert shown.js("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    shown.press("Escape")
    shown.until("!document.querySelector('dialog').open && document.activeElement.matches('.watch')")


@pytest.mark.parametrize(("width", "scheme"), SIZES[:1])
def test_missing_video_displays_a_message(tmp_path, stack, width, scheme):
    directory, store = make_run(tmp_path, trials=1, files=1)
    html = page.render(directory, data.Summary(directory, store), embed_bytes=0)
    (tmp_path / "moved.html").write_text(html)
    shown = stack.enter_context(browser.Browser(width=width))
    shown.go((tmp_path / "moved.html").as_uri())
    shown.click(".watch")
    shown.until("document.querySelector('dialog [role=alert]').innerText.includes('cannot be played')")


def test_without_scripts_videos_have_browser_controls(pages):
    html = pages["complete"].read_text()
    assert html.count("<video controls ") == 4 and html.count('class="watch" type="button" hidden') == 4


REMAINING = """[...(function* () {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.parentElement.closest('script, style, nav, .what, .what-cell, .prov')) yield node.data.trim();
  }
  for (const element of document.querySelectorAll('[title], [aria-label], [alt]')) {
    for (const name of ['title', 'aria-label', 'alt']) yield element.getAttribute(name) ?? '';
  }
})()].filter(text => /[a-z]{3}/i.test(text) && !/[가-힣]/.test(text))"""


@pytest.mark.parametrize("name", [pytest.param(name, marks=axe.NEEDED) for name in ("complete", "cut off", "fresh")])
def test_the_page_is_korean_on_request(open_page, name):
    shown = open_page(name, query="?language=ko")
    remaining = set(shown.js(REMAINING))
    identity = {"official", "openvla", "encoding, HTTP, decoding", "action chunk"}
    assert remaining <= identity, remaining
    assert shown.js("document.documentElement.lang") == "ko" and "과제" in shown.js("document.body.innerText")
    if name == "complete":
        shown.click(".watch")
        shown.until("document.querySelector('[name=play]').textContent === '일시 정지'")
