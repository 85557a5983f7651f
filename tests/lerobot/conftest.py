"""Tiny checkpoints of every type that needs no download, made once per run."""

from pathlib import Path

import pytest

from services.lerobot import tiny


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Return a function: type (and settings) → directory of a tiny checkpoint."""
    made: dict[str, Path] = {}

    def directory(kind: str, **settings) -> Path:
        name = kind + "".join(f"-{key}" for key in settings)
        if name not in made:
            made[name] = tiny.write(tmp_path_factory.mktemp("checkpoints") / name, kind, **settings)
        return made[name]

    return directory
