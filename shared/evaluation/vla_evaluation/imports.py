"""The project's modules that a program consists of, read from import statements without running anything."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_SHARED = Path(__file__).resolve().parents[2]  # in the repository: `shared`, where a benchmark may have a package
_OWN = [path.parent.name for path in _SHARED.glob("*/[!v]*/__init__.py")] if _SHARED.name == "shared" else []
# Found and not imported: nothing of them is run. `services` are the repository's alone.
PACKAGES = {
    name: Path(spec.submodule_search_locations[0]).resolve()
    for name in ("services", "vla_common", "vla_contract", "vla_evaluation", *_OWN)
    if (spec := find_spec(name)) and spec.submodule_search_locations
}


def code_digest(entries: Iterable[str], without: Sequence[str] = ()) -> str:
    """Return 16 hex digits over the names and sources of all modules that the modules `entries` may import."""
    digest = hashlib.sha256()
    for module in sorted(closure(entries, without)):
        digest.update(module.encode() + b"\0" + source_of(module).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def closure(entries: Iterable[str], without: Sequence[str] = ()) -> set[str]:
    """Return `entries` and every module of the project that they import, directly or through others, but for the
    modules and packages `without`.

    Imports inside functions count, those under `if TYPE_CHECKING` do not. A name taken from a package that loads it
    on demand, as vla_contract does, counts as the module that it comes from.
    """
    modules, waiting = set(), [*entries]
    excluded = tuple(f"{name}." for name in without)
    while waiting:
        module = waiting.pop()
        if module not in modules and source_of(module) is not None and not f"{module}.".startswith(excluded):
            modules.add(module)
            waiting += [module.rpartition(".")[0], *_imported(module)]
    return modules


def source_of(module: str) -> Path | None:
    """Return the file of one of the project's modules, None for another name."""
    first, *rest = module.split(".")
    if first not in PACKAGES:
        return None
    path = PACKAGES[first].joinpath(*rest)
    candidates = (path / "__init__.py", path.with_name(path.name + ".py"))
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imported(module: str) -> list[str]:
    """Return the module names that a module's import statements may refer to."""
    names = []
    for node in _statements(ast.parse(source_of(module).read_bytes()), run=True):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            base = _absolute(module, node)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
            names += [home for alias in node.names if (home := _lazy(base).get(alias.name))]
    return names


@cache
def _lazy(package: str) -> dict[str, str]:
    """Return the modules of the names that a package only declares, under `if TYPE_CHECKING`."""
    source = source_of(package)
    if source is None or source.name != "__init__.py":
        return {}
    return {
        alias.asname or alias.name: _absolute(package, node)
        for node in _statements(ast.parse(source.read_bytes()), run=False)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module
    package = module if source_of(module).name == "__init__.py" else module.rpartition(".")[0]
    parents = package.split(".")
    return ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])


def _statements(tree: ast.AST, run: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield import statements: those that run, or those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for branch, runs in ((node.body, False), (node.orelse, True)):
                if runs == run:
                    yield from _statements(ast.Module(branch, []), True)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if run:
                yield node
        elif not isinstance(node, ast.expr):  # no expression contains a statement, and most nodes are in one
            yield from _statements(node, run)
