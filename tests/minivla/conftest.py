"""The course's fixtures: mini-VLA runs in its environment."""

from tests.ws_mdl.conftest import volume

__all__ = ["volume"]
