"""How a command ends: with the programs' own endings.py, of which there is one, so that every program says the same.

The host tool has none of the environments' packages and imports nothing of theirs; this one file needs the
standard library only, and is loaded by its path.
"""

from __future__ import annotations

import importlib.util

from vlalab.host.paths import COMMON

_SPEC = importlib.util.spec_from_file_location("vlalab_endings", COMMON / "vla_common" / "endings.py")
assert _SPEC and _SPEC.loader
_module = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_module)

CLOSED_PIPE: int = _module.CLOSED_PIPE
INTERRUPTED: int = _module.INTERRUPTED
Ending = _module.Ending
ending = _module.ending
in_words = _module.in_words
run = _module.run
