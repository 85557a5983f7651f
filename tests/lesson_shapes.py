"""Runs a lesson and holds the shapes that stand at the end of its lines against the tensors that are there."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

COMMENT = re.compile(r"#((?: \([^()]*\))+)(?:: .*)?$")  # one shape, or one for each value of a pair; then perhaps words
Said = tuple[tuple[str, ...], ...]


class Shapes:
    """What a lesson's lines say, and what was found while it ran.

    sizes: name -> number that holds in all of the lesson. Any other name means one number within a call.
    """

    def __init__(self, lesson: ModuleType, sizes: Mapping[str, int]) -> None:
        self.path = lesson.__file__
        self.sizes = sizes
        self.lines = said(Path(lesson.__file__).read_text())
        self.seen: set[int] = set()
        self.wrong: list[str] = []

    def run(self, call: Callable[[], object]) -> None:
        """Calls, and looks at every line of the lesson that a shape stands behind."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != self.path:
            return None
        names: dict[str, int] = dict(self.sizes)
        last: int | None = None

        def local(frame: FrameType, event: str, value: object) -> Callable[..., Any]:
            nonlocal last
            if event == "return":
                self._look(frame.f_lineno, frame, names, value)
            elif event == "line":
                if last is not None:
                    self._look(last, frame, names)
                last = frame.f_lineno
            return local

        return local

    def _look(self, line: int, frame: FrameType, names: dict[str, int], returned: object = None) -> None:
        target, shapes = self.lines.get(line, (None, ()))
        if not shapes or (target is None) != (returned is not None):
            return
        value = returned if target is None else frame.f_locals.get(target)
        self.seen.add(line)
        values = value if len(shapes) > 1 else (value,)
        for one, shape in zip(values, shapes, strict=True):
            sizes = tuple(getattr(one, "shape", "no tensor"))
            if len(sizes) != len(shape) or not all(fits(n, s, names) for n, s in zip(shape, sizes, strict=True)):
                self.wrong.append(f"line {line} says ({', '.join(shape)}), there is {sizes}")


def fits(name: str, size: int, names: dict[str, int]) -> bool:
    """Returns whether a size is what its name says; a name that is met for the first time is bound to it."""
    if re.fullmatch(r"[a-z_]\w*", name) and name not in names:
        names[name] = size
    return eval(name, {}, names) == size  # a lesson's own comment: "d_model / 2"


def said(source: str) -> dict[int, tuple[str | None, Said]]:
    """Returns line -> the name that it gives a value to (None where it returns) and the shapes behind it."""
    found = {}
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.Return | ast.AugAssign):
            match = COMMENT.search(lines[node.end_lineno - 1])
            if match:
                shapes = tuple(_names(text) for text in re.findall(r"\(([^()]*)\)", match[1]))
                found[node.lineno] = (None if isinstance(node, ast.Return) else _target(node), shapes)
    return found


def _target(node: ast.Assign | ast.AugAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    assert isinstance(target, ast.Name), f"line {node.lineno}: a shape stands behind what is no plain name"
    return target.id


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
