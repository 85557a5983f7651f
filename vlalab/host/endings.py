"""How a command ends: with the programs' own endings.py, of which there is one, so that every program says the same.

The host tool has none of the environments' packages; that module needs the standard library only.
"""

from __future__ import annotations

from vlalab.host import borrowed

_module = borrowed.module("vla_common.endings")

CONTROL = _module.CONTROL
console = _module.console
plain = _module.plain
unfiltered = _module.unfiltered
CLOSED_PIPE: int = _module.CLOSED_PIPE
INTERRUPTED: int = _module.INTERRUPTED
Ending = _module.Ending
ending = _module.ending
in_words = _module.in_words
run = _module.run
