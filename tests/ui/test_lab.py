"""The page about the lab: which services answer, and that it starts nothing."""

from urllib.parse import urlsplit

import httpx
import pytest
from policies import GatedLoader, SeeingPolicy
from serving import nobody, serving

from tests import axe, browser

in_a_browser = [
    pytest.mark.outside,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the pages' browser tests"),
]


@pytest.fixture
def lab(serve_policy, link_to, stack):
    """A site over a policy that is ready, one that loads, and a service that is away."""
    from services.ui.app import create_app

    loader = GatedLoader(SeeingPolicy())
    stack.callback(loader.gate.set)
    services = {
        "openvla": serve_policy(SeeingPolicy(device="<b>cuda:0</b>")), "oracle": serve_policy(loader, wait=False),
        "reports": nobody(),
    }  # fmt: skip
    return stack.enter_context(serving(create_app(link_to(services["openvla"]), services=services)))


def test_every_service_is_told_with_what_to_type(lab):
    page = httpx.get(f"{lab}/lab").text
    for name, state, command in (
        ("openvla", "ready", "down"),
        ("oracle", "starting", "logs"),
        ("reports", "away", "up"),
    ):
        row = page.split(f'data-service="{name}"')[1].split("</tr>")[0]
        assert f'data-state="{state}"' in row and f"./lab {command} {name}" in row
    assert "&lt;b&gt;cuda:0&lt;/b&gt;" in page and "<b>cuda:0</b>" not in page


def test_nothing_of_it_starts_or_stops_anything(lab):
    for path in ("/lab", "/lab/state"):
        assert {httpx.request(method, lab + path).status_code for method in ("POST", "PUT", "DELETE")} == {405}
    assert "<form" not in httpx.get(f"{lab}/lab/state").text


@pytest.mark.parametrize("width", [pytest.param(400, marks=in_a_browser), pytest.param(1280, marks=in_a_browser)])
def test_it_is_for_everyone(lab, stack, width):
    shown = stack.enter_context(browser.Browser(width=width))
    shown.go(f"{lab}/lab")
    shown.until("document.querySelectorAll('tr[data-service]').length >= 3")
    assert axe.violations(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width
    assert shown.errors == [] and shown.complaints == []
    assert {urlsplit(each).netloc for each in shown.requests if each.startswith("http")} == {urlsplit(lab).netloc}
