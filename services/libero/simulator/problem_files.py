"""The task definition file for LIBERO: the task's own, or one written for this run."""

from __future__ import annotations

import os

from services.libero.simulator import runtime
from services.libero.simulator.suites import Task


def path_of(task: Task) -> str:
    """Return the path of the task's BDDL; a changed definition is written below the work directory first.

    Raises ValueError if the task's file is missing, RuntimeError before `runtime.configure`.
    """
    text = task.bddl()
    if text == task.written():
        return str(task.bddl_path)
    path = runtime.active().work_dir / "bddl" / f"{task.suite}-{task.index}.bddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)  # atomic: workers share the directory
    return str(path)
