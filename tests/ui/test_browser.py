"""The page in a real browser: upload, type, click, read; and whom the browser talks to meanwhile."""

from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from policies import GatedLoader, SeeingPolicy

from tests import browser

pytestmark = [
    pytest.mark.outside,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the page's browser tests"),
]
VALUES = "[...document.querySelectorAll('#numbers .vl-value')].map(cell => parseFloat(cell.innerText))"


@pytest.fixture
def open_page(stack):
    """Returns a function that opens an address in a browser of its own."""

    def make(url, **size):
        shown = stack.enter_context(browser.Browser(**size))
        shown.go(url)
        return shown

    return make


def fill_and_ask(shown, picture, instruction):
    """Uploads, types, clicks; returns the seven numbers that the page then shows."""
    shown.until("!!document.querySelector('#policy .vl-good')")
    shown.upload("#picture input[type=file]", picture)
    shown.until("!!document.querySelector('#picture img')")
    shown.type("#instruction textarea, #instruction input", instruction)
    shown.until("!document.querySelector('#ask').disabled")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    return shown.js(VALUES)


def test_upload_type_click_and_read_the_seven_numbers(serve_policy, serve_page, open_page, picture):
    policy = SeeingPolicy(suites=("libero_goal",), details={"image_size": "224"})
    url = serve_page(serve_policy(policy))
    shown = open_page(url)
    values = fill_and_ask(shown, picture, "put the bowl on the plate")
    asked = policy.asked[-1]
    sent = asked.images["agentview"]
    assert sent.shape == (224, 224, 3) and asked.unnorm_key == "libero_goal"
    assert asked.instruction == "put the bowl on the plate"
    assert np.allclose(values, [*sent.mean(axis=(0, 1)) / 255, 0.224, 0.224, 0.025, 0.75], atol=1e-4)
    assert shown.errors == []


def test_the_browser_talks_to_the_page_alone(serve_policy, serve_page, open_page, picture):
    """No font, script, picture or report goes to or comes from anywhere else."""
    url = serve_page(serve_policy(SeeingPolicy(suites=("libero_goal",))))
    shown = open_page(url)
    fill_and_ask(shown, picture, "put the bowl on the plate")
    hosts = {urlsplit(address).netloc for address in shown.requests if not address.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(url).netloc} and len(shown.requests) > 10


def test_an_example_fills_the_form(serve_policy, serve_page, open_page):
    policy = SeeingPolicy(suites=("libero_goal",))
    shown = open_page(serve_page(serve_policy(policy)))
    shown.until("!!document.querySelector('#policy .vl-good')")
    shown.click("#examples button")
    shown.until("document.querySelector('#instruction textarea, #instruction input').value.length > 5")
    shown.until("!!document.querySelector('#picture img')")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    assert policy.asked[-1].instruction.startswith("pick up the ")
    assert policy.asked[-1].images["agentview"].shape == (256, 256, 3)


def test_the_page_opens_by_itself_once_the_policy_is_loaded(serve_policy, serve_page, open_page):
    loader = GatedLoader(SeeingPolicy())
    shown = open_page(serve_page(serve_policy(loader, wait=False)))
    shown.until("document.querySelector('#policy')?.innerText.includes('still loading')")
    assert shown.js("document.querySelector('#ask').disabled")
    loader.gate.set()
    shown.until("document.querySelector('#policy').innerText.includes('seeing is ready')")
    shown.until("!document.querySelector('#ask').disabled")
    shown.until("!!document.querySelector('#unnorm-key')")


def test_an_error_is_a_card_with_words(serve_policy, serve_page, open_page, picture, tmp_path):
    shown = open_page(serve_page(serve_policy(SeeingPolicy())))
    shown.until("!document.querySelector('#ask').disabled")
    shown.click("#ask")
    shown.until("document.querySelector('#numbers [role=alert]')?.innerText.includes('unnorm key')")
    assert "Traceback" not in shown.js("document.body.innerText")


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_at_the_side(width, serve_policy, serve_page, open_page, picture):
    shown = open_page(serve_page(serve_policy(SeeingPolicy(suites=("libero_goal",), horizon=8))), width=width)
    fill_and_ask(shown, picture, "put the bowl on the plate")
    assert shown.js("document.documentElement.scrollWidth") <= width
    right = "Math.max(...[...document.querySelectorAll('.vl-numbers')].map(t => t.getBoundingClientRect().right))"
    assert shown.js(right) <= width


def test_the_password_opens_the_page(serve_policy, serve_page, open_page):
    shown = open_page(serve_page(serve_policy(SeeingPolicy()), password="open-sesame"))
    shown.until("document.body.innerText.includes('VLALAB_TOKEN')")
    assert not shown.js("!!document.querySelector('#ask')")
    shown.until("document.querySelectorAll('input').length >= 2")
    shown.type("input:not([type=password])", "student")
    shown.type("input[type=password]", "open-sesame")
    shown.js("[...document.querySelectorAll('button')].find(b => /log ?in/i.test(b.innerText)).click()")
    shown.until("!!document.querySelector('#policy .vl-good')")


def test_pictures_of_the_examples_are_small_and_what_libero_shows():
    from services.ui import page

    for path, instruction in page.examples():
        assert Image.open(path).size == (256, 256) and 5 < len(instruction) < 100
