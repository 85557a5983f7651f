"""Settles an environment for an image: bytecode for every module, and nothing that differs from build to build.

Python's own `compileall` writes bytecode that depends on what else the compiling process has loaded (marshal notes which
objects are shared), so each module is marshalled in the older format that does not note it. The bytecode is of the
"unchecked" kind: the image is read-only, so no start looks up a source's date. Dates are set to one fixed second, so that
they survive an archive and two builds are equal in them too.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

DATE_S = 1704067200  # 2024-01-01; a zip archive, which some packages write from files, has no dates before 1980
PLAIN_MARSHAL = 2  # the newest version without references between objects
UNCHECKED = (0b01).to_bytes(4, "little")  # PEP 552: hash-based, not compared with the source


def bytecode(source: bytes, path: str) -> bytes | None:
    """Returns the content of the .pyc file for a module at `path`, None where the source is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):  # templates and test data, not modules
        return None
    header = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source)
    return header + marshal.dumps(code, PLAIN_MARSHAL)


def compile_module(path: str) -> bool:
    """Writes the bytecode of one module to its place. Returns whether the module could be compiled."""
    content = bytecode(Path(path).read_bytes(), path)
    if content is None:
        return False
    target = Path(importlib.util.cache_from_source(path, optimization=""))
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(content)
    return True


def compile_all(root: Path) -> int:
    """Writes bytecode for every module below `root`. Returns how many there are."""
    modules = sorted(str(path) for path in root.rglob("*.py") if not path.is_symlink())
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return sum(pool.map(compile_module, modules, chunksize=64))


def set_dates(root: Path) -> None:
    """Sets the dates of everything below `root` to DATE_S."""
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            os.utime(os.path.join(folder, name), (DATE_S, DATE_S), follow_symlinks=False)
    os.utime(root, (DATE_S, DATE_S))


def main() -> None:
    root = Path(sys.argv[1])
    print(f"{compile_all(root)} modules compiled below {root}")
    set_dates(root)


if __name__ == "__main__":
    main()
