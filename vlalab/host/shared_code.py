"""Code that the host tool shares with the lab's programs. The host tool has none of their packages, so this code uses
only the standard library.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from vlalab.host.paths import ROOT, SHARED

sys.path.extend(path for path in map(str, (ROOT, *(ROOT / directory for directory in SHARED))) if path not in sys.path)

from vla_common import entrypoint as entrypoint
from vla_common.options import Interval as Interval
from vla_common.options import Option as Option
from vla_common.options import option as option
from vla_common.options import options as options_of


def module(name: str) -> ModuleType:
    """Import a module of the programs."""
    return importlib.import_module(name)


def load(location: str) -> Any:
    """Return a member of a module. location: MODULE:NAME."""
    name, _, member = location.partition(":")
    return getattr(module(name), member)


def options(location: str) -> dict[str, Option]:
    """Return the options of a program's dataclass, by field. location: MODULE:CLASS."""
    return options_of(load(location))


def version() -> str:
    """Return the version of vla-lab, which the contract's package declares for the whole repository."""
    return str(load("vla_contract:__version__"))
