"""Invoke's tasks, in groups. `./lab` alone shows them, `./lab TASK --help` one of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from invoke import Collection

LAB = Path(__file__).resolve().parent / "lab"
if Path(sys.argv[0]).name in ("invoke", "inv") and Path(sys.prefix).resolve() != LAB.parent / ".venv":
    # Invoke of pipx or the distribution lacks the lab's packages; the launcher has them.
    os.execv(LAB, [str(LAB), *sys.argv[1:]])

from vlalab.tasks import admin, data, evaluate, learn, machines, serve  # noqa: E402
from vlalab.tasks.flags import tasks_of  # noqa: E402

# The order is the one of the list: what a day's work begins with comes first.
GROUPS = {name: tasks_of(module) for name, module in (
    ("evaluate", evaluate), ("data", data), ("serve", serve), ("learn", learn), ("admin", admin),
    ("machines", machines),
)}  # fmt: skip
namespace = Collection(*(task for group in GROUPS.values() for task in group))
