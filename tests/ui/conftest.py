"""Policies, pictures, and the page over them, each really served on a loopback port."""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE, ROOT, *(ROOT / "shared" / name for name in ("common", "contract", "evaluation"))):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
_uploads = tempfile.TemporaryDirectory(prefix="vlalab-ui-tests-")
# as services.ui's main sets them, before Gradio is imported
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=_uploads.name)


@pytest.fixture
def stack():
    """What is entered here ends with the test."""
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def serve_policy(stack):
    """Returns a function that serves a policy and gives its address."""
    from tests.running import running

    return lambda policy, **settings: stack.enter_context(running(policy, **settings)).url


@pytest.fixture
def link_to(stack):
    """Returns a function that makes the page's link to a policy's address."""
    from services.ui.ask.link import PolicyLink

    def make(url, **settings):
        link = PolicyLink(url, **settings)
        stack.callback(link.close)
        return link

    return make


@pytest.fixture
def serve_page(stack, link_to):
    """Returns a function that serves the site over a policy's address and gives that of the page which asks it."""
    from serving import serving

    from services.ui.app import create_app

    def make(policy_url, password=None, others=None, **settings):
        links = {name: link_to(url, **settings) for name, url in (others or {}).items()}
        app = create_app(link_to(policy_url, **settings), password, others=links)
        return f"{stack.enter_context(serving(app))}/ask"

    return make


@pytest.fixture
def small_disk(stack, tmp_path) -> Path:
    """A file system of 1 MB, this user's alone, where this machine lets us mount one."""
    from tests.mounts import small

    folder = tmp_path / "disk"
    folder.mkdir()
    stack.enter_context(small(folder))
    return folder


@pytest.fixture(scope="session")
def picture(tmp_path_factory) -> Path:
    """A photograph-like PNG of 320×240."""
    from PIL import Image

    ramp = np.mgrid[0:240, 0:320].sum(axis=0)[..., None] * np.array([1, 2, 3])
    path = tmp_path_factory.mktemp("pictures") / "table.png"
    Image.fromarray((ramp % 256).astype(np.uint8)).save(path)
    return path
