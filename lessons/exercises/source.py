"""A lesson's code as a student gets it: a blank to fill, or with a slip in it; and with a slip, to know it again."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

from lessons.exercises.types import Exercise, Slip

LESSONS = Path(__file__).resolve().parent.parent
BLANK = "return ...  # write this: 여기에 쓰세요"


@functools.cache
def definition(exercise: Exercise) -> str:
    """Return the code of the function or class as it stands in the lesson."""
    text = (LESSONS / f"{exercise.lesson}.py").read_text(encoding="utf-8")
    node = next(node for node in ast.parse(text).body if getattr(node, "name", None) == exercise.target)
    return ast.get_source_segment(text, node)


def with_slip(code: str, slip: Slip) -> str:
    """Returns code with a slip in it. Raises ValueError where the code no longer has what the slip changes."""
    for old, new in slip.edits:
        if old not in code:
            raise ValueError(f"slip '{slip.name}' changes {old!r}, which is not in the lesson's code; adapt its edits")
        code = code.replace(old, new)
    return code


def blank(code: str) -> str:
    """Returns a function with nothing but its head and docstring."""
    function = ast.parse(code).body[0]
    return "\n".join([*code.splitlines()[: function.body[0].end_lineno], f"    {BLANK}"])


def run(exercise: Exercise, code: str) -> Any:
    """Returns what the exercise's name means after that code was run amid the rest of its lesson."""
    names = dict(vars(importlib.import_module(f"lessons.{exercise.lesson}")))
    exec(compile(code, f"<{exercise.name}>", "exec"), names)  # the lesson's own code, with or without a slip
    return names[exercise.target]


# --- the student's file -------------------------------------------------------------------------------------


def file_for(exercise: Exercise) -> str:
    """Returns the file that a student begins with: the text in both languages, imports, and the code."""
    code = definition(exercise)
    given = with_slip(code, exercise.slip(exercise.bug)) if exercise.bug else blank(code)
    head = f'"""{exercise.name}\n\n{exercise.text.en}\n{exercise.text.ko}\n\nCheck: ./lab check {exercise.name}\n"""\n'
    return "\n".join([head, *_imports(exercise, code), "", "", given, ""])


def _imports(exercise: Exercise, code: str) -> list[str]:
    """Returns the lines that bring what the code uses: the lesson's imports, and names of the lesson itself."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lesson = ast.parse((LESSONS / f"{exercise.lesson}.py").read_text(encoding="utf-8"))
    lines = [line for node in lesson.body if (line := _import_line(node, used))]
    own = sorted(used & _defined(lesson) - {exercise.target})
    return [*lines, f"from lessons.{exercise.lesson} import {', '.join(own)}"] if own else lines


def _import_line(node: ast.stmt, used: set[str]) -> str:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return ""
    kept = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
    node.names = kept
    return ast.unparse(node) if kept else ""


def _defined(lesson: ast.Module) -> set[str]:
    found = {node.name for node in lesson.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [target for node in lesson.body if isinstance(node, ast.Assign) for target in node.targets]
    return found | {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
