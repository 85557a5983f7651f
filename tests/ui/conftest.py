"""Policies, pictures, and the page over them, each really served on a loopback port."""

import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for directory in (HERE, ROOT, *(ROOT / "shared" / name for name in ("common", "contract", "evaluation"))):
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


@pytest.fixture
def stack():
    """What is entered here ends with the test."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def serve_policy(stack):
    """Return a function that serves a policy and gives its address."""
    from tests.running import running

    return lambda policy, **settings: stack.enter_context(running(policy, **settings)).url


@pytest.fixture
def link_to(stack):
    """Return a function that makes the page's link to a policy's address."""
    from services.ui.ask.link import PolicyLink

    def make(url, **settings):
        link = PolicyLink(url, **settings)
        stack.callback(link.close)
        return link

    return make


@pytest.fixture
def serve_page(stack, link_to):
    """Return a function that serves the site over a policy's address and gives that of the page which asks it."""
    from serving import serving

    from services.ui.app import create_app

    def make(policy_url, password=None, others=None, **settings):
        links = {name: link_to(url, **settings) for name, url in (others or {}).items()}
        app = create_app(link_to(policy_url, **settings), password, other_policies=links)
        return f"{stack.enter_context(serving(app))}/ask"

    return make


@pytest.fixture(scope="session")
def place():
    """A page over an address of its own, where policies take turns; building it takes longer than most questions."""
    from serving import held_port, serving

    from services.ui.app import create_app
    from services.ui.ask.link import PolicyLink

    with ExitStack() as entered:
        port = entered.enter_context(held_port())
        link = entered.enter_context(closing(PolicyLink(f"http://127.0.0.1:{port}")))
        yield f"{entered.enter_context(serving(create_app(link)))}/ask", port, link


@pytest.fixture
def page_over(place, stack):
    """Return a function that serves a policy, or none, where the one page looks for it, and gives its address."""
    from services.ui.ask.link import PolicyLink
    from tests.running import running

    url, port, link = place

    def make(policy=None, **settings):
        if policy is not None:
            stack.enter_context(running(policy, port=port, **settings))
        with closing(PolicyLink(link.url)) as fresh:
            end = time.monotonic() + 30
            while link.status() != fresh.status():  # it keeps what the one before said for a second
                assert time.monotonic() < end, "the page does not see the policy"
                time.sleep(0.05)
        return url

    return make


@pytest.fixture(scope="session")
def tabs():
    """A browser for all tests that need no more than tabs of their own in it."""
    from tabs import Tabs

    with Tabs() as opened:
        yield opened


@pytest.fixture
def open_page(tabs, stack):
    """Return a function that opens an address in a new tab; it ends with the test."""

    def make(url="about:blank", **size):
        shown = stack.enter_context(tabs.entered(**size))
        shown.go(url)
        return shown

    return make


@pytest.fixture
def small_disk(stack, tmp_path) -> Path:
    """A file system of 1 MB, this user's alone, where this machine lets us mount one."""
    from tests.mounts import small

    directory = tmp_path / "disk"
    directory.mkdir()
    stack.enter_context(small(directory))
    return directory


@pytest.fixture(scope="session")
def picture(tmp_path_factory) -> Path:
    """A photograph-like PNG of 320×240."""
    from PIL import Image

    ramp = np.mgrid[0:240, 0:320].sum(axis=0)[..., None] * np.array([1, 2, 3])
    path = tmp_path_factory.mktemp("pictures") / "table.png"
    Image.fromarray((ramp % 256).astype(np.uint8)).save(path)
    return path
