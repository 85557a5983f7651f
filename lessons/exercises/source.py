"""All exercises by name, and the lesson's code as an exercise: with a blank to fill or with a mistake in it."""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
from pathlib import Path
from typing import Any

from lessons.exercises import NAMES, diffusion_exercises, seeing_exercises, transformer_exercises, vla_exercises
from lessons.exercises.types import Exercise, Mistake

EXERCISES: dict[str, Exercise] = {
    exercise.name: exercise
    for lesson in (transformer_exercises, diffusion_exercises, vla_exercises, seeing_exercises)
    for exercise in lesson.EXERCISES
}
LESSONS = Path(__file__).resolve().parent.parent
BLANK = "return ...  # write this: 여기에 쓰세요"


def exercise(name: str) -> Exercise:
    """Return the exercise of that name. Raises ValueError with the known names."""
    if name not in EXERCISES:
        close = difflib.get_close_matches(name, NAMES, 1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise ValueError(f"exercise '{name}' not found{hint} Known: {', '.join(NAMES)}")
    return EXERCISES[name]


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
            raise ValueError(f"mistake '{mistake.name}' replaces {old!r}, which the lesson's code does not have")
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


def file_for(exercise: Exercise) -> str:
    """Return the text of a new exercise file: task in both languages, the imports that its code needs, and code."""
    code = definition(exercise)
    text = apply_mistake(code, exercise.mistake(exercise.bug)) if exercise.bug else blank(code)
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines, defined = [], set()
    for node in ast.parse((LESSONS / f"{exercise.lesson}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
            lines += [ast.unparse(node)] if node.names else []
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Assign):
            defined |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    if names := sorted(used & defined - {exercise.target}):
        lines.append(f"from lessons.{exercise.lesson} import {', '.join(names)}")
    head = f'"""{exercise.name}\n\n{exercise.text.en}\n{exercise.text.ko}\n\nCheck: ./lab check {exercise.name}\n"""\n'
    return "\n".join([head, *lines, "", "", text, ""])
