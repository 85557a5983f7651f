"""Gradio, imported without the interface files that it writes for editors.

At its import Gradio parses the source of each of its 81 components and renders a `.pyi` for it, to be written beside
that: half the processor time of the import, for files that no program reads and no image lets it write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

MODULE, WRITER = "gradio.component_meta", "create_or_modify_pyi"


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        assert hasattr(module, WRITER), f"this Gradio has no {MODULE}.{WRITER}"
        setattr(module, WRITER, lambda *_: None)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != MODULE:
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None:
            found.loader = _Loader(found.name, found.origin)
        return found


@contextmanager
def without_interface_files() -> Iterator[None]:
    """While it is entered, an import of Gradio writes none, nor does any component that is made later."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
