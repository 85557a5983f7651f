"""The program behind `./lab check`: makes the file of an exercise, or says what is wrong with it.

Students' files lie in one folder, NAME.py each, and the results beside them in .progress.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lessons.exercises import NAMES
from lessons.exercises.book import exercise
from lessons.exercises.judging import Verdict
from lessons.exercises.running import check
from lessons.exercises.source import file_for
from lessons.exercises.types import Both

PROGRESS = ".progress.json"


def main(words: Sequence[str] | None = None) -> int:
    """Does what the words say; returns 0 where all that was checked is right, else 1."""
    parser = argparse.ArgumentParser(prog="check", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the student's files lie")
    parser.add_argument("--name", help="an exercise")
    parser.add_argument("--file", type=Path, help="the student's file; default: NAME.py in the folder")
    parser.add_argument("--all", type=Path, help="a folder with a folder for each student")
    given = parser.parse_args(words)
    try:
        if given.all:
            return table(given.all)
        if given.name:
            return one(given.directory, given.name, given.file)
        return listing(given.directory)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


# --- one exercise -------------------------------------------------------------------------------------------


def one(directory: Path, name: str, file: Path | None) -> int:
    """Checks a student's file; makes it where there is none yet."""
    chosen, path = exercise(name), file or directory / f"{name}.py"
    if file is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file_for(chosen), encoding="utf-8")
        show(chosen.text)
        print(f"wrote {path}\nedit it; then the same command checks it")
        return 0
    if not path.is_file():
        raise ValueError(f"{path} is not there; without a file the one in {directory} is made and checked")
    verdict, printed = check(name, path.absolute())
    if file is None:
        remember(directory, name, path, verdict)
    if printed.strip():
        print(f"it printed:\n{printed.rstrip()}")
    return explain(name, verdict)


def explain(name: str, verdict: Verdict) -> int:
    """Prints a verdict in both languages; returns the exit code."""
    chosen = exercise(name)
    if verdict.state == "right":
        print(f"{name}: right (맞습니다). The lesson's own: {chosen.target} in lessons/{chosen.lesson}.py")
        return 0
    if verdict.state == "blank":
        print(f"{name}: not written yet (아직 비어 있습니다)")
        show(chosen.text)
        return 1
    print(f"{name}: wrong (틀렸습니다)" + (f", at {verdict.where}" if verdict.where else ""))
    show(verdict.what)
    if verdict.slip:
        print(f"it looks like: {verdict.slip}")
        show(verdict.says)
    else:
        print("hint (힌트):")
        show(verdict.says if verdict.says.en else chosen.hint)
    return 1


def show(text: Both) -> None:
    """Prints a text in both languages."""
    print(f"  {text.en}\n  {text.ko}")


# --- progress -----------------------------------------------------------------------------------------------


def listing(directory: Path) -> int:
    """Prints every exercise with how far the student is."""
    known = progress(directory)
    print(f"exercises (연습 문제), files in {directory}:")
    for name in NAMES:
        print(f"  {name:28}{state(directory, name, known)}")
    print("./lab check NAME makes its file, and checks it from then on")
    return 0


def state(directory: Path, name: str, known: dict[str, dict[str, str]]) -> str:
    """Returns in words how an exercise stands."""
    path = directory / f"{name}.py"
    if not path.is_file():
        return "-"
    found = known.get(name, {})
    if found.get("sha") != digest(path):
        return "changed since it was checked" if found else "begun"
    return found["state"] + (f": {found['slip']}" if found.get("slip") else "")


def progress(directory: Path) -> dict[str, dict[str, str]]:
    """Returns what was found when each file was checked last."""
    try:
        return json.loads((directory / PROGRESS).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def remember(directory: Path, name: str, path: Path, verdict: Verdict) -> None:
    """Keeps a verdict beside the student's files."""
    found = {**progress(directory), name: {"sha": digest(path), "state": verdict.state, "slip": verdict.slip}}
    fresh = directory / f"{PROGRESS}.{os.getpid()}"
    fresh.write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(fresh, directory / PROGRESS)


def digest(path: Path) -> str:
    """Returns what tells a file from a changed one."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# --- a class ------------------------------------------------------------------------------------------------


def table(directory: Path) -> int:
    """Prints a line for each student: how many are right, and what is wrong with the rest."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is no folder; expected one with a folder for each student")
    students = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")) or [
        directory
    ]
    found = [(student, name) for student in students for name in NAMES if (student / f"{name}.py").is_file()]
    if not found:
        raise ValueError(f"{directory} holds no student's file; expected files such as STUDENT/{NAMES[0]}.py")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        verdicts = list(pool.map(lambda pair: check(pair[1], (pair[0] / f"{pair[1]}.py").absolute())[0], found))
    width = max(len(student.name) for student in students)
    for student in students:
        theirs = {name: v for (whose, name), v in zip(found, verdicts, strict=True) if whose == student}
        right = sum(v.state == "right" for v in theirs.values())
        print(f"{student.name:{width}}  {right:2} of {len(NAMES)} right, {len(theirs)} handed in")
        for name, verdict in theirs.items():
            if verdict.state != "right":
                print(f"{'':{width}}    {name}: {verdict.slip or verdict.what.en or 'not written yet'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
