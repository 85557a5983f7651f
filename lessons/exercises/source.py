"""The lesson's code as an exercise: with a blank to fill or with a mistake in it."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

from lessons.exercises.types import Exercise, Mistake

LESSONS = Path(__file__).resolve().parent.parent
BLANK = "return ...  # write this: 여기에 쓰세요"


@functools.cache
def definition(exercise: Exercise) -> str:
    """Return the source of the exercise's function or class in the lesson."""
    text = (LESSONS / f"{exercise.lesson}.py").read_text(encoding="utf-8")
    node = next(node for node in ast.parse(text).body if getattr(node, "name", None) == exercise.target)
    return ast.get_source_segment(text, node)


def apply_mistake(code: str, mistake: Mistake) -> str:
    """Return the code with a mistake in it. Raises ValueError if the code lacks what the mistake replaces."""
    for old, new in mistake.edits:
        if old not in code:
            raise ValueError(
                f"mistake '{mistake.name}' replaces {old!r}, which is not in the lesson's code; adapt its edits"
            )
        code = code.replace(old, new)
    return code


def blank(code: str) -> str:
    """Return a function with its signature and docstring only."""
    function = ast.parse(code).body[0]
    return "\n".join([*code.splitlines()[: function.body[0].end_lineno], f"    {BLANK}"])


def run(exercise: Exercise, code: str) -> Any:
    """Run the code within its lesson's namespace. Return the exercise's function or class."""
    names = dict(vars(importlib.import_module(f"lessons.{exercise.lesson}")))
    exec(compile(code, f"<{exercise.name}>", "exec"), names)  # the lesson's own code
    return names[exercise.target]


# --- the student's file -------------------------------------------------------------------------------------


def file_for(exercise: Exercise) -> str:
    """Return the text of a new exercise file: task in both languages, imports and code."""
    code = definition(exercise)
    text = apply_mistake(code, exercise.mistake(exercise.bug)) if exercise.bug else blank(code)
    head = f'"""{exercise.name}\n\n{exercise.text.en}\n{exercise.text.ko}\n\nCheck: ./lab check {exercise.name}\n"""\n'
    return "\n".join([head, *_imports(exercise, code), "", "", text, ""])


def _imports(exercise: Exercise, code: str) -> list[str]:
    """Return the import lines that the code needs: the lesson's imports, and names of the lesson itself."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lesson = ast.parse((LESSONS / f"{exercise.lesson}.py").read_text(encoding="utf-8"))
    lines = [line for node in lesson.body if (line := _import_line(node, used))]
    names = sorted(used & _defined(lesson) - {exercise.target})
    return [*lines, f"from lessons.{exercise.lesson} import {', '.join(names)}"] if names else lines


def _import_line(node: ast.stmt, used: set[str]) -> str:
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return ""
    names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
    node.names = names
    return ast.unparse(node) if names else ""


def _defined(lesson: ast.Module) -> set[str]:
    names = {node.name for node in lesson.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    targets = [target for node in lesson.body if isinstance(node, ast.Assign) for target in node.targets]
    return names | {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
