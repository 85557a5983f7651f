"""What axe-core finds wrong with a page: breaches of the Web Content Accessibility Guidelines (WCAG) 2, A and AA."""

import json
from importlib.resources import files

import pytest

from tests import browser
from tests.browser import Browser

NEEDED = [  # marks of a test that looks at a page
    pytest.mark.outside,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the browser tests"),
]
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")  # the last holds the size of what a finger hits


def in_a_browser(test, *marks):
    """Marks a test that looks at a page, also with `marks`."""
    for mark in (*NEEDED, *marks):
        test = mark(test)
    return test


def violations(shown: Browser, within: str = "html") -> list[str]:
    """Returns one sentence per element that breaches a rule, so that `== []` says by itself what is wrong.

    within: a CSS selector; what lies outside of it is not judged. What is hidden is not either: open it first.
    """
    if not shown.js("!!window.axe"):
        shown.js(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found = shown.js(f"axe.run({json.dumps(within)}, {json.dumps(options)}).then(result => result.violations)")
    return [_sentence(rule, node) for rule in found for node in rule["nodes"]]


def _sentence(rule: dict, node: dict) -> str:
    """Returns which rule, where, and what should be otherwise."""
    wrong = [check["message"] for check in (*node["any"], *node["all"], *node["none"])]
    return f"{rule['id']} ({node['impact']}) at {' '.join(map(str, node['target']))}: {'; '.join(wrong)}"
