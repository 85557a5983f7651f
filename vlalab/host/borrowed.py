"""Files of the programs' own that the host tool uses too: loaded by their path, since it has none of their packages.

Such a file needs the standard library only.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

from vlalab.host.paths import ROOT


def module(path: str) -> ModuleType:
    """Returns the module in a file of the repository."""
    spec = importlib.util.spec_from_file_location(f"vlalab_{path.rpartition('/')[2].removesuffix('.py')}", ROOT / path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
