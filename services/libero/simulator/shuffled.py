"""Suites that memory does not solve: LIBERO's tasks with everything in the scene at a random place.

`libero_object_shuffled` and `libero_goal_shuffled` have the tasks, objects, goals and instructions of their base.
`draw` places objects and fixtures anywhere that the arm reaches and nothing overlaps. A place is a point region of
BDDL, so stock LIBERO runs the same starts. Small seeds give the starts of evaluations, seeds from 2³¹ on those of
demonstrations (`vla_evaluation.recording.trajectory.seed_of`).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import cos, hypot, pi, sin
from typing import TYPE_CHECKING, Any

from services.libero.simulator.pro import PerturbedSuite

if TYPE_CHECKING:
    from services.libero.simulator.suites import Suite, Task

KIND = "start"
WIDE = {base: f"{base}_shuffled" for base in ("libero_object", "libero_goal")}
VARIANTS = {name: PerturbedSuite(name, base, KIND) for base, name in WIDE.items()}
EPISODES = 50  # of a task, as in LIBERO
FIRST_SEED = 46_000  # of the evaluations' starts: FIRST_SEED + 50 * task + episode
DIGESTS = {
    "libero_object_shuffled": "5ad8f2ea15937f7977a0eb37ec1668eb970e14b874d237bf20f1756214faad20",
    "libero_goal_shuffled": "45faf92bb22f841338b61743da73c1602ad80dd64528ee1b47e12cfdc81770cb",
}  # of the starts of `rows`
TRIES, RESTARTS = 100, 1000  # places for one thing, and scenes
Place = tuple[float, float, float]  # x, y (m, on the table or floor) and yaw (rad)
Corners = list[tuple[float, float]]


@dataclass(frozen=True)
class Range:
    """Places that something may have, and its footprint at yaw 0, from its origin, with room for the hand (m, rad)."""

    x: tuple[float, float]
    y: tuple[float, float]
    low: tuple[float, float]
    high: tuple[float, float]
    yaw: tuple[float, float] = (0.0, 0.0)

    def outline(self, place: Place) -> Corners:
        """Return the footprint's four corners, in turn, at a place."""
        x, y, yaw = place
        (left, bottom), (right, top) = self.low, self.high
        corners = ((left, bottom), (right, bottom), (right, top), (left, top))
        return [(x + cos(yaw) * a - sin(yaw) * b, y + sin(yaw) * a + cos(yaw) * b) for a, b in corners]


def _square(x: tuple[float, float], y: tuple[float, float], half: float) -> tuple[Range, ...]:
    return (Range(x, y, (-half, -half), (half, half)),)


_FLOOR, _TABLE, _TURN = ((-0.24, 0.18), (-0.32, 0.32)), ((-0.28, 0.10), (-0.30, 0.30)), 0.2
_CABINET, _STOVE = ((-0.13, -0.16), (0.13, 0.12)), ((-0.06, -0.10), (0.25, 0.10))
_RACK = ((-0.135, -0.135), (0.135, 0.135))
FIXTURES = ("wooden_cabinet", "flat_stove", "wine_rack")
# base → x of the arm's base, and how far from it an object may be: by Panda's data sheet, a level hand reaches 0.77 m
# at the height of the table
REACH = {"libero_object": (-0.60, 0.74), "libero_goal": (-0.66, 0.75)}
POINT = 1e-9  # m, half the width of a point: MuJoCo wants a region to have a size
STOVE = (-0.41, 0.21)  # where libero_goal has it
# base → category → its ranges, of which one is drawn; "" is every other category
RANGES: dict[str, dict[str, tuple[Range, ...]]] = {
    "libero_object": {"": _square(*_FLOOR, 0.055), "basket": _square((-0.16, 0.10), (-0.28, 0.28), 0.11)},
    "libero_goal": {
        "wooden_cabinet": (  # its drawers, which need room, open towards the middle of the table
            Range((-0.30, 0.04), (-0.31, -0.20), *_CABINET, (pi - _TURN, pi + _TURN)),
            Range((-0.30, 0.04), (0.20, 0.31), *_CABINET, (-_TURN, _TURN)),
        ),
        "flat_stove": (
            Range((-0.42, -0.06), (-0.28, -0.18), *_STOVE, (-_TURN, _TURN)),
            Range((-0.42, -0.06), (0.18, 0.28), *_STOVE, (-_TURN, _TURN)),
        ),
        "wine_rack": (
            Range((-0.32, 0.04), (-0.28, -0.23), *_RACK, (pi - _TURN, pi + _TURN)),
            Range((-0.32, 0.04), (0.23, 0.28), *_RACK, (pi - _TURN, pi + _TURN)),
        ),
        "akita_black_bowl": _square(*_TABLE, 0.065),
        "plate": _square(*_TABLE, 0.075),
        "wine_bottle": _square(*_TABLE, 0.04),
        "cream_cheese": _square(*_TABLE, 0.05),
    },
}


def placed(bddl: str) -> dict[str, str]:
    """Return the regions by the name of what LIBERO places in them, in its order."""
    return dict(re.findall(r"\(On (\S+) (\S+)\)", bddl[bddl.index("(:init") : bddl.index("(:goal")]))


def draw(task: Task, seed: int) -> dict[str, Place]:
    """Return a start of a task, which follows from it and `seed` alone: the places by name, in LIBERO's order.

    The yaw is a fixture's; objects stand as LIBERO turns them. Raises RuntimeError if there is no room.
    """
    bddl, base = task.bddl(), VARIANTS[task.suite].base
    (base_x, reach), of_base = REACH[base], RANGES[base]
    rng, goal = random.Random(seed), bddl[bddl.index("(:goal") :]
    ranges = {name: of_base.get(re.sub(r"_\d+$", "", name)) or of_base[""] for name in placed(bddl)}
    fixtures = {name for name in ranges if name.startswith(FIXTURES)}
    same_side = {}
    if "stove_front_region" in goal:  # where the plate is pushed to: it moves with the stove, but cannot turn
        of_stove = {"x": (-0.42, -0.27), "high": (0.42, 0.10), "yaw": (0.0, 0.0)}
        ranges["flat_stove_1"] = tuple(replace(one, **of_stove) for one in ranges["flat_stove_1"])
    if re.search(r"wooden_cabinet_1_\w+_region", goal):  # nearer to the arm's base, a hand cannot point sideways
        of_cabinet = {"x": (-0.08, 0.04), "low": (-0.13, -0.40)}  # the drawer opens, and the hand with it
        ranges["wooden_cabinet_1"] = tuple(replace(one, **of_cabinet) for one in ranges["wooden_cabinet_1"])
        same_side = {"wine_rack_1": "wooden_cabinet_1"}  # opposite, the tall rack would be in the forearm's way
    order = sorted(ranges, key=lambda name: _area(ranges[name][0].outline((0.0, 0.0, 0.0))), reverse=True)
    for _ in range(RESTARTS):
        places: dict[str, Place] = {}
        outlines: list[Corners] = []
        for name in order:
            for place, outline in _tries(ranges[name], rng):
                is_near = name in fixtures or hypot(place[0] - base_x, place[1]) <= reach
                if name in same_side and place[1] * places[same_side[name]][1] < 0:
                    continue
                if is_near and not any(overlap(outline, other) for other in outlines):
                    places[name] = place
                    outlines.append(outline)
                    break
            else:
                break  # no room is left: another scene
        if len(places) == len(order):
            return {name: places[name] for name in ranges}
    raise RuntimeError(f"no start with seed {seed} in {RESTARTS} scenes; are the objects larger than their regions?")


@cache
def rows(task: Task) -> list[list[float]]:
    """Return the starts of an evaluation, 50 rows of `to_row`."""
    return [to_row(draw(task, seed_of(task.index, episode))) for episode in range(EPISODES)]


def digest(suite: Suite) -> str:
    """Return the SHA-256 of a suite's starts in 0.1 mm and 0.1 mrad; `DIGESTS` has those that were published."""
    starts = {task.name: [[round(number * 1e4) for number in row] for row in rows(task)] for task in suite.tasks}
    text = json.dumps(starts)
    return hashlib.sha256(text.encode()).hexdigest()


def seed_of(task: int, episode: int) -> int:
    """Return the seed of an evaluation's start."""
    return FIRST_SEED + EPISODES * task + episode


def to_row(places: dict[str, Place]) -> list[float]:
    """Return places as one row of init states: x, y, yaw of each thing in LIBERO's order."""
    return [number for place in places.values() for number in place]


def _tries(ranges: tuple[Range, ...], rng: random.Random) -> Iterator[tuple[Place, Corners]]:
    for _ in range(TRIES):
        one = ranges[int(rng.random() * len(ranges))]
        x, y, yaw = (round(low + (high - low) * rng.random(), 4) for low, high in (one.x, one.y, one.yaw))
        yield (x, y, yaw), one.outline((x, y, yaw))


def goal_region(bddl: str, places: dict[str, Place]) -> tuple[str, list[float]] | None:
    """Return the part of the table that a goal names, which moves with the stove: its name, and left, bottom, right and
    top (m) for these places. None if the goal names none.
    """
    goal = re.search(r"\(On \w+ main_table_(\w+)\)", bddl[bddl.index("(:goal") :])
    if goal is None:
        return None
    (numbers,) = re.findall(rf"\({goal[1]}\s+\(:target \w+\)\s+\(:ranges[\s(]*([^()]*)", bddl)
    shift = [places["flat_stove_1"][axis] - STOVE[axis] for axis in (0, 1)]
    return goal[1], [float(number) + each for number, each in zip(numbers.split(), 2 * shift, strict=True)]


def _area(corners: Corners) -> float:
    (x0, y0), _, (x1, y1), _ = corners
    return (x1 - x0) * (y1 - y0)


def overlap(first: Corners, second: Corners) -> bool:
    """Return whether two rectangles overlap (separating axis theorem)."""
    for corners in (first, second):
        for (x0, y0), (x1, y1) in pairwise(corners[:3]):
            a, b = x1 - x0, y1 - y0
            spans = [[a * x + b * y for x, y in each] for each in (first, second)]
            if max(spans[0]) <= min(spans[1]) or max(spans[1]) <= min(spans[0]):
                return False
    return True


def point_bddl(bddl: str, places: dict[str, Place], margins: dict[str, float]) -> str:
    """Return a task file's text whose regions are the places, so that stock LIBERO's reset puts everything there.

    `margins` are the lengths (m) by name that LIBERO takes off both ends of an object's region (`horizontal_radius`);
    names without one are fixtures, which have a yaw.
    """
    regions = {}
    for name, region in placed(bddl).items():
        (x, y, yaw), margin = places[name], margins.get(name, 0.0) + POINT
        turn = "" if name in margins else f" (:yaw_rotation (({yaw!r} {yaw!r})))"
        regions[region] = [x - margin, y - margin, x + margin, y + margin], turn
    if moved := goal_region(bddl, places):
        regions[f"main_table_{moved[0]}"] = moved[1], ""
    for region, (numbers, turn) in regions.items():
        target = "floor" if region.startswith("floor_") else "main_table"
        short = region.removeprefix(f"{target}_")
        start = end = bddl.index(f"({short}\n")
        while bddl.count("(", start, end) != bddl.count(")", start, end) or end == start:
            end += 1
        text = f"({short} (:target {target}) (:ranges (({' '.join(map(repr, numbers))}))){turn})"
        bddl = bddl[:start] + text + bddl[end:]
    return bddl


def arrange(domain: Any, bddl: str, places: dict[str, Place]) -> None:
    """Make LIBERO's placement put everything at its place: the ranges of its samplers become points."""
    if region := goal_region(bddl, places):
        name, (left, bottom, right, top) = region
        model = domain.sim.model
        model.site_pos[model.site_name2id(f"main_table_{name}")][:2] = (left + right) / 2, (bottom + top) / 2
    for sampler in domain.placement_initializer.samplers.values():
        (thing,) = sampler.mujoco_objects
        x, y, yaw = places[thing.name]
        sampler.ensure_object_boundary_in_range = False
        sampler.x_ranges, sampler.y_ranges = [(x, x)], [(y, y)]
        if thing.name in domain.fixtures_dict:
            sampler.rotation = (yaw, yaw)
