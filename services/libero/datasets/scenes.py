"""Free labels for learning to see: rearranged frames of a recording, and where the named things are in them.

A scene is one recorded step with everything that the hand does not hold put somewhere else; half of the scenes of a
suite with wide starts have the furniture of another start too. It needs no physics and no demonstration, so thousands
are rendered in minutes. mini-VLA learns from them where the thing that the instruction
names is, and the place it belongs to. Labels serve training only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.libero.oracle.parts import handle_of, joint_of, wing_of
from services.libero.oracle.scene import SceneState, World
from services.libero.oracle.shapes import boxes_of
from vla_evaluation.recording.demonstrations import Demonstration, renderer

LIFTED = 0.03  # m: a thing that is this far above its start is in the hand, or already at its place
STAYS = 0.5  # probability that a named thing stays where the hand was working on it
WOBBLE = 0.06  # rad, on the arm's joints
WOBBLES = 0.5  # probability of it: the other half shows the hand right over the thing, and around it
MARGIN = 0.05  # m: things are put this far beyond the box that holds them at the start
GAP = 0.02  # m between two things
TRIES = 200
REDRAWN = 0.5  # share of the scenes whose fixtures move, in suites where they do
LAST_START = 2**20  # of the starts that give their places, from the episode's own
ARM = slice(1, 8)  # of a state: the arm's joints, after the time


def render(demonstration: Demonstration, cameras: Sequence[str], size: int, count: int) -> dict[str, np.ndarray]:
    """Render `count` scenes from an episode; return the arrays that `vla_datasets.scenes` describes."""
    rng = np.random.default_rng([demonstration.index, demonstration.seed, 46])
    rendering = renderer(demonstration.source, size)
    demonstration.reset_scene(rendering)
    env: Any = rendering.env  # LIBERO's, which has a domain
    states = demonstration.sim_states
    world = World.from_static(env.privileged(True)["static"])
    steps = np.empty((len(states), 2, 3), np.float32)
    for step, sim_state in enumerate(states):
        env.restore(sim_state)
        steps[step] = named_places(env, world)
    movable = objects(env.domain)
    sites = env.domain.object_sites_dict  # of a region: it belongs to an object, or to the table
    goal = env.domain.parsed_problem["goal_state"][0][1:]
    named = {name: sites[name].parent_name if name in sites else name for name in goal}.values() & movable.keys()
    starts = {name: states[0][1 + at : 4 + at] for name, at in movable.items()}
    spots = np.array(list(starts.values()))[:, :2]
    box = np.stack([spots.min(0) - MARGIN, spots.max(0) + MARGIN])
    images = np.empty((count, len(cameras), size, size, 3), np.uint8)
    state, places = np.empty((count, 8), np.float32), np.empty((count, 2, 3), np.float32)
    pixels = np.empty((count, len(cameras), 2, 2), np.float32)
    redrawn = round(REDRAWN * count) if env.moves_fixtures else 0
    for row in range(count):
        sim_state = states[rng.integers(len(states))].copy()
        lifted = [name for name in movable if sim_state[3 + movable[name]] - starts[name][2] > LIFTED]
        if not lifted and rng.random() < WOBBLES:
            sim_state[ARM] += rng.normal(0, WOBBLE, 7)
        if row < count - redrawn:
            fixed = [*lifted, *(name for name in sorted(named) if rng.random() < STAYS)]
            scatter(sim_state, env.domain, movable, fixed, box, rng)
        else:
            env.reset(0, env.start(int(rng.integers(1, LAST_START))))  # the fixtures stay there for later rows
            start = env.sim_state()
            for at in (1 + movable[name] for name in movable if name not in lifted):
                sim_state[at : at + 7] = start[at : at + 7]
        env.restore(sim_state)
        for number, camera in enumerate(cameras):
            images[row, number] = env.render(camera)[::-1, ::-1]
        state[row], places[row] = env.state(), named_places(env, world)
        pixels[row] = [in_image(env.domain, camera, places[row]) for camera in cameras]
    names = {"cameras": np.array(cameras), "instruction": np.array(demonstration.instruction)}
    return {**names, "images": images, "state": state, "places": places, "pixels": pixels, "steps": steps}


def objects(domain: Any) -> dict[str, int]:
    """Return the movable objects, and where their free joint begins in qpos."""
    model = domain.sim.model
    return {name: model.get_joint_qpos_addr(thing.joints[-1])[0] for name, thing in domain.objects_dict.items()}


def scatter(
    state: np.ndarray, domain: Any, movable: Mapping[str, int], fixed: Sequence[str], box: np.ndarray,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Move all things but `fixed` to random places of the box [2, 2] (lowest and highest x and y), side by side."""
    spots = {name: state[1 + movable[name] : 3 + movable[name]] for name in fixed}
    radius = {name: domain.objects_dict[name].horizontal_radius + GAP / 2 for name in movable}
    for name in rng.permutation([name for name in movable if name not in fixed]):
        for _ in range(TRIES):
            spot = rng.uniform(*box)
            if all(np.hypot(*(spot - other)) > radius[name] + radius[near] for near, other in spots.items()):
                break
        spots[name] = spot
        state[1 + movable[name] : 3 + movable[name]] = spot


def named_places(env: Any, world: World) -> np.ndarray:
    """Return where the hand acts on the goal's first thing, and on its place: float [2, 3].

    That is a drawer's handle, a stove's knob, and the position of everything else. A drawer's inside cannot be seen. A
    goal without a place has the middle of its furniture instead, which says how the handle or the knob is turned.
    """
    scene, goal = SceneState.from_state(world, env.privileged(False), 0), world.goals[0]
    thing, place = goal.args[0], goal.args[-1]
    if place == thing:
        owner = world.regions[thing].parent if thing in world.regions else thing
        return np.array([position(scene, thing), np.mean(boxes_of(scene, owner).bounds(), axis=0)])
    return np.array([position(scene, thing), position(scene, place)])


def position(scene: SceneState, name: str) -> np.ndarray:
    """Return the point [3] of an object or a region that the hand acts on."""
    joint = joint_of(scene, name)
    if joint is not None:
        return (handle_of if joint.type == "slide" else wing_of)(scene, joint).pose.pos
    return (scene.site(name) if name in scene.world.regions else scene.pose(name)).pos


def in_image(domain: Any, camera: str, points: np.ndarray) -> np.ndarray:
    """Return where points [n, 3] are in a camera's turned image: [n, 2], x right and y down in [-1, 1]; NaN outside."""
    model, data = domain.sim.model._model, domain.sim.data._data
    number = domain.sim.model.camera_name2id(camera)
    seen = (points - data.cam_xpos[number]) @ data.cam_xmat[number].reshape(3, 3)  # x right, y up, z backwards
    depth = np.where(seen[:, 2] < 0, -seen[:, 2], np.nan)
    xy = -seen[:, :2] / depth[:, None] / np.tan(np.radians(model.cam_fovy[number]) / 2)
    return np.where((np.abs(xy) <= 1).all(1, keepdims=True), xy, np.nan)
