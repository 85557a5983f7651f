"""Checks of a policy's actions: hypotheses that transform the same answers, so they need no further requests."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.spatial.transform import Rotation

from vla_contract import PolicyInfo
from vla_contract.protocol.parts import Part
from vla_evaluation.audit.findings import Verdict, cannot_tell, fine, not_applicable, wrong
from vla_evaluation.audit.moments import AROUND, Moments
from vla_evaluation.audit.scoring import CERTAIN, Comparison, Fit, clip, compare, live_dimensions, zero
from vla_evaluation.offline.scores import dimension_names

Correction = Callable[[Moments, np.ndarray], np.ndarray]
COMPARED = 8  # actions of a chunk that agreement is measured on
BETTER = 1.05  # times that another hypothesis must agree better, with certainty
AGREES = 0.25  # correlation of an axis that can be judged
SCALE = 1.35  # factor between recorded and answered movement that is still called healthy
SHIFT = 0.6  # offset, in standard deviations of the recorded actions, that is still called healthy
TIMED = 1.05  # times that answers must agree better at another time
EXPLAINED = 0.4  # log of a size, plus an offset in deviations, that a kind of scale may leave
ABSOLUTE = 0.95  # correlation of an answer with the hand's position


@dataclass
class Outputs:
    """verdicts; correct: undoes what was found, for the checks of inputs; gain: of corrected answers."""

    info: PolicyInfo
    moments: Moments
    answers: np.ndarray  # float64 [M, H, n]
    verdicts: list[Verdict] = field(default_factory=list)
    corrections: list[Correction] = field(default_factory=list)
    shift: int = 0  # recorded step that belongs to a chunk's first action

    def __post_init__(self) -> None:
        self.names = dimension_names(self.info.action)
        self.length = min(COMPARED, self.answers.shape[1])
        self.live = live_dimensions(self.moments.at(0, self.length))
        spans = np.cumsum([0, *(part.size for part in self.info.action)])
        self.parts = [(part, np.arange(a, b)) for part, a, b in zip(self.info.action, spans, spans[1:], strict=False)]

    def correct(self, moments: Moments, answers: np.ndarray) -> np.ndarray:
        """Return answers [M, H, n] in the announced convention, up to a positive scale and an offset."""
        for correction in self.corrections:
            answers = correction(moments, answers)
        return answers

    def gain(self, moments: Moments, answers: np.ndarray) -> np.ndarray:
        """Return the gain [1 + RESAMPLES, n] of answers: corrected or as they are, whichever agrees better."""
        length = self.length
        corrected = Fit(self.correct(moments, answers)[:, :length], moments.at(self.shift, length)).gain()
        plain = Fit(answers[:, :length], moments.at(0, length)).gain()
        return max(corrected, plain, key=lambda gain: float(gain[0, self.live].sum()))

    def fit(self) -> Fit:
        answers = self.correct(self.moments, self.answers)[:, : self.length]
        return Fit(answers, self.moments.at(self.shift, self.length))

    def agreement(self) -> Comparison:
        """Return how much better than a constant the corrected answers agree, over all axes that move."""
        gain = self.fit().gain()
        return compare(gain, zero(gain), self.live)

    def add(self, correction: Correction) -> None:
        self.corrections.append(correction)


def check(info: PolicyInfo, moments: Moments, answers: np.ndarray) -> Outputs:
    """Return the verdicts about actions. answers: float64 [M, horizon, n], NaN where there was none."""
    outputs = Outputs(info, moments, answers)
    outputs.verdicts.append(moving(outputs))
    if outputs.verdicts[-1].findings == ("constant output",):
        return outputs
    for rule in (timing, tail, absolute, frame, order, sign, scale, gripper_range):
        outputs.verdicts.append(rule(outputs))
    if not outputs.agreement().is_certain:  # then no other convention can do better; only the gripper's range is known
        outputs.verdicts[1:-1] = [
            replace(one, verdict="cannot tell") if one.verdict == "fine" else one for one in outputs.verdicts[1:-1]
        ]
    return outputs


def moving(outputs: Outputs) -> Verdict:
    """Whether every axis that moves in the recording moves in the answers."""
    fit = outputs.fit()
    still = [i for i in outputs.live if fit.still[i]]
    if len(still) == len(outputs.live):
        return wrong("actions move", "constant output", "all answers are equal")
    found = []
    for i in still:
        gripper = "gripper" in outputs.names[i]
        found.append("gripper stuck" if gripper else "axis stuck")
    if found:
        names = ", ".join(outputs.names[i] for i in still)
        return wrong("actions move", tuple(dict.fromkeys(found)), f"{names}: the same number in all answers")
    return fine("actions move", f"{len(outputs.live)} of {len(outputs.names)} axes move in recording and answers")


def timing(outputs: Outputs) -> Verdict:
    """Whether a chunk's actions belong to the recorded steps in their order."""
    moments, answers = outputs.moments, outputs.correct(outputs.moments, outputs.answers)
    outputs.shift = 0

    def gain_of(chunks: np.ndarray, shift: int) -> np.ndarray:
        return Fit(chunks, moments.at(shift, chunks.shape[1])).gain(signed=False)

    # a gripper changes too seldom to tell one step
    axes = np.array([i for i in outputs.live if "gripper" not in outputs.names[i]] or outputs.live, int)
    found = []
    for shift, finding in ((-1, "delayed by one step"), (-2, "delayed by two steps"), (1, "first action dropped")):
        first = min(max(0, -shift), outputs.length - 1)  # what a delayed chunk begins with is an earlier one's
        chunks = answers[:, first : outputs.length]
        result = compare(gain_of(chunks, first + shift), gain_of(chunks, first), axes)
        found.append((result, finding, f"with what was done {abs(shift)} {'earlier' if shift < 0 else 'later'}", shift))
    if answers.shape[1] > 2:
        valid = np.isfinite(answers[..., 0]).sum(1).min() or 1
        whole = answers[:, :valid]
        result = compare(gain_of(whole[:, ::-1], 0), gain_of(whole, 0), axes)
        found.append((result, "chunk reversed", "when the chunk is read backwards", 0))
    best = max(found, key=lambda row: row[0].log_ratio)
    result, finding, text, shift = best
    evidence = f"answers agree {result.times:.2f} times as well {text}"
    longest = np.isfinite(answers[..., 0]).sum(1).max()
    is_missing = shift == 1 and longest == outputs.info.horizon - 1  # one action less than announced: less is enough
    if result.times < TIMED or result.log_ratio <= (1 if is_missing else CERTAIN) * result.deviation:
        return fine("actions in time", evidence)
    if finding == "chunk reversed":
        outputs.add(lambda _, chunks: _reversed(chunks))
    outputs.shift = shift
    return wrong("actions in time", finding, evidence)


def _reversed(chunks: np.ndarray) -> np.ndarray:
    length = int(np.isfinite(chunks[..., 0]).sum(1).max()) or 1
    return np.concatenate([chunks[:, :length][:, ::-1], chunks[:, length:]], 1)


def tail(outputs: Outputs) -> Verdict:
    """Whether the last actions of a chunk are as meaningful as the first."""
    answers = outputs.correct(outputs.moments, outputs.answers)
    length = int(np.isfinite(answers[..., 0]).any(0).sum())
    if length < 4:
        return not_applicable("chunk length", "chunks of fewer than four actions")
    moves = outputs.live
    steps = np.nanmax(np.abs(np.diff(answers[:, :length][..., moves], axis=1)), axis=(0, 2))
    repeated = length - next((k for k, size in enumerate(steps[::-1]) if size > 1e-6), length - 1)
    recorded = outputs.moments.at(outputs.shift, length)
    by_step = np.array([
        Fit(answers[:, k : k + 1], recorded[:, k : k + 1]).gain(signed=False)[0][moves].mean() for k in range(length)
    ])  # fmt: skip
    if repeated < length - 1:
        return wrong("chunk length", "chunk too long", f"actions {repeated + 1} to {length} of a chunk only repeat")
    for k in range(2, length - 1):
        before, after = by_step[max(0, k - 3) : k].mean(), by_step[k:].mean()
        if before > 0.1 and after < 0.3 * before and by_step[k] < 0.5 * by_step[k - 1]:
            evidence = f"agreement falls from {before:.2f} to {after:.2f} at action {k + 1} of {length}"
            return wrong("chunk length", "chunk too long", evidence)
    first, last = by_step[: length // 2].mean(), by_step[length // 2 :].mean()
    return fine("chunk length", f"log-likelihood of the first half {first:.2f}, of the second {last:.2f}")


def absolute(outputs: Outputs) -> Verdict:
    """Whether deltas are positions."""
    title = "delta or absolute"
    part, index = next((row for row in outputs.parts if row[0].name == "position delta"), (None, None))
    if part is None or outputs.moments.poses is None:
        return not_applicable(title, "no position delta, or the hand's position is not recorded")
    answers = outputs.correct(outputs.moments, outputs.answers)[:, :1, index]  # errors add up along a chunk
    poses = outputs.moments.poses[:, AROUND + 1 : AROUND + 2, :3]
    position, delta = Fit(answers, poses), Fit(answers, outputs.moments.at(outputs.shift, 1)[..., index])
    near, far = position.rho[0].mean(), np.abs(delta.rho[0]).mean()
    evidence = f"correlation with the hand's position {near:.2f}, with its recorded delta {far:.2f}"
    if near < ABSOLUTE or near < far + 0.1:
        return fine(title, evidence)
    unit = _unit(part)

    def relative(moments: Moments, chunks: np.ndarray) -> np.ndarray:
        assert moments.poses is not None
        chunks = chunks.copy()
        chunks[..., index] = (chunks[..., index] - moments.poses[:, AROUND : AROUND + chunks.shape[1], :3]) / unit
        return chunks

    outputs.add(relative)
    return wrong(title, "absolute in place of delta", evidence)


def _unit(part: Part) -> float:
    """Return the number in a unit such as "0.05 m"; 1 if it has none."""
    head = part.unit.split()[0]
    return float(head) if head.replace(".", "", 1).isdigit() else 1.0


def frame(outputs: Outputs) -> Verdict:
    """Whether deltas are in the hand's own frame where the base's is announced."""
    title, poses = "frame of actions", outputs.moments.poses
    index = [index for part, index in outputs.parts if part.size == 3 and "delta" in part.name]
    if poses is None or not index:
        return not_applicable(title, "no deltas, or the hand's rotation is not recorded")
    dimensions = np.concatenate(index)
    moves = np.intersect1d(dimensions, outputs.live)
    if not len(moves):
        return cannot_tell(title, "the recording hardly moves these axes")

    def turned(inverse: bool) -> Correction:
        def turn(moments: Moments, chunks: np.ndarray) -> np.ndarray:
            assert moments.poses is not None
            matrices = Rotation.from_rotvec(moments.poses[:, AROUND, 3:]).as_matrix()
            chunks = chunks.copy()
            for part in index:
                chunks[..., part] = np.einsum(
                    "mji,mtj->mti" if inverse else "mij,mtj->mti", matrices, chunks[..., part]
                )
            return chunks

        return turn

    plain = outputs.fit().gain()
    signs = np.concatenate([best_axes(outputs, part)[2] for part in index], 1)
    best = (Comparison(-1.0, 1.0), Comparison(-1.0, 1.0), turned(True))
    for inverse in (False, True):
        turn = turned(inverse)
        chunks = turn(outputs.moments, outputs.correct(outputs.moments, outputs.answers))[:, : outputs.length]
        gain = Fit(chunks, outputs.moments.at(outputs.shift, outputs.length)).gain()
        result = compare(gain, plain, moves)
        others = np.zeros_like(plain)
        others[:, dimensions] = signs
        best = max(best, (result, compare(gain, others, moves), turn), key=lambda row: row[0].log_ratio)
    result, over_signs, turn = best
    evidence = f"answers agree {result.times:.2f} times as well when they are turned by the hand's rotation"
    if result.lower < BETTER or over_signs.log_ratio < -0.01:
        return fine(title, evidence) if result.upper < 1 else cannot_tell(title, evidence)
    outputs.add(turn)
    if outputs.verdicts[1].findings != ("chunk reversed",):  # that is corrected already
        outputs.verdicts[1] = timing(outputs)  # axes of another frame say little about time
    return wrong(title, "tool frame in place of base frame", evidence)


def best_axes(outputs: Outputs, index: np.ndarray) -> tuple[tuple[int, ...], Comparison, np.ndarray]:
    """Return the order of a part's axes that agrees best with any signs: order, against the plain one, its gain."""
    answers = outputs.correct(outputs.moments, outputs.answers)[:, : outputs.length]
    recorded = outputs.moments.at(outputs.shift, outputs.length)
    moves = np.flatnonzero(np.isin(index, outputs.live))
    gains = {}
    for order in itertools.permutations(range(len(index))) if len(index) == 3 else [tuple(range(len(index)))]:
        gains[order] = Fit(answers[..., index[list(order)]], recorded[..., index]).gain(signed=False)
    plain = gains[tuple(range(len(index)))]
    best = max(gains, key=lambda order: gains[order][0][moves].sum())
    result = compare(gains[best], plain, moves) if len(moves) else Comparison(0.0, 1.0)
    return best, result, gains[best]


def order(outputs: Outputs) -> Verdict:
    """Whether the axes of a part are in the announced order."""
    found, evidence = [], []
    for part, index in outputs.parts:
        if part.size != 3:
            continue
        best, result, _ = best_axes(outputs, index)
        if best == (0, 1, 2) or result.lower < BETTER or len(np.intersect1d(index, outputs.live)) < 2:
            continue
        found.append(f"order of axes, {part.name}")
        letters = "".join("xyz"[i] for i in best)
        evidence.append(f"{part.name}: answers agree {result.times:.2f} times as well when read as {letters}")
        outputs.add(lambda _, chunks, index=index, best=best: _permuted(chunks, index, best))  # type: ignore[misc]
    if found:
        return wrong("order of axes", tuple(found), "; ".join(evidence))
    return fine("order of axes", "no other order agrees better")


def _permuted(chunks: np.ndarray, index: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    chunks = chunks.copy()
    chunks[..., index] = chunks[..., index[list(order)]]
    return chunks


def sign(outputs: Outputs) -> Verdict:
    """Whether an axis is negated."""
    fit = outputs.fit()
    flip = np.ones(len(outputs.names))
    found, evidence = [], []
    for i in outputs.live:
        rho, deviation = fit.rho[0, i], fit.rho[1:, i].std()
        if rho < -AGREES and rho + CERTAIN * deviation < 0:
            flip[i] = -1
            found.append("gripper sign" if "gripper" in outputs.names[i] else f"sign of {outputs.names[i]}")
            times = np.exp(fit.gain(signed=False)[0, i])
            evidence.append(f"{outputs.names[i]}: answers agree {times:.1f} times better when negated")
    if found:
        outputs.add(lambda _, chunks: chunks * flip)
        return wrong("sign of axes", tuple(found), "; ".join(evidence))
    unclear = [outputs.names[i] for i in outputs.live if abs(fit.rho[0, i]) < AGREES]
    if len(unclear) > len(outputs.live) / 2:
        return cannot_tell("sign of axes", f"answers hardly follow the recording in {', '.join(unclear)}")
    return fine("sign of axes", f"correlations {', '.join(f'{rho:.2f}' for rho in fit.rho[0, outputs.live])}")


def scale(outputs: Outputs) -> Verdict:
    """Whether answers have the recorded size and centre; the gripper is judged by `gripper_range`."""
    title, fit = "scale of actions", outputs.fit()
    if any(verdict.findings == ("absolute in place of delta",) for verdict in outputs.verdicts):
        return not_applicable(title, "positions are not of the deltas' size")
    axes = [i for i in outputs.live if "gripper" not in outputs.names[i] and fit.rho[0, i] > 0.5]
    if not axes:
        return cannot_tell(title, "no axis follows the recording closely enough")
    deviation = fit.log_scale[1:].std(0)
    rho = fit.rho[0]
    # With errors in both, the true factor lies between the two regressions' slopes.
    low = np.exp(fit.log_scale[0] + np.log(np.maximum(rho, 1e-3)) - CERTAIN * deviation)
    high = np.exp(fit.log_scale[0] - np.log(np.maximum(rho, 1e-3)) + CERTAIN * deviation)
    factors = np.exp(fit.log_scale[0])
    bad = [i for i in axes if low[i] > SCALE or high[i] < 1 / SCALE]
    sizes = fit.shift * np.exp(np.minimum(fit.log_scale, 0))  # in the larger of both deviations
    offset = [i for i in axes if abs(sizes[0, i]) - CERTAIN * sizes[1:, i].std() > SHIFT]
    if not bad and not offset:
        text = ", ".join(f"{factors[i]:.2f}" for i in axes)
        return fine(title, f"recorded movement is {text} times the answered")
    affected = sorted({*bad, *offset})
    finding = _kind_of_scale(outputs, affected, axes, factors)
    text = ", ".join(f"{outputs.names[i]} {factors[i]:.3g} times" for i in bad)
    centre = ", ".join(f"{outputs.names[i]} by {-fit.shift[0, i]:.2g} σ" for i in offset)
    evidence = f"recorded movement is {text} the answered" if text else ""
    return wrong(title, finding, "; ".join(filter(None, (evidence, f"shifted: {centre}" if centre else ""))))


def _kind_of_scale(outputs: Outputs, affected: list[int], axes: list[int], factors: np.ndarray) -> str:
    """Return the finding that explains answers of the wrong size best, by size and centre."""
    answers = clip(outputs.correct(outputs.moments, outputs.answers)[:, : outputs.length][..., axes])
    recorded = outputs.moments.at(outputs.shift, outputs.length)[..., axes]
    low, high = outputs.moments.ranges[:, axes]
    units = np.array([_unit(part) for part in outputs.info.action for _ in range(part.size)])[axes]
    candidates = {
        "metres in place of normalised": answers / units,
        "degrees in place of radians": np.deg2rad(answers),
        "not un-normalised": (answers + 1) / 2 * (high - low) + low,
        "un-normalised twice": (answers - low) / (high - low + 1e-9) * 2 - 1,
        "scaled": answers * np.exp(np.median(np.log(factors[affected]))),
    }
    spread, centre = np.nanstd(recorded, (0, 1)) + 1e-9, np.nanmean(recorded, (0, 1))

    def misfit(candidate: np.ndarray) -> float:
        sizes = np.abs(np.log((np.nanstd(candidate, (0, 1)) + 1e-9) / spread))
        return float(np.mean(sizes + np.abs(np.nanmean(candidate, (0, 1)) - centre) / spread))

    best = min(candidates, key=lambda name: misfit(candidates[name]))
    return best if misfit(candidates[best]) < EXPLAINED else "statistics of other data"


def gripper_range(outputs: Outputs) -> Verdict:
    """Whether the gripper's numbers are in the announced range."""
    title = "range of the gripper"
    part, index = next((row for row in outputs.parts if row[0].name == "gripper"), outputs.parts[0])
    if part.name != "gripper" or part.low is None or part.high is None or len(index) != 1:
        return not_applicable(title, "no gripper with a known range")
    values = outputs.answers[..., index[0]]
    ends = np.nanquantile(values, (0.03, 0.97))
    expected = np.array([part.low, part.high])
    evidence = f"answers {ends[0]:.2f} to {ends[1]:.2f}, announced {part.low:g} to {part.high:g}"
    if ends[0] == ends[1] or index[0] not in outputs.live:
        return cannot_tell(title, evidence)
    other = np.array([0.0, 1.0]) if part.low < 0 else np.array([-1.0, 1.0])
    if np.abs(ends - other).max() < 0.25 < np.abs(ends - expected).max():
        return wrong(title, "gripper range", evidence)
    if ends[0] < part.low - 0.5 or ends[1] > part.high + 0.5:
        return wrong(title, "gripper range", evidence)
    return fine(title, evidence)
