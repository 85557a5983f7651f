"""The GPUs of this machine as nvidia-smi tells them; none where it is missing or does not answer in time."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections import defaultdict

ASK_S = 5.0  # a GPU that was asleep takes seconds to answer
STATUS_S = 0.8  # a table waits no longer


def _ask(query: str, timeout_s: float) -> list[list[str]]:
    """Returns the rows of `nvidia-smi --query-…`, each a list of stripped cells."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = asked.stdout.splitlines() if asked.returncode == 0 else []
    return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


@functools.cache
def count() -> int:
    """Returns how many GPUs there are."""
    return sum(row[0].isdigit() for row in _ask("gpu=index", ASK_S))


def memory_by_process() -> dict[int, dict[str, int]]:
    """Returns {pid: {GPU's index: MiB}} for every process that computes on a GPU."""
    index = {row[1]: row[0] for row in _ask("gpu=index,uuid", STATUS_S) if len(row) == 2}
    used: dict[int, dict[str, int]] = defaultdict(dict)
    for row in _ask("compute-apps=pid,gpu_uuid,used_memory", STATUS_S):
        if len(row) == 3 and row[0].isdigit() and row[2].isdigit():
            used[int(row[0])][index.get(row[1], "?")] = int(row[2])
    return dict(used)
