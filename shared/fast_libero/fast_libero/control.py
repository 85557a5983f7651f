"""robosuite's operational-space controller (OSC_POSE) and control step, bit-identical and faster.

Per physics step the original runs MuJoCo's forward pass three times: on its own, when the controller reads its state,
and inside `mj_step`. Kinematics, collisions and velocities are the same each time. Only the constraint solver differs,
because each solve starts from the previous result. So here the solver runs as often as in the original, and everything
before it once. In addition, names are looked up and limits computed once per model instead of once per step.

Dot products use the same library as the original (numpy's or numba's BLAS) and the same memory order: another order may
round differently in the last bit, which changes the rollout after a few contacts.
"""

from typing import Any, NamedTuple

import mujoco
import numpy as np

ARM_DOF = 7
GRIPPER_SPEED = 0.01  # of its range [-1, 1], per physics step


class _ArmState(NamedTuple):
    """The controller's input: gripper-site pose and velocity, joints, Jacobians, mass matrix."""

    pos: np.ndarray  # [3]
    mat: np.ndarray  # [3, 3]
    vel_pos: np.ndarray  # [3]
    vel_ori: np.ndarray  # [3]
    joint_pos: np.ndarray  # [7]
    joint_vel: np.ndarray  # [7]
    jac_pos: np.ndarray  # [3, 7], Fortran order as all matrices below
    jac_ori: np.ndarray  # [3, 7]
    jac: np.ndarray  # [6, 7]
    mass: np.ndarray  # [7, 7]


class ArmControl:
    """Drives one Panda by OSC_POSE actions: delta position in units of 5 cm, delta rotation of 0.5 rad, gripper ±1."""

    def __init__(self, domain: Any):
        """Read parameters and addresses from a domain that `is_supported` and whose robot robosuite has just reset."""
        from robosuite.utils import control_utils

        self._osc = control_utils
        robot = domain.robots[0]
        controller = robot.controller
        self._controller, self._gains = controller, (controller.kp, controller.kd)
        model, data = domain.sim.model._model, domain.sim.data._data
        self._model, self._data = model, data
        self._site = domain.sim.model.site_name2id(controller.eef_name)
        self._dof = _block(controller.qvel_index)
        self._gains_pos, self._gains_ori = (
            (controller.kp[:3], controller.kd[:3]),
            (controller.kp[3:6], controller.kd[3:6]),
        )
        self._wrench = np.zeros(6)
        self._torque_low, self._torque_high = robot.torque_limits

        fingers = [model.actuator(name).id for name in robot.gripper.actuators]
        span = model.actuator_ctrlrange[fingers]
        self._finger_bias = (0.5 * (span[:, 1] + span[:, 0])).tolist()
        self._finger_weight = (0.5 * (span[:, 1] - span[:, 0])).tolist()

        controller.scale_action(np.zeros(6))  # computes the three below
        self._scale = controller.action_scale
        self._shift_in, self._shift_out = controller.action_input_transform, controller.action_output_transform
        self._input_low, self._input_high = controller.input_min, controller.input_max

        # the state of a fresh controller, which it read before the init state was set and uses once
        self._start = _ArmState(
            controller.ee_pos,
            controller.ee_ori_mat,
            controller.ee_pos_vel,
            controller.ee_ori_vel,
            controller.joint_pos,
            controller.joint_vel,
            controller.J_pos,
            controller.J_ori,
            controller.J_full,
            controller.mass_matrix,
        )
        self._rest_joints = controller.initial_joint
        self._start_goal = controller.goal_pos.copy(), controller.goal_ori.copy()

        # views into MuJoCo's memory: a look-up through its bindings costs as much as a small product
        self._site_pos, self._site_mat = data.site_xpos[self._site], data.site_xmat[self._site].reshape(3, 3)
        self._qvel, self._arm_qpos = data.qvel, data.qpos[_block(controller.qpos_index)]
        self._arm_qvel, self._gravity, self._inertia = data.qvel[self._dof], data.qfrc_bias[self._dof], data.qM
        self._arm_torque = data.ctrl[_block(robot._ref_joint_actuator_indexes)]
        self._finger_target = data.ctrl[_block(fingers)]
        self._mass = np.zeros((model.nv, model.nv))
        self._jac_pos, self._jac_ori = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        self.reset()

    def reset(self) -> None:
        """Reset goal and gripper, as if the controller and gripper were newly built."""
        self._goal_pos, self._goal_ori = self._start_goal
        self._fingers = (0.0, 0.0)
        self._fresh = True

    def substep(self, action: np.ndarray | None, gripper: float) -> None:
        """Advances the simulation by one physics step (2 ms); `action` [6] sets a new goal, None keeps the last one."""
        model, data = self._model, self._data
        mujoco.mj_step1(model, data)
        mujoco.mj_fwdActuation(model, data)
        mujoco.mj_fwdAcceleration(model, data)
        mujoco.mj_fwdConstraint(model, data)
        if self._fresh:
            arm, self._fresh = self._start, False
        else:
            mujoco.mj_fwdConstraint(model, data)
            arm = self._read_arm()
        self._arm = arm
        if action is not None:
            self._set_goal(action, arm)
        self._arm_torque[:] = self._torques(arm)
        self._finger_target[:] = self._move_fingers(gripper)
        mujoco.mj_step2(model, data)

    def matches(self, robot: Any) -> bool:
        """Return whether the robot's controller is still the one of the last reset, with its settings."""
        controller = robot.controller
        same = controller is self._controller and controller.kp is self._gains[0] and controller.kd is self._gains[1]
        return same and _is_plain(controller)

    def write_back(self, robot: Any) -> None:
        """Leave robosuite's robot, controller and gripper as its own last substep leaves them."""
        controller, arm = self._controller, self._arm
        controller.ee_pos, controller.ee_ori_mat = arm.pos.copy(), arm.mat.copy()
        controller.ee_pos_vel, controller.ee_ori_vel = arm.vel_pos, arm.vel_ori
        controller.joint_pos, controller.joint_vel = arm.joint_pos, arm.joint_vel
        controller.J_pos, controller.J_ori, controller.J_full = arm.jac_pos, arm.jac_ori, arm.jac
        controller.mass_matrix, controller.torques = arm.mass, self._unlimited
        controller.goal_pos, controller.goal_ori = self._goal_pos.copy(), self._goal_ori.copy()
        controller.new_update = True
        robot.torques = self._arm_torque.copy()
        robot.gripper.current_action = np.array(self._fingers)

    def _read_arm(self) -> _ArmState:
        model, data, dof = self._model, self._data, self._dof
        mujoco.mj_jacSite(model, data, self._jac_pos, self._jac_ori, self._site)
        mujoco.mj_fullM(model, self._mass, self._inertia)
        jac = np.empty((6, ARM_DOF), order="F")
        jac[:3], jac[3:] = self._jac_pos[:, dof], self._jac_ori[:, dof]
        return _ArmState(
            self._site_pos,
            self._site_mat,
            np.dot(self._jac_pos, self._qvel),
            np.dot(self._jac_ori, self._qvel),
            self._arm_qpos.copy(),
            self._arm_qvel.copy(),
            jac[:3].copy(order="F"),
            jac[3:].copy(order="F"),
            jac,
            self._mass[dof, dof].copy(order="F"),
        )

    def _set_goal(self, action: np.ndarray, arm: _ArmState) -> None:
        delta = (np.clip(action, self._input_low, self._input_high) - self._shift_in) * self._scale + self._shift_out
        if delta[3:].any():  # without a rotation, keep the old goal instead of the current pose
            self._goal_ori = self._osc.set_goal_orientation(delta[3:], arm.mat)
        self._goal_pos = arm.pos + delta[:3]

    def _torques(self, now: _ArmState) -> np.ndarray:
        """Return joint torques [7] in Nm: both wrenches through their own inertia, gravity, and the null space."""
        osc, wrench, (kp_pos, kd_pos), (kp_ori, kd_ori) = self._osc, self._wrench, self._gains_pos, self._gains_ori
        force = (self._goal_pos - now.pos) * kp_pos + -now.vel_pos * kd_pos
        torque = osc.orientation_error(self._goal_ori, now.mat) * kp_ori + -now.vel_ori * kd_ori
        _, inertia_pos, inertia_ori, null = osc.opspace_matrices(now.mass, now.jac, now.jac_pos, now.jac_ori)
        np.dot(inertia_pos, force, out=wrench[:3])
        np.dot(inertia_ori, torque, out=wrench[3:])
        joint = np.dot(now.jac.T, wrench) + self._gravity
        joint += osc.nullspace_torques(now.mass, null, self._rest_joints, now.joint_pos, now.joint_vel)
        self._unlimited = joint.copy()
        return np.minimum(np.maximum(joint, self._torque_low, out=joint), self._torque_high, out=joint)

    def _move_fingers(self, gripper: float) -> tuple[float, float]:
        """Return both finger controls after moving their target one notch towards closed (+) or open (-)."""
        notch = GRIPPER_SPEED * ((gripper > 0) - (gripper < 0))
        left, right = self._fingers
        left, right = max(-1.0, min(1.0, left - notch)), max(-1.0, min(1.0, right + notch))
        self._fingers = left, right
        bias, weight = self._finger_bias, self._finger_weight
        return bias[0] + weight[0] * left, bias[1] + weight[1] * right


def _block(indices: Any) -> slice:
    """Return the slice of consecutive `indices`; indexing with it gives a view, not a copy."""
    first, last = int(indices[0]), int(indices[-1])
    assert list(indices) == list(range(first, last + 1)), indices
    return slice(first, last + 1)


def is_supported(domain: Any) -> bool:
    """Return whether `ArmControl` can drive a robosuite environment: one Panda with LIBERO's OSC_POSE settings."""
    robot, *others = domain.robots
    return bool(
        not others
        and type(robot.controller).__name__ == "OperationalSpaceController"
        and type(robot.gripper).__name__ == "PandaGripper"
        and len(robot._ref_joint_pos_indexes) == ARM_DOF
        and _is_plain(robot.controller)
    )


def _is_plain(controller: Any) -> bool:
    modes = controller.use_delta and controller.use_ori and controller.uncoupling
    extras = ("position_limits", "orientation_limits", "interpolator_pos", "interpolator_ori")
    return bool(
        controller.impedance_mode == "fixed" and modes and all(getattr(controller, name) is None for name in extras)
    )
