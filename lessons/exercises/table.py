"""The results of a class: who solved what. It needs neither torch nor a student's code."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from lessons.exercises import NAMES

Results = Mapping[str, Mapping[str, Mapping[str, str]]]  # student → exercise → state, mistake


def print_table(results: Results, csv_path: Path | None = None) -> None:
    """Print for each student what is right and the mistakes, then how many solved each exercise.

    csv_path: also write the states as CSV, a row per student and a column per exercise; empty: not submitted.
    """
    width = max(map(len, results))
    for student, states in results.items():
        right = sum(entry["state"] == "right" for entry in states.values())
        print(f"{student:{width}}  {right:2} of {len(NAMES)} right, {len(states)} submitted")
        for name, entry in states.items():
            if entry["state"] != "right":
                print(f"{'':{width}}    {name}: {entry['mistake'] or 'not written yet'}")
    if len(results) > 1:
        print("\nright, submitted (맞음, 제출):")
        for name in NAMES:
            submitted = [entry[name]["state"] for entry in results.values() if name in entry]
            if submitted:
                print(f"{submitted.count('right'):4} {len(submitted):4}  {name}")
    if csv_path:
        with csv_path.open("w", newline="", encoding="utf-8-sig") as file:  # the mark makes spreadsheets read Hangul
            writer = csv.writer(file)
            writer.writerow(["student", *NAMES])
            for student, states in results.items():
                writer.writerow([student, *(states.get(name, {}).get("state", "") for name in NAMES)])
