"""A library imported without modules that it loads for what nobody here calls: a quarter of a command's start."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

# Invoke's: a context for tests of tasks, whose base class loads asyncio; and its own version, by a parser of e-mail.
INVOKE = {"unittest.mock": {"Mock": object}, "importlib.metadata": {"version": lambda name: ""}}


@contextmanager
def without(unused: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    """Lets imports in the block find, instead of those modules, one with these names; afterwards they are as before.

    A module that is loaded already stays what it is, for it costs nothing any more.
    """
    absent = [name for name in unused if name not in sys.modules]
    sys.modules.update({name: _module(name, unused[name]) for name in absent})
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def _module(name: str, members: Mapping[str, object]) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module
