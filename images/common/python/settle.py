"""Settles an environment for an image: bytecode for every module, no tests, and nothing that differs between builds.

Dates are set to one fixed second: they survive an archive, numba's caches stay valid, and two builds agree in them too.
What has that date is settled already, in a layer below: it is left as it is, for a touched file would be copied up.

A folder named besides keeps bytecode from one build to the next: half of what seven environments import is the same in
another one, and a lock that changes leaves most modules as they were. Builds at the same time go through their modules
in an order of their own each, so that they find what the other one has made instead of making the same.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import random
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bytecode import bytecode

DATE_S = 1704067200  # 2024-01-01
COMPILER = sys.version.encode() + Path(bytecode.__code__.co_filename).read_bytes()  # another one's is not taken


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


def kept_bytecode(source: bytes, path: str, folder: Path) -> bytes | None:
    """Returns the bytecode of a module as `folder` keeps it, made and kept where it does not; None as bytecode().

    A file there begins with the sha256 of what follows: what a crash or a full disk left of one is made again.
    """
    place = folder / hashlib.sha256(b"\0".join((COMPILER, path.encode(), source))).hexdigest()
    kept = place.read_bytes() if place.exists() else b""
    if kept and hashlib.sha256(kept[32:]).digest() == kept[:32]:
        return kept[32:]
    content = bytecode(source, path)
    if content is not None:
        partial = place.with_suffix(f".{os.urandom(8).hex()}")  # a build beside may be at the same module
        partial.write_bytes(hashlib.sha256(content).digest() + content)
        partial.replace(place)
    return content


def compile_module(path: str, folder: Path | None = None) -> bool:
    """Writes the bytecode of one module to its place. Returns whether the module could be compiled."""
    source = Path(path).read_bytes()
    content = kept_bytecode(source, path, folder) if folder else bytecode(source, path)
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


def compile_all(root: Path, folder: Path | None = None) -> int:
    """Writes bytecode for every module below `root` that is not settled. Returns how many there are."""
    modules = [str(path) for path in root.rglob("*.py") if not path.is_symlink() and not is_compiled(path)]
    random.shuffle(modules)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(pool.map(functools.partial(compile_module, folder=folder), modules, chunksize=64))


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


def settle(root: Path, folder: Path | None = None) -> None:
    """Compiles and dates what lies at `root`, and `root` itself; `folder` keeps bytecode."""
    print(f"{compile_all(root, folder)} modules compiled below {root}")
    set_dates(root)


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    print(f"{remove_tests(environment)} packages of tests removed")
    settle(environment, *map(Path, sys.argv[2:]))
