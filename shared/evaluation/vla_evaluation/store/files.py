"""Files that are whole or absent, also after a power cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vla_evaluation.coordinator.remote import RemoteStore
    from vla_evaluation.store.records import Lease
    from vla_evaluation.store.runstore import RunStore

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def sync(path: Path) -> None:
    """Forces a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(draft: Path, final: Path) -> None:
    """Gives a written and synced draft its final name, for good: without the folder a power cut undoes the rename."""
    os.replace(draft, final)
    sync(final.parent)


def name_once(draft: Path, final: Path) -> None:
    """Gives a draft its final name, for good. FileExistsError, whoever was first, where that name is taken."""
    sync(draft)
    try:
        os.link(draft, final)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if final.exists():  # a file system without links: the run's lock keeps others away between here and there
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from error
        os.rename(draft, final)
    sync(final.parent)


def save_episode(
    store: RunStore | RemoteStore,
    folder: Path,
    lease: Lease,
    result: Mapping,
    arrays: Mapping[str, np.ndarray],
    now: Callable[[], float],
    **finishing: object,
) -> bool:
    """Stores a leased episode's result and a file of its arrays in a run's folder, both or neither; False if the lease
    was lost. `finishing` are further settings of `RunStore.finish`.
    """
    name = f"{lease.task:02d}-{lease.episode:02d}.npz"
    final, partial = folder / "episodes" / name, folder / "episodes" / f".{name}.{lease.token}"
    try:
        with open(partial, "wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        told = {**result, "recording": f"episodes/{name}"}
        return store.finish_with(lease, told, now(), partial, final, **finishing)
    finally:
        partial.unlink(missing_ok=True)
