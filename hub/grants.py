"""GPU grants: one notebook gets a GPU for some hours and some GB. Without one, a notebook sees no GPU.

A kernel limits torch to its GB (`vla_notebooks.kernel`); this program, a service of the hub, restarts notebooks that
use more, or longer.
"""

import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from hub import limits, store
from vlalab.host import nvidia_smi

FILE = "grants.json"
CONTEXT_GB = 0.5  # of each CUDA process, before its first tensor
WATCH_S, ASK_S = 15.0, 30.0
TOLERANCE = 1.1  # of the granted GB and context; then the processes end


@dataclass(frozen=True)
class Grant:
    """One GPU by its number, that many GB of it, until a time in seconds since the epoch."""

    gpu: int
    gb: float
    until: float


def active() -> dict[str, Grant]:
    """Return the grants that are not over, by student."""
    entries = {name: Grant(**entry) for name, entry in store.read(FILE).items()}
    return {name: grant for name, grant in entries.items() if grant.until > time.time()}


def variables(name: str) -> dict[str, str]:
    """Return the variables of a notebook with a grant; none without."""
    if not (grant := active().get(name)):
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(grant.gpu), "VLALAB_GPU_GB": f"{grant.gb:g}"}


def students_use() -> list[tuple[str, str, float]]:
    """Return (student, GPU's uuid, GB) of the students' processes on GPUs."""
    owners: dict[int | None, str] = {account.uid: name for name, account in store.accounts().items()}
    rows = nvidia_smi.query("compute-apps=pid,gpu_uuid,used_memory", ASK_S)
    found = [(owners.get(limits.uid_of(int(pid))), uuid, float(used) * 2**20 / 1e9) for pid, uuid, used in rows]
    return [(name, uuid, gb) for name, uuid, gb in found if name]


def grant(name: str, hours: float, gb: float, gpu: int) -> Grant:
    """Store a grant. Raises ValueError if the card has no room beside what others were granted and services use now."""
    store.require(name)
    cards = {int(index): (uuid, float(total), float(used)) for index, uuid, total, used in nvidia_smi.query(
        "gpu=index,uuid,memory.total,memory.used", ASK_S)}  # fmt: skip
    if gpu not in cards:
        raise ValueError(f"GPU {gpu} does not exist; this machine has {', '.join(map(str, cards)) or 'none'}")
    uuid, total, used = cards[gpu]
    students_gb = sum(gb for _, of, gb in students_use() if of == uuid)
    services_gb = used * 2**20 / 1e9 - students_gb
    granted = {other: entry.gb + CONTEXT_GB for other, entry in active().items() if entry.gpu == gpu and other != name}
    free = total * 2**20 / 1e9 - services_gb - sum(granted.values())
    if gb + CONTEXT_GB > free:
        others = ", ".join(f"{other} was granted {size:.1f}" for other, size in granted.items()) or "nothing is granted"
        raise ValueError(
            f"GPU {gpu} has room for {max(0.0, free - CONTEXT_GB):.1f} GB, not {gb:g}: services use {services_gb:.1f}, "
            f"{others}; each notebook needs {CONTEXT_GB:g} GB more than its tensors"
        )
    made = Grant(gpu, gb, time.time() + 3600 * hours)
    with store.editing(FILE) as entries:
        entries[name] = asdict(made)
    return made


def revoke(name: str) -> bool:
    """Remove a grant; return whether there was one."""
    with store.editing(FILE) as entries:
        return entries.pop(name, None) is not None


def check_once(restart: Any) -> None:
    """Restart, by `restart(name)`, notebooks whose grant is over, and those that use more than they were granted."""
    current = active()
    for name in set(store.read(FILE)) - set(current):
        revoke(name)
        print(f"{name}: the GPU grant is over; restarting the notebook", flush=True)
        restart(name)
    use = students_use() if current else []
    for name in {name for name, *_ in use}:
        gb = sum(gb for student, _, gb in use if student == name)
        allowed = (current[name].gb + CONTEXT_GB) * TOLERANCE if name in current else 0.0
        if gb > allowed:
            print(f"{name}: {gb:.1f} GB of GPU memory, allowed {allowed:.1f}; restarting the notebook", flush=True)
            restart(name)


if __name__ == "__main__":  # the hub's service `gpu-watch`
    from hub import admin

    while True:
        time.sleep(WATCH_S)
        try:
            check_once(admin.restart)
        except (RuntimeError, ValueError, OSError) as error:
            print(f"GPU grants: {error}", file=sys.stderr, flush=True)
