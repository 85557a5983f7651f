"""axe-core in the browser: it sees what is wrong with a page, and nothing in one that is in order."""

import pytest

from tests import axe

pytestmark = axe.NEEDED
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
