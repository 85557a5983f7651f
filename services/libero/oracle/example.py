"""An example scene in the format of `privileged.observe`, for warm-up and for tests without a simulator."""

from __future__ import annotations

from typing import Any

import numpy as np

TABLE_TOP = 0.9  # m


def example_state(cube_xy: tuple[float, float] = (0.0, 0.0), cube_yaw: float = 0.0) -> dict[str, Any]:
    """Return the state of a table with a 4 cm cube and a flat tray 20 cm to its left; goal: the cube on the tray.

    `cube_xy` m and `cube_yaw` rad place the cube. The hand hovers 15 cm above the table's middle.
    """
    table, cube, tray = [0, 0, TABLE_TOP - 0.025], [*cube_xy, TABLE_TOP + 0.02], [0, 0.2, TABLE_TOP + 0.005]
    body_pos = np.array([[0, 0, 0], table, cube, tray], dtype=np.float64)
    quat = np.tile([1.0, 0, 0, 0], (len(body_pos), 1))
    quat[2] = [np.cos(cube_yaw / 2), 0, 0, np.sin(cube_yaw / 2)]
    none, no_quat, no_body = np.zeros((0, 3)), np.zeros((0, 4)), np.zeros(0, np.int32)
    return {
        "eef_pos": np.array([-0.1, 0.0, TABLE_TOP + 0.15]),
        "eef_rot": np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, -1]]),
        "eef_vel": np.zeros(6),
        "gripper_qpos": np.array([0.039, -0.039]),
        "robot_qpos": np.array([0, -0.16, 0, -2.44, 0, 2.23, np.pi / 4]),
        "body_pos": body_pos,
        "body_quat_wxyz": quat,
        "joint_pos": np.zeros(0),
        "contacts": np.array([[1, 2], [1, 3]], dtype=np.int32),
        "goal_done": [False],
        "static": {
            "instruction": "put the cube on the tray",
            "goal": [["on", "cube_1", "tray_1"]],
            "bodies": ["world", "table", "cube_1_main", "tray_1_main"],
            "objects": {
                name: {"category": name[:-2], "movable": True, "root": body, "bodies": [body], "ranges": {}}
                for name, body in (("cube_1", 2), ("tray_1", 3))
            },
            "regions": {},
            "geoms": {
                "body": np.array([1, 2, 3], dtype=np.int32),
                "type": ["box", "box", "box"],
                "size": np.array([[0.5, 0.6, 0.025], [0.02, 0.02, 0.02], [0.06, 0.06, 0.005]]),
                "pos": np.zeros((3, 3)),
                "quat_wxyz": np.tile([1.0, 0, 0, 0], (3, 1)),
            },
            "sites": {"name": [], "body": no_body, "pos": none, "quat_wxyz": no_quat, "size": none},
            "joints": {"name": [], "type": [], "body": no_body, "pos": none, "axis": none, "range": np.zeros((0, 2))},
            "robot_base_pos": np.array([-0.66, 0.0, TABLE_TOP]),
        },
    }
