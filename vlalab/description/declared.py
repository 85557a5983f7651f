"""What files of services and benchmarks declare, read without running them: their packages are not the host tool's."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vlalab.host import paths


@dataclass(frozen=True)
class Field:
    """A field of a configuration dataclass: its type as it is written, default, and the comment beside it."""

    name: str
    type: str
    default: object
    comment: str

    @property
    def choices(self) -> tuple[object, ...]:
        """The words it may be, where its type is a Literal or None; else nothing."""
        node = ast.parse(self.type.removesuffix(" | None"), mode="eval").body
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            return tuple(ast.literal_eval(node.slice)) if isinstance(node.slice, ast.Tuple) else (node.slice.value,)
        return ()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def fields(path: Path, class_name: str) -> dict[str, Field]:
    """Returns the fields of a dataclass in a file, by name, in their order; first those of its bases."""
    found: dict[str, Field] = {}
    for file, node in _lineage(path, class_name):
        found |= _own_fields(file, node, found)
    return found


def files(path: Path, class_name: str) -> list[Path]:
    """Returns the files that a dataclass and the dataclasses below it stand in, its own last."""
    return [file for file, _ in _lineage(path, class_name)]


def _own_fields(path: Path, node: ast.ClassDef, inherited: dict[str, Field]) -> dict[str, Field]:
    lines, found = path.read_text(encoding="utf-8").splitlines(), {}
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            name = one.target.id
            comment = lines[one.end_lineno - 1][one.end_col_offset :].partition("#")[2].strip()
            if not comment and name in inherited:  # another default, the same meaning
                comment = inherited[name].comment
            default = ast.literal_eval(one.value) if one.value else None
            found[name] = Field(name, ast.unparse(one.annotation), default, comment)
    return found


def _lineage(path: Path, class_name: str) -> list[tuple[Path, ast.ClassDef]]:
    """Returns a class with its file, and before it the dataclasses of this repository that it is made from."""
    node = next(one for one in _tree(path).body if isinstance(one, ast.ClassDef) and one.name == class_name)
    below = [one for base in node.bases for one in _base(path, ast.unparse(base))]
    return [one for one in below if any("dataclass" in ast.unparse(mark) for mark in one[1].decorator_list)] + [
        (path, node)
    ]


def _base(path: Path, name: str) -> list[tuple[Path, ast.ClassDef]]:
    """Returns the lineage of a class that a file imports from a module of this repository; nothing of others."""
    for one in _tree(path).body:
        if isinstance(one, ast.ImportFrom) and name in [alias.asname or alias.name for alias in one.names]:
            file = paths.ROOT.joinpath(*one.module.split(".")).with_suffix(".py")
            return _lineage(file, name) if file.is_file() else []
    return []


def constant(path: Path, name: str) -> object:
    """Returns the value of a module's constant. Raises KeyError where there is none of literals."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise KeyError(f"{path} defines no constant {name}")


def version() -> str:
    """Return the version of vla-lab, which the contract's package declares for the whole repository."""
    return str(constant(paths.ROOT / "shared/contract/vla_contract/__init__.py", "__version__"))


def summary(path: Path) -> str:
    """Returns the first line of a module's docstring."""
    return (ast.get_docstring(_tree(path)) or "").partition("\n")[0]
