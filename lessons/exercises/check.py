"""The program behind `./lab check`: create the file of an exercise, or check it.

Students' files are in one directory, NAME.py each, with the results in .progress.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lessons.exercises import NAMES
from lessons.exercises.runner import check
from lessons.exercises.source import exercise, file_for
from lessons.exercises.table import print_table
from lessons.exercises.types import Bilingual

PROGRESS = ".progress.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 0 if the checked file is right, else 1."""
    parser = argparse.ArgumentParser(prog="check", description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="directory of the student's files")
    parser.add_argument("--name", help="exercise to create or check")
    parser.add_argument("--file", type=Path, help="the student's file; default: NAME.py in the directory")
    parser.add_argument("--all", type=Path, help="directory with one directory per student")
    parser.add_argument("--csv", type=Path, help="with --all: also write the table to this file")
    parser.add_argument("--report", action="store_true", help="print the results of all files as JSON")
    options = parser.parse_args(arguments)
    try:
        if options.all:
            return check_class(options.all, options.csv)
        if options.report:
            print(json.dumps(results({"": options.directory})[""]))
            return 0
        if options.name:
            return check_file(options.directory, options.name, options.file)
        known = progress(options.directory)
        print(f"exercises (연습 문제), files in {options.directory}:")
        for name in NAMES:
            print(f"  {name:28}{state(options.directory, name, known)}")
        print("./lab check NAME creates the file; run it again to check your solution")
        return 0
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def check_file(directory: Path, name: str, file: Path | None) -> int:
    """Check a student's file, or create it if it does not exist."""
    selected, path = exercise(name), file or directory / f"{name}.py"
    if file is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file_for(selected), encoding="utf-8")
        print_text(selected.text)
        print(f"created {path}\nedit it, then run the same command to check it")
        return 0
    if not path.is_file():
        raise ValueError(f"file {path} not found; without --file the exercise is created in {directory}")
    verdict, printed = check(name, path.absolute())
    if file is None:  # "slip" is the file format's word for a mistake
        entries = {**progress(directory), name: {"sha": digest(path), "state": verdict.state, "slip": verdict.mistake}}
        temporary = directory / f"{PROGRESS}.{os.getpid()}"
        temporary.write_text(json.dumps(entries, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(temporary, directory / PROGRESS)
    if printed.strip():
        print(f"your code printed:\n{printed.rstrip()}")
    if verdict.state == "right":
        print(f"{name}: right (맞습니다). The lesson's code: {selected.target} in lessons/{selected.lesson}.py")
        return 0
    if verdict.state == "blank":
        print(f"{name}: not written yet (아직 비어 있습니다)")
        print_text(selected.text)
        return 1
    print(f"{name}: wrong (틀렸습니다)" + (f", at {verdict.call}" if verdict.call else ""))
    print_text(verdict.message)
    if verdict.mistake:
        print(f"it looks like: {verdict.mistake}")
        print_text(verdict.advice)
    else:
        print("hint (힌트):")
        print_text(verdict.advice if verdict.advice.en else selected.hint)
    return 1


def print_text(text: Bilingual) -> None:
    print(f"  {text.en}\n  {text.ko}")


def state(directory: Path, name: str, progress: dict[str, dict[str, str]]) -> str:
    """Return the state of an exercise as it is displayed."""
    path = directory / f"{name}.py"
    if not path.is_file():
        return "-"
    entry = progress.get(name, {})
    if entry.get("sha") != digest(path):
        return "changed since it was checked" if entry else "started"
    return entry["state"] + (f": {entry['slip']}" if entry.get("slip") else "")


def progress(directory: Path) -> dict[str, dict[str, str]]:
    """Return the result of each file's last check."""
    try:
        return json.loads((directory / PROGRESS).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def results(students: Mapping[str, Path]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the state of each submitted file, by student and exercise. students: directory of each."""
    submissions = [
        (name, student) for student in students for name in NAMES if (students[student] / f"{name}.py").is_file()
    ]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        verdicts = pool.map(
            lambda pair: check(pair[0], (students[pair[1]] / f"{pair[0]}.py").absolute())[0], submissions
        )
    found: dict[str, dict[str, dict[str, str]]] = {student: {} for student in students}
    for (name, student), verdict in zip(submissions, verdicts, strict=True):
        found[student][name] = {"state": verdict.state, "mistake": verdict.mistake or verdict.message.en}
    return found


def check_class(directory: Path, csv_path: Path | None) -> int:
    """Print the results of a directory with a directory per student, or of one student's."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory; expected one directory per student in it")
    students = [path for path in sorted(directory.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    found = results({path.name: path for path in students or [directory]})
    if not any(found.values()):
        raise ValueError(f"no student file found in {directory}; expected files such as STUDENT/{NAMES[0]}.py")
    print_table(found, csv_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
