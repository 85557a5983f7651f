"""A data set in a policy's terms: its cameras, its state, and the recorded actions in the policy's order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from vla_contract import Observation, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, Part, format_parts, total
from vla_datasets.dataset import Dataset
from vla_datasets.errors import DatasetError
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.metadata import ACTION, STATE
from vla_evaluation.pictures import images, transforms
from vla_evaluation.profiles import Profile

COLUMNS = {"state": STATE, "action": ACTION}  # unless modality.json names others
GRIPPER_TOLERANCE = 1e-3  # how far beyond a gripper's range a recorded one may be, by rounding
READ_AHEAD = 8  # observations whose frames are in memory


class ColumnSlice(NamedTuple):
    """Numbers `start` to `end` of a column."""

    column: str
    start: int
    end: int


@dataclass(frozen=True)
class PolicyView:
    """Made with `view_as`.

    videos          the policy's camera -> the data set's video
    action, state   column and range of each part of the policy's action and state; no state if it takes none
    flipped         dimensions of the action whose gripper is converted to the policy's convention, with the part
    profile         prepares the frames of `rotated_videos`, which are stored turned by 180°
    notes           the conversions between the two
    """

    dataset: Dataset
    info: PolicyInfo
    videos: Mapping[str, str]
    action: tuple[ColumnSlice, ...]
    state: tuple[ColumnSlice, ...]
    flipped: Mapping[int, Part]
    profile: Profile
    rotated_videos: frozenset[str]
    unnorm_key: str | None = None
    notes: tuple[str, ...] = ()

    def recorded_actions(self, episode: int) -> np.ndarray:
        """Return float64 [T, n] in the policy's convention."""
        return self._flip(_read(self.dataset.columns(episode), self.action))

    def recorded_states(self, episode: int) -> np.ndarray:
        """Return the robot's state, float32 [T, m]; m is 0 if the policy takes none."""
        columns = self.dataset.columns(episode)
        if not self.state:
            return np.zeros((len(columns[self.action[0].column]), 0), np.float32)
        return _read(columns, self.state).astype(np.float32)

    def ranges(self) -> np.ndarray:
        """Return the smallest and largest number of each action dimension in the whole data set, float64 [2, n]."""
        statistics = self.dataset.statistics()
        ends = [{key: statistic[name][None] for key, statistic in statistics.items()} for name in ("min", "max")]
        limits = self._flip(np.concatenate([_read(end, self.action) for end in ends]))
        return np.sort(limits, axis=0)

    def observations(self, episode: int, steps: Sequence[int], instruction: str, session: str) -> Iterator[Observation]:
        """Yield the observation of each step, with frames as the evaluator would send them."""
        states = self.recorded_states(episode)
        remaining = iter(steps)
        while batch := list(islice(remaining, READ_AHEAD)):
            videos = {camera: self.dataset.frames(episode, key, batch) for camera, key in self.videos.items()}
            for i, step in enumerate(batch):
                frames = {camera: self._prepare(video[i], camera) for camera, video in videos.items()}
                state = states[step] if self.state else None
                yield Observation(frames, state, instruction, session, step, unnorm_key=self.unnorm_key)

    def _flip(self, actions: np.ndarray) -> np.ndarray:
        for dimension, part in self.flipped.items():
            values = actions[:, dimension]
            actions[:, dimension] = 1 - 2 * values if part == GRIPPER_CLOSES else (1 - values) / 2
        return actions

    def _prepare(self, frame: np.ndarray, camera: str) -> np.ndarray:
        """Prepare a frame as the profile does; a frame that is stored turned by 180° is turned back first."""
        size = self.info.image_hw
        if self.videos[camera] in self.rotated_videos:
            frame = images.prepare(frame[::-1, ::-1], self.profile)
        if size is None or frame.shape[:2] == size:
            return np.ascontiguousarray(frame)
        if size[0] != size[1]:
            raise DatasetError(
                f"camera {camera} is {frame.shape[0]}x{frame.shape[1]}, policy {self.info.name!r} takes "
                f"{size[0]}x{size[1]}; only square images are resized; create the data set with that size"
            )
        return transforms.resize_lanczos3(frame, size[0])


def view_as(
    dataset: Dataset,
    info: PolicyInfo,
    profiles: Mapping[str, Profile],
    usual_cameras: Mapping[str, str],
    cameras: Mapping[str, str],
    unnorm_key: str | None = None,
) -> PolicyView:
    """Return the data set in a policy's terms.

    Args:
        profiles: the benchmark's; the first one is used if the policy names none
        usual_cameras: the benchmark's camera -> its video in the benchmark's own data sets, stored turned by 180°
        cameras: the policy's camera -> the data set's video, where names differ
    Raises:
        DatasetError if the data set has no suitable video or column, ValueError if the policy needs a simulator.
    """
    if info.needs_privileged:
        raise ValueError(
            f"policy {info.name!r} needs the simulator's state, which data sets do not have; use another policy"
        )
    videos = {camera: _find_video(dataset, info, camera, usual_cameras, cameras.get(camera)) for camera in info.cameras}
    action, state = (_find_columns(dataset, kind, getattr(info, kind), info.name) for kind in ("action", "state"))
    if isinstance(dataset, LeRobotDataset):
        dataset.require_current_statistics({source.column for source in action})
    # dimensions with different conventions: [0, 1] with 1 open against [-1, 1] with 1 closed
    statistics = dataset.statistics()
    smallest = _read({key: statistic["min"][None] for key, statistic in statistics.items()}, action)[0]
    flipped, dimension = {}, 0
    for part in info.action:
        is_signed = smallest[dimension] < -GRIPPER_TOLERANCE
        if (part == GRIPPER_CLOSES and not is_signed) or (part == GRIPPER_OPENS and is_signed):
            flipped[dimension] = part
        dimension += part.size
    notes = [f"{camera}: video {key}" for camera, key in videos.items()]
    notes += [f"gripper converted to the policy's convention: {part.convention}" for part in flipped.values()]
    profile = profiles.get(info.profile or "") or next(iter(profiles.values()))
    rotated = frozenset(usual_cameras.values())
    return PolicyView(dataset, info, videos, action, state, flipped, profile, rotated, unnorm_key, tuple(notes))


def _find_video(
    dataset: Dataset, info: PolicyInfo, camera: str, usual_cameras: Mapping[str, str], requested: str | None
) -> str:
    """Return a camera's video: the requested one; by the policy's name for it; by the benchmark's; the only one."""
    named = (dataset.modality or {}).get("video", {})
    pairs = (pair.split(" = video.") for pair in info.details.get("cameras", "").split(", "))
    policy_name = dict(pair for pair in pairs if len(pair) == 2).get(camera, camera)
    for name in (requested,) if requested else (policy_name, camera, usual_cameras.get(camera, camera)):
        for key in (name, named.get(name, {}).get("original_key"), f"observation.images.{name}"):
            if key in dataset.video_keys:
                return key
    if len(dataset.video_keys) == len(info.cameras) == 1 and not requested:
        return dataset.video_keys[0]
    raise DatasetError(
        f"{dataset.name} has no video {requested or camera!r} (it has {', '.join(dataset.video_keys) or 'none'}); "
        f"choose one for policy {info.name!r}: --cameras {camera}=VIDEO"
    )


def _find_columns(dataset: Dataset, kind: str, parts: Sequence[Part], policy: str) -> tuple[ColumnSlice, ...]:
    """Return the columns of a policy's parts: by their names in modality.json, else consecutive in one column."""
    if not parts:
        return ()
    named = (dataset.modality or {}).get(kind, {})
    entries = [named.get(part.name) for part in parts]
    if all(entry and entry["end"] - entry["start"] == part.size for entry, part in zip(entries, parts, strict=True)):
        sources = [entry.get("original_key") or COLUMNS[kind] for entry in entries]
        return tuple(ColumnSlice(key, row["start"], row["end"]) for key, row in zip(sources, entries, strict=True))
    key = COLUMNS[kind]
    width = int(np.prod(dataset.features.get(key, {"shape": [0]})["shape"]))
    if width != total(parts):
        raise DatasetError(
            f"{dataset.name}'s {key} has {width} numbers ({', '.join(named) or 'no names'}); policy {policy!r} has "
            f"{total(parts)}: {format_parts(parts)}. Serve a checkpoint that was trained on this robot"
        )
    return (ColumnSlice(key, 0, width),)


def _read(columns: Mapping[str, np.ndarray], slices: Sequence[ColumnSlice]) -> np.ndarray:
    """Return float64 [T, n] of columns' rows."""
    values = []
    for source in slices:
        if source.column not in columns:
            raise DatasetError(f"the data set has no column {source.column!r}; it has {', '.join(columns)}")
        rows = np.asarray(columns[source.column], np.float64)
        values.append(rows.reshape(len(rows), -1)[:, source.start : source.end])
    return np.concatenate(values, axis=1)
