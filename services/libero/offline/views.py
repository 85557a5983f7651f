"""A data set as one policy sees it: its cameras, its state, and what was done in the order of the policy's action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.libero.profiles import OPENVLA, PROFILES
from vla_contract import Observation, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, Part, in_words, total
from vla_datasets import libero
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_evaluation.pictures import images, transforms

COLUMNS = {"state": libero.STATE, "action": libero.ACTION}  # what LeRobot calls them where no modality.json does
SIDE = 1e-3  # how far beyond a gripper's range a recorded one may lie, by rounding


@dataclass(frozen=True)
class Slice:
    """Numbers `start` to `end` of a column."""

    column: str
    start: int
    end: int


@dataclass(frozen=True)
class View:
    """See the module's docstring; make one with `view`.

    videos   the policy's camera -> the data set's film
    action   where each number of the policy's action stands; state: of its state, empty where it takes none
    turned   numbers of the action whose gripper is turned round to the policy's convention, with how
    notes    what was done to make the two fit, in words
    """

    dataset: LeRobotDataset
    info: PolicyInfo
    videos: Mapping[str, str]
    action: tuple[Slice, ...]
    state: tuple[Slice, ...]
    turned: Mapping[int, Part] = field(default_factory=dict)
    unnorm_key: str | None = None
    notes: tuple[str, ...] = ()

    def true_actions(self, episode: int) -> np.ndarray:
        """Returns what was done, float64 [T, n], in the policy's convention."""
        return self._turned(_read(self.dataset.columns(episode), self.action))

    def states(self, episode: int) -> np.ndarray:
        """Returns the robot's state, float32 [T, m]; m is 0 where the policy takes none."""
        columns = self.dataset.columns(episode)
        read = _read(columns, self.state) if self.state else np.zeros((len(columns[self.action[0].column]), 0))
        return read.astype(np.float32)

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns least and largest number of each dimension of the action in the whole data set, float64 [n]."""
        known = self.dataset.statistics()
        ends = [_read({key: one[name][None] for key, one in known.items()}, self.action) for name in ("min", "max")]
        both = self._turned(np.concatenate(ends))
        return both.min(0), both.max(0)

    def pictures(self, episode: int, steps: Sequence[int]) -> list[dict[str, np.ndarray]]:
        """Returns for each of those steps camera -> picture, as the evaluator would send it."""
        films = {camera: self.dataset.frames(episode, key, steps) for camera, key in self.videos.items()}
        return [{camera: self._picture(film[i], camera) for camera, film in films.items()} for i in range(len(steps))]

    def observation(
        self, images: Mapping[str, np.ndarray], state: np.ndarray, step: int, instruction: str, session: str
    ) -> Observation:
        """Returns what the policy is sent."""
        return Observation(
            images, state if state.size else None, instruction, session, step, unnorm_key=self.unnorm_key
        )

    def _turned(self, actions: np.ndarray) -> np.ndarray:
        for place, part in self.turned.items():
            values = actions[:, place]
            actions[:, place] = 1 - 2 * values if part == GRIPPER_CLOSES else (1 - values) / 2
        return actions

    def _picture(self, frame: np.ndarray, camera: str) -> np.ndarray:
        """LIBERO's sets hold frames that are turned already; a profile begins with frames as they are drawn."""
        size = self.info.image_hw
        if self.videos[camera] in _LIBEROS:
            frame = images.prepare(frame[::-1, ::-1], PROFILES.get(self.info.profile or "", OPENVLA))
        if size is None or frame.shape[:2] == size:
            return np.ascontiguousarray(frame)
        if size[0] != size[1]:
            raise DatasetError(
                f"camera {camera} is {frame.shape[0]}x{frame.shape[1]}, policy {self.info.name!r} takes "
                f"{size[0]}x{size[1]}; only square pictures are resized: make the set with that size"
            )
        return transforms.resize_lanczos3(frame, size[0])


_LIBEROS = {names[0] for names in libero.CAMERAS.values()}


def view(dataset: LeRobotDataset, info: PolicyInfo, cameras: Mapping[str, str], unnorm_key: str | None = None) -> View:
    """Returns the data set as that policy sees it.

    cameras: the policy's camera -> the set's, where their names do not tell. Raises DatasetError naming what the set
    lacks, and ValueError for a policy that cannot be asked so.
    """
    if info.needs_privileged:
        raise ValueError(f"policy {info.name!r} works from the simulator's state, which no data set has; ask another")
    videos = {camera: _video(dataset, info, camera, cameras.get(camera)) for camera in info.cameras}
    action, state = (_places(dataset, kind, getattr(info, kind), info.name) for kind in ("action", "state"))
    if isinstance(dataset, LeRobotDataset):
        dataset.require_current_statistics({one.column for one in action})
    turned = _to_turn(dataset, info.action, action)
    notes = [f"{camera} is shown {key}" for camera, key in videos.items()]
    notes += [f"the set's gripper is turned round to the policy's: {part.convention}" for part in turned.values()]
    return View(dataset, info, videos, action, state, turned, unnorm_key, tuple(notes))


def _video(dataset: LeRobotDataset, info: PolicyInfo, camera: str, told: str | None) -> str:
    """Returns the film that a camera is shown: as told; by the policy's own name for it; by LIBERO's; the only one."""
    named = (dataset.modality or {}).get("video", {})
    pairs = (pair.split(" = video.") for pair in info.details.get("cameras", "").split(", "))
    theirs = dict(pair for pair in pairs if len(pair) == 2).get(camera, camera)
    for name in (told,) if told else (theirs, camera, libero.video_key(camera)):
        for key in (name, named.get(name, {}).get("original_key"), f"observation.images.{name}"):
            if key in dataset.video_keys:
                return key
    if len(dataset.video_keys) == len(info.cameras) == 1 and not told:
        return dataset.video_keys[0]
    raise DatasetError(
        f"{dataset.name} has no film {told or camera!r} (it has {', '.join(dataset.video_keys) or 'none'}); say which "
        f"one policy {info.name!r} is to see: --cameras {camera}=FILM"
    )


def _places(dataset: LeRobotDataset, kind: str, parts: Sequence[Part], policy: str) -> tuple[Slice, ...]:
    """Returns where a policy's parts stand: by their names in modality.json, else one after the other in the column."""
    if not parts:
        return ()
    named = (dataset.modality or {}).get(kind, {})
    found = [named.get(part.name) for part in parts]
    if all(one and one["end"] - one["start"] == part.size for one, part in zip(found, parts, strict=True)):
        return tuple(Slice(one.get("original_key") or COLUMNS[kind], one["start"], one["end"]) for one in found)
    key = COLUMNS[kind]
    width = int(np.prod(dataset.features.get(key, {"shape": [0]})["shape"]))
    if width != total(parts):
        raise DatasetError(
            f"{dataset.name}'s {key} has {width} numbers ({', '.join(named) or 'no names'}); policy {policy!r} has "
            f"{total(parts)}: {in_words(parts)}. Serve a checkpoint that was trained on this robot"
        )
    return (Slice(key, 0, width),)


def _to_turn(dataset: LeRobotDataset, parts: Sequence[Part], places: Sequence[Slice]) -> dict[int, Part]:
    """Returns the numbers whose gripper the set tells in [0, 1], 1 open, and the policy in [-1, 1], or other way."""
    stated = dataset.statistics()
    least = _read({key: one["min"][None] for key, one in stated.items()}, places)[0]
    found, at = {}, 0
    for part in parts:
        below_nought = least[at] < -SIDE
        if (part == GRIPPER_CLOSES and not below_nought) or (part == GRIPPER_OPENS and below_nought):
            found[at] = part
        at += part.size
    return found


def _read(columns: Mapping[str, np.ndarray], places: Sequence[Slice]) -> np.ndarray:
    """Returns float64 [T, n] of a column's rows."""
    found = []
    for one in places:
        if one.column not in columns:
            raise DatasetError(f"the data set has no column {one.column!r}; it has {', '.join(columns)}")
        rows = np.asarray(columns[one.column], np.float64)
        found.append(rows.reshape(len(rows), -1)[:, one.start : one.end])
    return np.concatenate(found, axis=1)
