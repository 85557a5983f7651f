"""Runs a lesson and holds the shapes that stand at the end of its lines against the tensors that are there."""

import ast
import re
import sys
from pathlib import Path

COMMENT = re.compile(r"#((?: \([^()]*\))+)(?:: .*)?$")  # one shape, or one for each value of a pair; then perhaps words


class Shapes:
    """What a lesson's lines say, and what was found while it ran.

    sizes: name -> number that holds in all of the lesson. Any other name means one number within a call.
    lines: line -> the name that it gives a value to (None where it returns), and the shapes behind it.
    """

    def __init__(self, lesson, sizes):
        self.path, self.sizes, self.lines = lesson.__file__, sizes, {}
        self.seen: set[int] = set()
        self.wrong: list[str] = []
        source = Path(lesson.__file__).read_text()
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Assign | ast.Return | ast.AugAssign):
                continue
            if match := COMMENT.search(source.splitlines()[node.end_lineno - 1]):
                name = None
                if not isinstance(node, ast.Return):
                    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                    assert isinstance(target, ast.Name), f"line {node.lineno}: a shape stands behind no plain name"
                    name = target.id
                texts = re.findall(r"\(([^()]*)\)", match[1])
                shapes = [[part.strip() for part in text.split(",") if part.strip()] for text in texts]
                self.lines[node.lineno] = name, shapes

    def run(self, call):
        """Calls, and looks at every line of the lesson that a shape stands behind."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame, event, _):
        if frame.f_code.co_filename != self.path:
            return None
        names, last = dict(self.sizes), None

        def local(frame, event, value):
            nonlocal last
            if event == "return":
                self._look(frame.f_lineno, frame, names, value)
            elif event == "line":
                if last is not None:
                    self._look(last, frame, names)
                last = frame.f_lineno
            return local

        return local

    def _look(self, line, frame, names, returned=None):
        target, shapes = self.lines.get(line, (None, ()))
        if not shapes or (target is None) != (returned is not None):
            return
        value = returned if target is None else frame.f_locals.get(target)
        self.seen.add(line)
        for one, shape in zip(value if len(shapes) > 1 else (value,), shapes, strict=True):
            sizes = tuple(getattr(one, "shape", "no tensor"))
            if len(sizes) != len(shape) or not all(fits(n, s, names) for n, s in zip(shape, sizes, strict=True)):
                self.wrong.append(f"line {line} says ({', '.join(shape)}), there is {sizes}")


def fits(name, size, names):
    """Returns whether a size is what its name says; a name that is met for the first time is bound to it."""
    if re.fullmatch(r"[a-z_]\w*", name):
        names.setdefault(name, size)
    return eval(name, {}, names) == size  # a lesson's own comment: "d_model / 2"
