"""A class needs root, which gives each student a uid of their own."""

import os

import pytest

from tests.classroom.room import ClassDirectory, unmount


def pytest_collection_modifyitems(items):
    if os.geteuid() != 0:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="a class with the local runtime needs root"))


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """A class's directory; homes that a test mounted are unmounted at its end."""
    room = ClassDirectory(tmp_path_factory.mktemp("volume"))
    yield room
    unmount(room.path)
