"""Settles an environment for an image: bytecode for every module, no tests, and nothing that differs between builds.

Dates are set to one fixed second: they survive an archive, numba's caches stay valid, and two builds agree in them too.
What has that date is settled already, in a layer below: it is left as it is, for a touched file would be copied up.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bytecode import bytecode

DATE_S = 1704067200  # 2024-01-01


def remove_tests(root: Path) -> int:
    """Removes the packages' own tests (packages called `tests` inside another one). Returns how many there were."""
    folders = [
        path
        for path in sorted(root.glob("lib/python3*/site-packages/*/**/tests"))
        if path.is_dir() and (path / "__init__.py").is_file()
    ]
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # one may lie inside another
    return len(folders)


def compile_module(path: str) -> bool:
    """Writes the bytecode of one module to its place. Returns whether the module could be compiled."""
    content = bytecode(Path(path).read_bytes(), path)
    if content is None:
        return False
    target = Path(importlib.util.cache_from_source(path, optimization=""))
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
    return True


def is_settled(path: str | Path) -> bool:
    """Returns whether a file, folder or link has the date of settled ones."""
    try:
        return os.lstat(path).st_mtime_ns == DATE_S * 10**9
    except FileNotFoundError:
        return False


def is_compiled(module: Path) -> bool:
    """Returns whether a module was settled together with its bytecode."""
    return is_settled(module) and is_settled(importlib.util.cache_from_source(str(module), optimization=""))


def compile_all(root: Path) -> int:
    """Writes bytecode for every module below `root` that is not settled. Returns how many there are."""
    modules = sorted(str(path) for path in root.rglob("*.py") if not path.is_symlink() and not is_compiled(path))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(pool.map(compile_module, modules, chunksize=64))


def set_date(path: str | Path) -> None:
    """Sets a file's date to DATE_S, unless it has it."""
    if not is_settled(path):
        os.utime(path, (DATE_S, DATE_S), follow_symlinks=False)


def set_dates(root: Path) -> None:
    """Sets the dates of everything below `root`, and of `root`."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            set_date(os.path.join(folder, name))
    set_date(root)


def settle(root: Path) -> None:
    """Compiles and dates what lies at `root`, and `root` itself."""
    print(f"{compile_all(root)} modules compiled below {root}")
    set_dates(root)


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    print(f"{remove_tests(environment)} packages of tests removed")
    settle(environment)
