"""axe-core in the browser: it sees what is wrong with a page, and nothing in one that is in order."""

import pytest

from tests import axe, browser

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for axe-core"),
]
GOOD = "<!doctype html><html lang=en><title>page</title><main><h1>Words</h1><button>go</button></main>"


@pytest.fixture(scope="module")
def shown(tabs):
    with tabs.entered() as opened:
        yield opened


def show(shown, html):
    shown.go("about:blank")
    shown.js(f"document.open(), document.write({html!r}), document.close()")
    return axe.violations(shown)


def test_a_page_in_order_breaches_no_rule(shown):
    assert show(shown, GOOD) == []


@pytest.mark.parametrize(
    ("rule", "where", "wrong"),
    [
        ("color-contrast", "p", "<p style='color:#aaa;background:#fff'>pale</p>"),
        ("image-alt", "img", "<img src='data:,'>"),
        ("button-name", "#bare", "<button id=bare></button>"),
        ("label", "input", "<input>"),
        ("target-size", "#one", "<button id=one style='all:unset;font:8px/1 serif'>a</button>"
                                "<button id=two style='all:unset;font:8px/1 serif'>b</button>"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(shown, rule, where, wrong):
    found = show(shown, GOOD.replace("</main>", f"{wrong}</main>"))
    assert any(line.startswith(f"{rule} (") and f") at {where}: " in line for line in found), found


def test_colours_are_judged_in_the_scheme_that_is_shown(shown):
    dark = "<style>@media (prefers-color-scheme: dark) { body { color: #444; background: #222 } }</style>"
    shown.scheme("light")
    assert show(shown, GOOD + dark) == []
    shown.scheme("dark")
    assert any(line.startswith("color-contrast") for line in show(shown, GOOD + dark))


def test_a_page_that_is_left_meanwhile_is_not_started_yet(shown):
    shown.go("data:text/html,<title>one</title><script>setTimeout(() => location.replace('about:blank'), 300)</script>")
    shown.until("document.title == 'one'")
    assert shown.until("new Promise(done => setTimeout(() => done(location.href), 600))") == "about:blank"


def test_keys_reach_what_has_the_focus(shown):
    show(shown, GOOD + "<script>document.onkeydown = event => (window.seen ??= []).push(event.code)</script>")
    for key in browser.KEYS:
        shown.press(key)
    assert shown.js("seen") == list(browser.KEYS)
    shown.js("document.querySelector('button').onclick = () => (window.clicks = (window.clicks ?? 0) + 1)")
    shown.js("document.querySelector('button').focus()")
    shown.press("Enter"), shown.press("Space")
    assert shown.js("clicks") == 2
