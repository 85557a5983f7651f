"""`./lab` at a terminal, with a volume and a state of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.screen import Screen
from vlalab.environments import venvs
from vlalab.host import paths


class Terminal:
    """Starts `./lab WORDS` on screens that share a volume; the local runtime, where the task has one."""

    def __init__(self, directory: Path) -> None:
        self.volume = directory / "volume"
        self.variables = {
            "VLALAB_VOLUME": str(self.volume),
            "VLALAB_STATE": str(directory / "state"),
            "VLALAB_TOKEN": None,
            "DOCKER_HOST": "unix:///nonexistent",  # what is here and now on an engine changes nothing on the screen
        }

    def __call__(self, *words: str, columns: int = 80, rows: int = 24, **variables: str | None) -> Screen:
        return Screen(
            [paths.ROOT / "lab", *words], columns=columns, rows=rows, cwd=paths.ROOT,
            variables={**self.variables, **variables},
        )  # fmt: skip

    def done(self, *words: str, code: int = 0, **options) -> Screen:
        """Returns the screen of a task that has ended with that code."""
        with self(*words, **options) as screen:
            found = screen.wait()
            assert found == code, f"./lab {' '.join(words)} ended with {found}:\n{screen.transcript}"
        return screen


@pytest.fixture
def terminal(tmp_path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture(scope="module")
def shared_terminal(tmp_path_factory) -> Terminal:
    """One for the tests of a module that look at what the first of them made."""
    return Terminal(tmp_path_factory.mktemp("terminal"))


@pytest.fixture(scope="session")
def needs_course() -> None:
    """Skips where the course's environment, of 5.8 GB, is not made."""
    if not venvs.get("ws_mdl", paths.ROOT).is_ready():
        pytest.skip("environment 'ws_mdl' is not made: ./lab env ws_mdl")
