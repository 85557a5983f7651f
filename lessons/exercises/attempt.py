"""The process that a student's file runs in: `python -m lessons.exercises.attempt NAME FILE FD`.

A line "ready" goes to the file descriptor FD when everything but the student's own code is loaded, then the verdict.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import runpy
import sys

from lessons.exercises.book import exercise
from lessons.exercises.judging import Verdict, judge, wrong
from lessons.exercises.types import Exercise

MEMORY = 8 << 30  # bytes: far more than any exercise needs, less than a machine has
PRINTED = 1 << 20  # bytes that a student's file may print


def attempt(chosen: Exercise, file: str) -> Verdict:
    """Returns the verdict on a student's file."""
    try:
        names = runpy.run_path(file)
    except SyntaxError as error:
        return wrong(
            f"line {error.lineno} is no Python: {error.msg}",
            f"{error.lineno}행이 Python 문법에 맞지 않습니다: {error.msg}",
        )
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        return wrong(f"the file ends with {said}", f"파일이 오류로 끝납니다: {said}")
    if not callable(names.get(chosen.target)):
        return wrong(f"the file defines no {chosen.target}", f"파일에 {chosen.target}이(가) 없습니다")
    try:
        return judge(chosen, names[chosen.target], file)
    except SystemExit:
        return wrong("it ends the program instead of returning", "값을 돌려주지 않고 프로그램을 끝냅니다")


def main() -> None:
    """Judges FILE by the exercise NAME and writes the verdict to FD."""
    name, file, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
    chosen = exercise(name)
    importlib.import_module(f"lessons.{chosen.lesson}")
    chosen.calls()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED, PRINTED))
    os.write(fd, b"ready\n")
    os.write(fd, json.dumps(attempt(chosen, file).plain()).encode() + b"\n")


if __name__ == "__main__":
    main()
