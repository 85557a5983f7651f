"""The four numbers of an action and of a state, as in metaworld's sawyer_xyz_env.py."""

from __future__ import annotations

from vla_contract.protocol.parts import Part

ACTION = (
    Part("position delta", 3, "0.01 m", "world frame, of a body that the hand is tied to", -1, 1),
    Part("gripper", 1, "1", "-1 opens, 1 closes, with the force of what lies between", -1, 1),
)
STATE = (
    Part("position", 3, "m", "world frame"),
    Part("gripper opening", 1, "0.1 m", "distance of the fingers, at most 1", 0, 1),
)
