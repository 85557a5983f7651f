"""The simulator's true state as plain data, for policies with `PolicyInfo.needs_privileged`.

`observe(domain, static=True)` at an episode's first step adds what is constant within the episode: names, collision
shapes, sites, joints and the goal. Later steps send only what moves. Values are str, number, bool, list, dict or
ndarray, so they can be sent as they are. All lengths are metres, angles rad, positions in the world frame unless a
name says otherwise; quaternions are MuJoCo's (w, x, y, z).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:  # MuJoCo must not be imported before it is configured
    import mujoco

GRIP_SITE = "gripper0_grip_site"
ROBOT_PREFIXES = ("robot0_", "gripper0_", "mount0_")
MESH = 7
# mujoco.mjtGeom -> name; a mesh is sent as the box around its vertices
GEOM_TYPES = {0: "plane", 2: "sphere", 3: "capsule", 4: "ellipsoid", 5: "cylinder", 6: "box", MESH: "box"}
SLIDE, HINGE = 2, 3
JOINT_TYPES = {SLIDE: "slide", HINGE: "hinge"}  # mujoco.mjtJoint -> name
_ADDRESSES: WeakKeyDictionary = WeakKeyDictionary()  # domain -> (its model, addresses of the objects' joints)


def observe(domain: Any, static: bool) -> dict[str, Any]:
    """Return the state of a LIBERO problem (`LiberoEnv.domain`); `static` adds the part that never changes.

    Keys: `eef_pos` [3]; `eef_rot` [3, 3], whose columns are the hand's axes (x: closing axis, z: out of the fingers);
    `eef_vel` [6] (linear m/s, angular rad/s); `gripper_qpos` [2]; `robot_qpos` [7]; `body_pos` [nb, 3];
    `body_quat_wxyz` [nb, 4]; `joint_pos` [nj]; `contacts` int [nc, 2] (pairs of body indices, each once, the smaller
    first); `goal_done`, a list of bool (after the first step only where there is more than one goal: the last one to
    hold ends the episode); at the first step `static` (see `describe`). Sites move with their bodies.
    """
    import mujoco

    model, data = domain.sim.model._model, domain.sim.data._data
    robot = domain.robots[0]
    site = model.site(GRIP_SITE).id
    velocity = np.empty(6)  # angular, then linear
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_SITE, site, velocity, 0)
    bodies = model.geom_bodyid[data.contact.geom[: data.ncon]].reshape(-1, 2)
    pairs = np.unique(bodies.min(axis=1) * model.nbody + bodies.max(axis=1))
    cached = _ADDRESSES.get(domain)
    if cached is None or cached[0] is not model:  # looked up by name once per model
        cached = _ADDRESSES[domain] = (model, model.jnt_qposadr[_object_joints(model)])
    state = {
        "eef_pos": data.site_xpos[site].copy(),
        "eef_rot": data.site_xmat[site].reshape(3, 3).copy(),
        "eef_vel": np.concatenate([velocity[3:], velocity[:3]]),
        "gripper_qpos": data.qpos[robot._ref_gripper_joint_pos_indexes].copy(),
        "robot_qpos": data.qpos[robot._ref_joint_pos_indexes].copy(),
        "body_pos": data.xpos.copy(),
        "body_quat_wxyz": data.xquat.copy(),
        "joint_pos": data.qpos[cached[1]],
        "contacts": np.stack([pairs // model.nbody, pairs % model.nbody], axis=1).astype(np.int32),
    }
    goal = domain.parsed_problem["goal_state"]
    if static or len(goal) > 1:
        state["goal_done"] = [bool(domain._eval_predicate(p)) for p in goal]
    if static:
        state["static"] = describe(domain)
    return state


def describe(domain: Any) -> dict[str, Any]:
    """Return the static part of a LIBERO problem: names, shapes and the goal, sent once per episode."""
    model = domain.sim.model._model
    return {
        "instruction": " ".join(domain.parsed_problem["language_instruction"]),
        "goal": [[str(word) for word in p] for p in domain.parsed_problem["goal_state"]],
        "bodies": [model.body(i).name for i in range(model.nbody)],
        "objects": _objects(domain),
        "regions": {  # the object each belongs to ("" for the table), and the joints that move it
            name: {"parent": str(region.parent_name or ""), "joints": [str(joint) for joint in region.joints or []]}
            for name, region in domain.object_sites_dict.items()
        },
        "geoms": _collision_geoms(model),
        "sites": _sites(model),
        "joints": _joints(model),
        "robot_base_pos": np.array(domain.robots[0].base_pos, dtype=np.float64),
    }


def _objects(domain: Any) -> dict[str, Any]:
    """Movable objects and fixtures: category, root body, all bodies (indices), ranges that mean open, closed, on."""
    parents = domain.sim.model._model.body_parentid.tolist()
    roots: list[set[int]] = []  # of each body: itself and its ancestors; a parent has a smaller index
    for body, parent in enumerate(parents):
        roots.append({body} | (roots[parent] if body else set()))
    objects = {}
    for table, movable in ((domain.objects_dict, True), (domain.fixtures_dict, False)):
        for name, thing in table.items():
            if name not in domain.obj_body_id:
                continue
            root = int(domain.obj_body_id[name])
            ranges = getattr(thing, "object_properties", {}).get("articulation", {})
            objects[name] = {
                "category": str(thing.category_name),
                "movable": movable,
                "root": root,
                "bodies": [body for body, above in enumerate(roots) if root in above],
                "ranges": {str(key): [float(v) for v in value] for key, value in ranges.items() if len(value)},
            }
    return objects


def _collision_geoms(model: mujoco.MjModel) -> dict[str, Any]:
    """Collision shapes of all but the robot, in their body's frame: `body`, `type`, `size`, `pos`, `quat_wxyz`."""
    robot = [model.body(i).name.startswith(ROBOT_PREFIXES) for i in range(model.nbody)]
    geoms = [
        i
        for i in range(model.ngeom)
        if (model.geom_contype[i] or model.geom_conaffinity[i])
        and not robot[model.geom_bodyid[i]]
        and model.geom_type[i] in GEOM_TYPES
    ]
    pos, size = model.geom_pos[geoms].copy(), model.geom_size[geoms].copy()
    for row, i in enumerate(geoms):
        if model.geom_type[i] == MESH:
            centre, w, axis = model.geom_aabb[i][:3], model.geom_quat[i][0], model.geom_quat[i][1:]
            pos[row] += centre + 2 * np.cross(axis, np.cross(axis, centre) + w * centre)  # turned by the quaternion
            size[row] = model.geom_aabb[i][3:]
    return {
        "body": model.geom_bodyid[geoms].astype(np.int32),
        "type": [GEOM_TYPES[int(model.geom_type[i])] for i in geoms],
        "size": size,
        "pos": pos,
        "quat_wxyz": model.geom_quat[geoms].copy(),
    }


def _sites(model: mujoco.MjModel) -> dict[str, Any]:
    """All sites but the robot's, in their body's frame: `name`, `body`, `pos`, `quat_wxyz`, `size` (half extents)."""
    sites = [i for i in range(model.nsite) if not model.site(i).name.startswith(ROBOT_PREFIXES)]
    return {
        "name": [model.site(i).name for i in sites],
        "body": model.site_bodyid[sites].astype(np.int32),
        "pos": model.site_pos[sites].copy(),
        "quat_wxyz": model.site_quat[sites].copy(),
        "size": model.site_size[sites].copy(),
    }


def _object_joints(model: mujoco.MjModel) -> list[int]:
    """Indices of the slide and hinge joints that belong to objects (drawers, doors, knobs)."""
    return [
        i
        for i in range(model.njnt)
        if model.jnt_type[i] in JOINT_TYPES and not model.joint(i).name.startswith(ROBOT_PREFIXES)
    ]


def _joints(model: mujoco.MjModel) -> dict[str, Any]:
    """Slide and hinge joints of objects: `name`, `type`, `body`, `pos` and `axis` in the body's frame, `range`."""
    joints = _object_joints(model)
    return {
        "name": [model.joint(i).name for i in joints],
        "type": [JOINT_TYPES[int(model.jnt_type[i])] for i in joints],
        "body": model.jnt_bodyid[joints].astype(np.int32),
        "pos": model.jnt_pos[joints].copy(),
        "axis": model.jnt_axis[joints].copy(),
        "range": model.jnt_range[joints].copy(),
    }
