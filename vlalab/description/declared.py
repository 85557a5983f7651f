"""What files of services and benchmarks declare, read without running them: their packages are not the host tool's."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path


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
    """Returns the fields of a dataclass in a file, by name, in their order."""
    lines = path.read_text(encoding="utf-8").splitlines()
    body = next(node for node in _tree(path).body if isinstance(node, ast.ClassDef) and node.name == class_name).body
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comment = lines[node.end_lineno - 1][node.end_col_offset :].partition("#")[2].strip()
            default = ast.literal_eval(node.value) if node.value else None
            found[node.target.id] = Field(node.target.id, ast.unparse(node.annotation), default, comment)
    return found


def constant(path: Path, name: str) -> object:
    """Returns the value of a module's constant. Raises KeyError where there is none of literals."""
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise KeyError(f"{path} defines no constant {name}")


def summary(path: Path) -> str:
    """Returns the first line of a module's docstring."""
    return (ast.get_docstring(_tree(path)) or "").partition("\n")[0]
