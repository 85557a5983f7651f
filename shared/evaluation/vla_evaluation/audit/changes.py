"""Hypotheses as data: each is a change of a policy's input that would undo one fault on its side."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from vla_contract import Observation
from vla_contract.protocol.parts import Part

CROP = 0.9  # of the area, as OpenVLA's evaluation crops
SMALL = 0.7  # of a side: a strong crop
PROMPT = "In: What action should the robot take to {}?\nOut:"  # OpenVLA's


@dataclass(frozen=True)
class Change:
    """finding: a key of findings.FINDINGS; apply: the observation that is sent instead."""

    finding: str
    what: str
    apply: Callable[[Observation], Observation]


# --- images ---------------------------------------------------------------------------------------------------


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def zoomed_in(image: np.ndarray, side: float) -> np.ndarray:
    """Return the middle, `side` of height and width, at the image's size."""
    height, width = image.shape[:2]
    rows, columns = round(height * (1 - side) / 2), round(width * (1 - side) / 2)
    return resized(np.ascontiguousarray(image[rows : height - rows, columns : width - columns]), height, width)


def zoomed_out(image: np.ndarray, side: float) -> np.ndarray:
    """Return the image smaller, with its border repeated around it: a crop on the policy's side undoes this."""
    height, width = image.shape[:2]
    rows, columns = round(height * (1 - side) / 2), round(width * (1 - side) / 2)
    small = resized(image, height - 2 * rows, width - 2 * columns)
    return np.pad(small, ((rows, rows), (columns, columns), (0, 0)), "edge")


def grey(image: np.ndarray) -> np.ndarray:
    level = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    return np.repeat(level[..., None], 3, 2).round().astype(np.uint8)


def _brighter(image: np.ndarray) -> np.ndarray:
    return (255 - (255 - image.astype(np.int16)) // 2).astype(np.uint8)


def _darker(image: np.ndarray) -> np.ndarray:
    return np.clip(2 * image.astype(np.int16) - 255, 0, 255).astype(np.uint8)


IMAGE_CHANGES: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "upside down": ("flipped vertically", lambda image: image[::-1]),
    "mirrored": ("mirrored", lambda image: image[:, ::-1]),
    "turned by 180°": ("turned by 180°", lambda image: image[::-1, ::-1]),
    "BGR": ("with red and blue exchanged", lambda image: image[..., ::-1]),
    "crop missing": ("cropped to 0.9 of the area", lambda image: zoomed_in(image, CROP**0.5)),
    "cropped": ("shrunk to 0.9 of the area", lambda image: zoomed_out(image, CROP**0.5)),
    "cropped strongly": ("shrunk to half of the area", lambda image: zoomed_out(image, SMALL)),
    "range 0 to 1 read as -1 to 1": ("with doubled contrast from white", _darker),
    "range -1 to 1 read as 0 to 1": ("with halved contrast from white", _brighter),
}
PER_CAMERA = ("upside down", "turned by 180°")


def with_images(seen: Observation, change: Callable[[np.ndarray], np.ndarray], cameras: Sequence[str]) -> Observation:
    """Return the observation with some cameras' images changed."""
    images = {
        name: np.ascontiguousarray(change(image)) if name in cameras else image for name, image in seen.images.items()
    }
    return replace(seen, images=images)


def of_images(cameras: Sequence[str]) -> list[Change]:
    """Return the hypotheses about images, for all cameras and, where it is likely, for one."""
    changes = []
    for finding, (what, function) in IMAGE_CHANGES.items():
        groups = [tuple(cameras)]
        groups += [(camera,) for camera in cameras] if finding in PER_CAMERA and len(cameras) > 1 else []
        for group in groups:
            text = f"{' and '.join(group)} {'are' if len(group) > 1 else 'is'} sent {what}"
            changes.append(
                Change(finding, text, lambda seen, f=function, g=group: with_images(seen, f, g))  # type: ignore[misc]
            )
    for one, other in itertools.combinations(cameras, 2):
        changes.append(Change("cameras swapped", f"{one} and {other} are exchanged", _swapping(one, other)))
    return changes


def _swapping(one: str, other: str) -> Callable[[Observation], Observation]:
    def swap(seen: Observation) -> Observation:
        images = dict(seen.images)
        shapes = images[one].shape[:2], images[other].shape[:2]
        images[one], images[other] = resized(images[other], *shapes[0]), resized(images[one], *shapes[1])
        return replace(seen, images=images)

    return swap


# --- language -------------------------------------------------------------------------------------------------

SENTENCES: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "template of OpenVLA missing": ("in OpenVLA's prompt", lambda text: PROMPT.format(text.lower())),
    "template 'Task:' missing": ("as 'Task: …'", lambda text: f"Task: {text}"),
    "underscores expected": ("with underscores", lambda text: text.replace(" ", "_")),
}
VARIANTS: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "sensitive to case": ("in upper case", str.upper),
    "sensitive to punctuation": ("with a full stop", lambda text: text + "."),
}


def of_language() -> list[Change]:
    """Return the hypotheses about the instruction's form."""
    return [
        Change(name, f"the instruction is sent {what}", partial(_rewritten, function))
        for name, (what, function) in {**SENTENCES, **VARIANTS}.items()
    ]


def _rewritten(function: Callable[[str], str], seen: Observation) -> Observation:
    return replace(seen, instruction=function(seen.instruction))


# --- state ----------------------------------------------------------------------------------------------------


def rotation_vector(euler: np.ndarray) -> np.ndarray:
    """Return the axis-angle of roll, pitch, yaw about fixed axes."""
    return Rotation.from_euler("xyz", euler).as_rotvec()


def euler_angles(vector: np.ndarray) -> np.ndarray:
    """Return roll, pitch, yaw about fixed axes of an axis-angle [3]."""
    return Rotation.from_rotvec(vector).as_euler("xyz")


def _antipodal(vector: np.ndarray) -> np.ndarray:
    angle = np.linalg.norm(vector)
    return vector if angle < 1e-6 else vector * (1 - 2 * np.pi / angle)


ROTATIONS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "state in degrees": ("divided by 57.3", np.deg2rad),
    "state in radians, degrees expected": ("multiplied by 57.3", np.rad2deg),
    "Euler angles in place of axis-angle": ("so that its Euler angles are the axis-angle", rotation_vector),
    "axis-angle in place of Euler angles": ("as Euler angles", euler_angles),
    "rotation with the antipodal sign": ("with the antipodal sign", _antipodal),
}
QUATERNIONS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "quaternion order": ("with its last number first", lambda quat: np.roll(quat, 1)),
    "quaternion order (first)": ("with its first number last", lambda quat: np.roll(quat, -1)),
    "quaternion sign": ("negated", np.negative),
}
FINGERS: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "gripper width halved": ("doubled", lambda width: 2 * width),
    "gripper width doubled": ("halved", lambda width: width / 2),
    "gripper width negated": ("negated", np.negative),
    "gripper's second finger negated": (
        "with its last number negated", lambda width: np.concatenate([width[:-1], -width[-1:]])),
}  # fmt: skip


def of_state(parts: Sequence[Part]) -> list[Change]:
    """Return the hypotheses about the state that fit its parts."""
    changes, begin = [], 0
    blocks = []
    for part in parts:
        span = slice(begin, begin + part.size)
        blocks.append(span)
        begin += part.size
        table: Mapping[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {}
        if "rotation" in part.name or "orientation" in part.name or part.unit == "rad":
            joints = dict(list(ROTATIONS.items())[:2])
            table = {3: ROTATIONS, 4: QUATERNIONS}.get(part.size, joints)
        elif "finger" in part.name or "gripper" in part.name:
            table = dict(list(FINGERS.items())[: 4 if part.size > 1 else 3])
        for finding, (what, function) in table.items():
            changes.append(Change(finding, f"state, {part.name}, is sent {what}", _on_state(span, function)))
    if 1 < len(blocks) <= 3:
        for order in list(itertools.permutations(range(len(blocks))))[1:]:
            index = np.argsort(np.concatenate([np.arange(begin)[blocks[i]] for i in order]))
            names = ", ".join(parts[i].name for i in order)
            changes.append(
                Change(
                    "state order", f"the state is sent for a policy that reads {names}",
                    lambda seen, i=index: replace(seen, state=seen.state[i]),  # type: ignore[misc]
                )
            )  # fmt: skip
    return changes


def _on_state(span: slice, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Observation], Observation]:
    def change(seen: Observation) -> Observation:
        assert seen.state is not None
        state = seen.state.copy()
        state[span] = function(state[span].astype(np.float64))
        return replace(seen, state=state)

    return change
