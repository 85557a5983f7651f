"""Grasps, shapes and placements as pure functions, on a made-up table with a cube and a tray."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from services.libero.oracle import grasp, motion, pick_place, placements
from services.libero.oracle.example import TABLE_TOP, example_state
from services.libero.oracle.motion import OPEN, nearest_yaw
from services.libero.oracle.scene import SceneState, World, rotations
from services.libero.oracle.shapes import Boxes, boxes_of, overlap, solid_points


def scene_of(state: dict) -> SceneState:
    return SceneState.from_state(World.from_static(state["static"]), state, 0)


def with_box(state: dict, pos, half) -> dict:
    """Return the state with one more movable box."""
    state = copy.deepcopy(state)
    static, geoms = state["static"], state["static"]["geoms"]
    body = len(static["bodies"])
    name = f"box_{body}"
    static["bodies"].append(name)
    static["objects"][name] = {"category": "box", "movable": True, "root": body, "bodies": [body], "ranges": {}}
    geoms["body"] = np.append(geoms["body"], body).astype(np.int32)
    geoms["type"].append("box")
    state["body_pos"] = np.vstack([state["body_pos"], pos])
    state["body_quat_wxyz"] = np.vstack([state["body_quat_wxyz"], [1.0, 0, 0, 0]])
    for column, row in (("size", half), ("pos", np.zeros(3)), ("quat_wxyz", [1.0, 0, 0, 0])):
        geoms[column] = np.vstack([geoms[column], row])
    return state


def with_walls(state: dict, axis: int, gap: float, y: float = 0.0, half_height: float = 0.05) -> dict:
    """Return the state with a wall on both sides of the point (0, y) along an axis, its middle `gap` m away."""
    for side in (-gap, gap):
        pos, half = [0, y, TABLE_TOP + half_height], [0.1, 0.1, half_height]
        pos[axis] += side
        half[axis] = 0.01
        state = with_box(state, pos, half)
    return state


def random_boxes(rng, count: int) -> Boxes:
    quat = rng.normal(size=(count, 4))
    quat /= np.linalg.norm(quat, axis=1, keepdims=True)
    return Boxes(rng.uniform(-0.3, 0.3, (count, 3)), rotations(quat), rng.uniform(0.02, 0.2, (count, 3)))


def test_overlap_agrees_with_points_inside_both_boxes():
    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, 30), random_boxes(rng, 30)
    hits = overlap(first, second)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 15)] * 3), -1).reshape(-1, 3)
    for i in range(30):
        points = first.pos[i] + (grid * first.half[i]) @ first.rot[i].T
        for j in range(30):
            inside = np.all(np.abs((points - second.pos[j]) @ second.rot[j]) <= second.half[j], axis=1)
            assert hits[i, j] or not inside.any()  # a common point means an overlap
    assert 0 < hits.sum() < hits.size
    np.testing.assert_array_equal(hits, overlap(second, first).T)


def test_boxes_apart_by_an_edge_do_not_overlap():
    turned = rotations(np.array([[np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)]]))
    one = Boxes(np.zeros((1, 3)), np.eye(3)[None], np.full((1, 3), 0.1))
    for gap, expected in ((0.001, False), (-0.001, True)):
        other = Boxes(np.array([[0.1 + 0.1 * np.sqrt(2) + gap, 0, 0]]), turned, np.full((1, 3), 0.1))
        assert overlap(one, other)[0, 0] == expected


@pytest.mark.parametrize("cube_yaw", np.linspace(0, np.pi, 9))
@pytest.mark.parametrize("cube_xy", ((0.0, 0.0), (-0.2, -0.25), (0.08, -0.1)))
def test_a_cube_is_grasped_across_its_sides_clear_of_the_table(cube_xy, cube_yaw):
    scene = scene_of(example_state(cube_xy, cube_yaw))
    found = grasp.find_grasp(scene, "cube_1")
    assert found is not None
    assert found.width == pytest.approx(0.04, abs=0.003)
    assert abs((found.yaw - cube_yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4) < 0.2
    assert np.linalg.norm(found.pos[:2] - cube_xy) < 0.012
    assert TABLE_TOP + grasp.FINGERTIP < found.pos[2] < TABLE_TOP + 0.04
    hand = grasp.hand_boxes(scene, found.pos, found.yaw, 0.003)
    assert not overlap(hand, boxes_of(scene, "")).any() and not overlap(hand, boxes_of(scene, "cube_1")).any()


def test_neighbours_decide_between_the_sides():
    state = with_walls(example_state(), axis=1, gap=0.055)  # only grasps along x are left
    found = grasp.find_grasp(scene_of(state), "cube_1")
    assert found is not None and abs(nearest_yaw(found.yaw - np.pi / 2)) < 0.3
    assert grasp.find_grasp(scene_of(with_walls(state, axis=0, gap=0.055)), "cube_1") is None


def test_the_hand_has_room_where_the_object_goes():
    """Walls beside the tray leave only grasps along y; the cube itself stands free."""
    state = with_walls(example_state(), axis=0, gap=0.055, y=0.2, half_height=0.06)
    scene = scene_of(state)
    placement = placements.on_object(scene, "cube_1", "tray_1")
    assert abs(nearest_yaw(grasp.find_grasp(scene, "cube_1", placement=placement).yaw)) < 0.3
    state = with_walls(state, axis=1, gap=0.055, y=0.2, half_height=0.06)  # no room at all there: any grasp will do
    assert grasp.find_grasp(scene_of(state), "cube_1", placement=placement) is not None


def test_what_has_failed_is_avoided_and_what_is_too_wide_refused():
    scene = scene_of(example_state())
    first = grasp.find_grasp(scene, "cube_1")
    second = grasp.find_grasp(scene, "cube_1", avoid=[first])
    assert second is not None and grasp.differs(first, second)
    wide = scene_of(with_box(example_state(), [0.2, -0.2, TABLE_TOP + 0.05], [0.06, 0.06, 0.05]))
    assert grasp.find_grasp(wide, "box_4") is None


def test_a_plan_without_a_grasp_waits_instead_of_failing():
    scene = scene_of(with_walls(with_walls(example_state(), axis=0, gap=0.045), axis=1, gap=0.045))
    script = pick_place.pick(scene, "cube_1")
    actions = [next(script)] + [script.send(scene) for _ in range(pick_place.PAUSE - 1)]
    assert all(action[6] == OPEN and not action[:6].any() for action in actions)
    with pytest.raises(StopIteration):
        script.send(scene)


def test_a_grasp_is_searched_again_only_after_something_has_moved(monkeypatch):
    searched = []
    monkeypatch.setattr(pick_place, "find_grasp", lambda scene, name, *_: searched.append(scene.pose(name).pos))
    scene = scene_of(example_state())
    for cube_x, searches in ((0.0, 1), (0.0005, 1), (0.05, 2), (0.05, 2)):
        moved = SceneState.from_state(scene.world, example_state((cube_x, 0.0)), 0)
        next(pick_place.pick(moved, "cube_1"))
        assert len(searched) == searches, cube_x


def test_slanting_sides_are_reported_apart():
    strip = np.repeat([-2, -1, 0, 1], 2)
    across = np.tile([-0.02, 0.02], 4)
    assert grasp.wedge_and_lean(across, strip) == (0, 0)
    wedge, lean = grasp.wedge_and_lean(across * (1 + 0.1 * strip), strip)
    assert wedge == pytest.approx(0.012) and lean == 0
    wedge, lean = grasp.wedge_and_lean(across + 0.002 * strip, strip)
    assert wedge == pytest.approx(0) and lean == pytest.approx(0.006)


def test_a_roof_tapers_and_a_funnel_does_not():
    z = np.repeat([0.001, 0.005, 0.009], 2)
    roof = np.array([-1, 1, -0.8, 0.8, -0.6, 0.6]) * 0.02
    assert grasp.taper(roof, z) == pytest.approx(0.016)
    assert grasp.taper(roof, 0.01 - z) == 0


def test_solid_points_fill_the_cube():
    scene = scene_of(example_state((0.1, 0.05), 0.4))
    points = solid_points(scene, "cube_1")
    local = scene.pose("cube_1").inverse_apply(points)
    assert np.abs(local).max() == pytest.approx(0.02) and len(points) > 500
    np.testing.assert_allclose(points.mean(axis=0), scene.pose("cube_1").pos, atol=1e-9)


def test_resting_height_is_the_supports_top():
    scene = scene_of(example_state())
    placement = placements.on_object(scene, "cube_1", "tray_1")
    np.testing.assert_allclose(placement.pos, [0, 0.2, TABLE_TOP + 0.01 + 0.02], atol=0.002)
    on_table = placements.resting_pos(scene, "cube_1", np.array([0.3, -0.3]), "")
    np.testing.assert_allclose(on_table, [0.3, -0.3, TABLE_TOP + 0.02], atol=0.002)


def test_a_region_is_filled_where_it_is_free():
    state = example_state()
    sites = state["static"]["sites"]
    sites.update(
        name=["tray_1_region"],
        body=np.array([3], np.int32),
        pos=np.array([[0, 0, 0.006]]),
        quat_wxyz=np.array([[1.0, 0, 0, 0]]),
        size=np.array([[0.06, 0.06, 0.001]]),
    )
    state["static"]["regions"] = {"tray_1_region": {"parent": "tray_1", "joints": []}}
    free = placements.in_region(scene_of(state), "cube_1", "tray_1_region")
    np.testing.assert_allclose(free.pos[:2], [0, 0.2])
    taken = with_box(state, [0, 0.2, TABLE_TOP + 0.03], [0.015, 0.015, 0.02])
    beside = placements.in_region(scene_of(taken), "cube_1", "tray_1_region")
    away = np.abs(beside.pos[:2] - [0, 0.2])
    assert away.max() > 0.035 and away.max() <= 0.06 and beside.support == "tray_1"


def test_travel_height_passes_over_what_stands_in_the_way():
    tall = with_box(example_state(), [0, 0.1, TABLE_TOP + 0.15], [0.02, 0.02, 0.15])
    start, end = np.array([0, 0, 1.0]), np.array([0, 0.2, 1.0])
    over = pick_place.travel_height(scene_of(tall), start, end, below=0.02)
    assert over == pytest.approx(TABLE_TOP + 0.3 + 0.02 + pick_place.CLEARANCE)
    away = pick_place.travel_height(scene_of(tall), start, np.array([0, -0.2, 1.0]), below=0.02)
    assert away == pytest.approx(TABLE_TOP + 0.3 - grasp.PALM + pick_place.CLEARANCE)  # only the palm passes over
    farther = pick_place.travel_height(scene_of(tall), start - [0, 0.05, 0], np.array([0, -0.2, 1.0]), below=0.02)
    assert farther < TABLE_TOP + 0.1


def test_no_grasp_is_out_of_the_arms_reach():
    base = scene_of(example_state()).world.base_pos
    assert grasp.find_grasp(scene_of(example_state((0.3, 0.0))), "cube_1") is None
    near, far = (base + np.array([x, 0, 0.1]) for x in (0.5, 0.8))
    assert motion.stretch(near, base) < motion.COMFORTABLE < motion.FARTHEST < motion.stretch(far, base)


def test_targets_are_pulled_back_into_the_arms_reach():
    base = np.array([-0.66, 0.1, 0.9])
    for pos in base + np.random.default_rng(0).uniform(-1.2, 1.2, (300, 3)):
        nearer = motion.within_reach(pos, base)
        assert (
            motion.stretch(nearer, base) <= motion.FARTHEST + 1e-9 or np.hypot(*(pos - base)[:2]) < motion.WRIST_TO_HAND
        )
        if motion.stretch(pos, base) <= motion.FARTHEST:
            np.testing.assert_array_equal(nearer, pos)
        else:  # in the same direction, no farther out
            assert abs(np.cross((nearer - base)[:2], (pos - base)[:2])) < 1e-9
            assert np.hypot(*(nearer - base)[:2]) <= np.hypot(*(pos - base)[:2]) + 1e-9
