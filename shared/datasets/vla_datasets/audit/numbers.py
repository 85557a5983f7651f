"""Suspicions about states and actions: delay, degrees, the gripper's range, actions of zero."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from vla_datasets import libero
from vla_datasets.audit.findings import DatasetAudit
from vla_datasets.audit.samples import Sample
from vla_datasets.dataset import Dataset
from vla_datasets.metadata import ACTION, STATE
from vla_datasets.summary import names_of

TURN = 2 * np.pi * 1.05  # rad: no joint angle or rotation is larger
ANGLE = re.compile(r"joint|shoulder|elbow|waist|wrist|forearm|roll|pitch|yaw|angle|\brad\b|\br[xyz]\b", re.IGNORECASE)
DEGREES = re.compile(r"\.pos$|^(so-?10|koch|moss|lekiwi)")  # LeRobot's own robots record degrees or percent
LAGS = 3  # steps before a change of state whose actions may explain it
MIN_ROWS, MIN_LOG_GAIN = 150, 0.3  # of the regressions of changes of state


def check(dataset: Dataset, samples: list[Sample], result: DatasetAudit) -> None:
    """Add the suspicions about numbers."""
    absent = [key for key in (STATE, ACTION) if not samples or any(not _values(sample, key).size for sample in samples)]
    if absent:
        result.cannot_tell.append(f"delay, degrees and ranges: the set has no {' and no '.join(absent)}")
        return
    idle = _zero_actions(samples, result)
    acting = [sample for sample in samples if sample.index not in idle]
    for key in (STATE, ACTION):
        _degrees(dataset, key, samples, result)
    if acting:
        _gripper(dataset, acting, result)
        _delay(acting, result)


def _values(sample: Sample, key: str) -> np.ndarray:
    return sample.state if key == STATE else sample.action


def _zero_actions(samples: list[Sample], result: DatasetAudit) -> set[int]:
    """Add episodes whose action never changes although the state does; return them."""
    ranges = np.stack([np.ptp(sample.state, axis=0) for sample in samples])
    usual = np.median(ranges, axis=0)
    moves = (ranges > 0.2 * np.where(usual > 0, usual, np.inf)).any(1)
    found = {s.index for s, moving in zip(samples, moves, strict=True) if moving and not np.ptp(s.action, axis=0).any()}
    if found:
        values = next(sample for sample in samples if sample.index in found).action[0]
        text = f"every action is {'0' if not values.any() else np.round(values, 3).tolist()}, but the state moves"
        result.add("zero actions", ACTION, sorted(found) if len(found) < len(samples) else (), text)
    return found


def _degrees(dataset: Dataset, key: str, samples: list[Sample], result: DatasetAudit) -> None:
    """Add episodes in which angles are about 57 times as large as in the others, or all of them beyond a turn."""
    peaks = np.stack([np.abs(_values(sample, key)).max(0) for sample in samples])  # [E, n]
    usual = np.median(peaks, axis=0)
    angles = _angle_columns(dataset, key)
    larger = (peaks > TURN) & (peaks > 15 * usual) & np.isin(np.arange(peaks.shape[1]), list(angles)) & (usual > 0)
    for number in np.flatnonzero(larger.sum(1) >= min(2, len(angles))) if angles else ():
        column = int(np.argmax(np.where(larger[number], peaks[number], 0)))
        text = f"up to {peaks[number, column]:.3g}, in other episodes {usual[column]:.3g}: degrees instead of radians"
        result.add("degrees", f"{key}[{column}]", [samples[number].index], text)
    if wide := [column for column in angles if usual[column] > TURN]:
        column = max(wide, key=lambda one: usual[one])
        text = f"{angles[column]} is usually up to {usual[column]:.3g}; radians stay within 6.3"
        result.add("degrees", f"{key}[{column}]", [], text)


def _parts(dataset: Dataset, key: str) -> list[dict[str, Any]]:
    """Return the meaning of each number of a column as the lab's meta/source.json states it; empty if it does not."""
    stated = (dataset.source or {}).get("state" if key == STATE else "action") or []
    return [part for part in stated if isinstance(part, dict) for _ in range(int(part.get("size", 1)))]


def _angle_columns(dataset: Dataset, key: str) -> dict[int, str]:
    """Return the names of the numbers that are angles in radians, by column: as stated, or by their names."""
    names, robot = names_of(dataset, key), str(dataset.info.get("robot_type"))
    if len(parts := _parts(dataset, key)) == len(names):
        return {column: part["name"] for column, part in enumerate(parts) if "rad" in str(part.get("unit")).split()}
    is_radian = {name: ANGLE.search(name) and not any(map(DEGREES.search, (name, robot))) for name in names}
    return {column: name for column, name in enumerate(names) if is_radian[name]}


def _gripper(dataset: Dataset, samples: list[Sample], result: DatasetAudit) -> None:
    """Add episodes whose gripper command has another range than the others', or than the set's convention."""
    parts, names = _parts(dataset, ACTION), names_of(dataset, ACTION)
    parts = parts if len(parts) == len(names) else []
    named = [part["name"] for part in parts] or names
    for column in (number for number, name in enumerate(named) if "gripper" in name.lower()):
        lows, highs = (np.array([f(sample.action[:, column]) for sample in samples]) for f in (np.min, np.max))
        where, is_libero = f"{ACTION}[{column}]", tuple(names) == libero.ACTION_NAMES
        low = parts[column].get("low") if parts else 0.0 if is_libero or _opening(dataset, samples) else None
        wide = lows < -0.5
        if low is not None and low >= 0 and wide.mean() > 0.5:
            text = f"from {lows.min():.3g} to {highs.max():.3g}; expected 0 to 1"
            result.add("gripper range", where, [], text)
            continue
        tasks = np.array(["".join(sample.episode.tasks[:1]) for sample in samples])
        for number, task in enumerate(tasks):
            alike = tasks == task
            alike = np.delete(wide, number) if alike.sum() < 3 else np.delete(wide[alike], alike[:number].sum())
            if alike.size > 1 and (alike != wide[number]).all():
                range_text = f"from {lows[number]:.3g} to {highs[number]:.3g}"
                text = f"{range_text}; in other episodes of the task from {'0' if wide[number] else '-1'} to 1"
                result.add("gripper range", where, [samples[number].index], text)


def _opening(dataset: Dataset, samples: list[Sample]) -> bool:
    """Return whether the state has a gripper opening from 0 to 1."""
    columns = [number for number, name in enumerate(names_of(dataset, STATE)) if "gripper" in name.lower()]
    values = np.concatenate([sample.state[:, columns] for sample in samples])
    return bool(values.size and values.min() > -0.1 and 0.5 < values.max() < 1.1)


def _regression(sample: Sample, scale: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [T', p] (the state, changes and actions before) and changes of state [T', n].

    shift: how many rows later the actions are taken from.
    """
    moving = scale > 0
    state = sample.state[:, moving] / scale[moving]
    change = np.diff(state, axis=0)
    steps = np.arange(LAGS, len(change) - 1)
    actions = [sample.action[steps + lag + shift] for lag in range(-LAGS, 1)]
    inputs = [state[steps], change[steps - 1], change[steps - 2], *actions, np.ones((len(steps), 1))]
    return np.concatenate(inputs, axis=1), change[steps]


def _solve(gram: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Return the coefficients of a ridge regression whose penalty does not depend on units."""
    return np.linalg.solve(gram + np.diag(1e-6 * np.diag(gram) + 1e-9), moment)


def _delay(samples: list[Sample], result: DatasetAudit) -> None:
    """Add actions recorded a step late: the next row's action explains a change of state better than the row's own.

    Actions cannot follow their effect. A policy's reaction to a change does not look like this: the next action
    adds little where the actions before are known. If noise was added to the recorded actions, it adds something to
    some numbers, so most numbers must agree.
    """
    samples = [sample for sample in samples if len(sample.action) >= 2 * LAGS + 6]
    if sum(len(sample.action) for sample in samples) < MIN_ROWS:
        result.cannot_tell.append(f"whether actions are delayed: fewer than {MIN_ROWS} steps")
        return
    scale = np.concatenate([np.diff(sample.state, axis=0) for sample in samples]).std(0)
    errors = _held_out(samples, scale)
    later, now = errors["later"].mean(0), errors["now"].mean(0)
    gain = float(np.median(_log_ratios(now, np.where(_drives(samples, scale), later, now))))
    if gain > MIN_LOG_GAIN:
        text = f"changes of state are predicted {np.exp(gain):.1f} times better from the actions of the rows after"
        result.add("action delayed", ACTION, [], f"{text}: each action seems recorded a step after its execution")
        return
    for sample, now, after in zip(samples, errors["now"], errors["shifted"], strict=True):
        if (gain := float(_log_ratios(now, after).mean())) > MIN_LOG_GAIN:
            text = f"with the next row's actions its changes of state are predicted {np.exp(gain):.1f} times better"
            result.add("action delayed", ACTION, [sample.index], text)


def _drives(samples: list[Sample], scale: np.ndarray) -> np.ndarray:
    """Return for each number of the state whether the next row's action pushes it where actions push it in general.

    A policy's reaction to a change pushes the other way.
    """
    inputs, changes = map(np.concatenate, zip(*(_regression(sample, scale, 1) for sample in samples), strict=True))
    width = samples[0].action.shape[1]
    actions = inputs[:, -1 - width : -1]
    spread = np.where(actions.std(0) > 0, actions.std(0), np.inf)
    together = (actions - actions.mean(0)).T @ changes / spread[:, None]  # [m, n]
    strongest, numbers = np.abs(together).argmax(0), np.arange(changes.shape[1])
    weights = _solve(inputs.T @ inputs, inputs.T @ changes)[-1 - width : -1]
    return weights[strongest, numbers] * together[strongest, numbers] > 0


def _held_out(samples: list[Sample], scale: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean squared errors [E, n] of changes of state, predicted by a model of the other episodes.

    now: from the actions up to the row's; later: from those a row later; shifted: the model of `now`, given those.
    """
    errors: dict[str, list[np.ndarray]] = {"now": [], "later": [], "shifted": []}
    for name, shift in (("now", 0), ("later", 1)):
        pairs = [_regression(sample, scale, shift) for sample in samples]
        grams = [(inputs.T @ inputs, inputs.T @ changes) for inputs, changes in pairs]
        gram, moment = (sum(parts) for parts in zip(*grams, strict=True))
        for sample, (inputs, changes), (own_gram, own_moment) in zip(samples, pairs, grams, strict=True):
            weights = _solve(gram - own_gram, moment - own_moment) if len(samples) > 1 else _solve(gram, moment)
            errors[name].append(((inputs @ weights - changes) ** 2).mean(0))
            if name == "now":
                later, _ = _regression(sample, scale, shift=1)
                errors["shifted"].append(((later @ weights - changes) ** 2).mean(0))
    return {name: np.stack(of) for name, of in errors.items()}


def _log_ratios(errors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the logarithm of the ratio of two errors, for each number of the state."""
    ratios: np.ndarray = np.log((errors + 1e-9) / (others + 1e-9))
    return ratios
