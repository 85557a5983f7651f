"""Invoke's tasks, in groups. `./lab` alone shows them, `./lab TASK --help` one of them."""

from __future__ import annotations

from invoke import Collection

from vlalab.tasks import admin, data, evaluate, learn, machines, serve
from vlalab.tasks.flags import tasks_of

# The order is the one of the list: what a day's work begins with comes first.
GROUPS = {name: tasks_of(module) for name, module in (
    ("evaluate", evaluate), ("data", data), ("serve", serve), ("learn", learn), ("admin", admin),
    ("machines", machines),
)}  # fmt: skip
namespace = Collection(*(task for group in GROUPS.values() for task in group))
