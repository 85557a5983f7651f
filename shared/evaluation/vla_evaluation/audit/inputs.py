"""Checks of a policy's input: what it uses, and which change of the input makes its answers agree better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from vla_contract import Observation, PolicyInfo
from vla_evaluation.audit import changes, outputs
from vla_evaluation.audit.asking import Asker
from vla_evaluation.audit.changes import Change
from vla_evaluation.audit.findings import Verdict, advice_key, cannot_tell, fine, not_applicable, wrong
from vla_evaluation.audit.moments import Moments
from vla_evaluation.audit.outputs import Outputs
from vla_evaluation.audit.scoring import Comparison, compare
from vla_evaluation.audit.serving import SAME, Serving

SCREENED, CONFIRMED = 14, 96  # moments that every hypothesis is asked about, and the best ones
RESERVED = 10 * SCREENED  # requests for what follows the search
PROMISING = 0.02  # log-likelihood per number above the plain input for which a hypothesis is asked further
BETTER = 1.03  # times that answers must agree better after a change, at least
UNUSED = 0.02  # change of an action, in standard deviations, below which an input is hardly used
ROUNDS = 3
NOISY = 1.3  # times the difference of two answers to one request, from which on an input has changed them
CLEAR = 3.0  # times that difference, from which on a smaller effect than another sentence's can be seen
SENTENCE = 0.5  # share of another sentence's effect that upper case or a full stop may have
UNFAMILIAR = "the recording shows the lab's own simple models, which this policy may never have seen: ./lab assets"
Apply = Callable[[Observation], Observation]
CONVENTIONS = {  # convention: keys of ADVICE
    "orientation of images": ("upside down", "mirrored", "turned by 180°"),
    "colours": ("BGR", "grey"),
    "cameras": ("cameras swapped", "ignores camera"),
    "crop": ("crop missing", "cropped"),
    "range of pixels": ("range 0 to 1", "range -1 to 1"),
    "form of the instruction": ("template", "underscores expected", "sensitive to"),
    "order of the state": ("state order",),
    "rotation in the state": ("state in", "Euler angles", "axis-angle", "rotation", "quaternion"),
    "gripper in the state": ("gripper width", "gripper's second finger"),
}
OF_IMAGES = tuple(CONVENTIONS)[:5]


def convention_of(finding: str) -> str:
    key = advice_key(finding)
    return next(name for name, keys in CONVENTIONS.items() if key in keys)


@dataclass
class Inputs:
    """answers: float64 [M, horizon, n] of the moments with `fixes` applied; effects: change by what is replaced."""

    asker: Asker
    moments: Moments
    answers: np.ndarray
    outputs: Outputs
    serving: Serving
    familiar: bool = True
    fixes: list[Change] = field(default_factory=list)
    results: dict[str, list[tuple[Change, Comparison]]] = field(default_factory=dict)
    effects: dict[str, float] = field(default_factory=dict)
    found: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)  # convention → findings, evidence

    @property
    def info(self) -> PolicyInfo:
        return self.asker.info

    def observations(
        self, count: int, change: Callable[[Observation], Observation], start: int = 0
    ) -> list[Observation]:
        """Return moments with the fixes and then `change` applied: a fix undoes the fault next to the policy."""
        seen = []
        for one in self.moments.observations[start:count]:
            one = change(one)
            for fix in self.fixes:
                one = fix.apply(one)
            seen.append(one)
        return seen

    def compare(self, answers: np.ndarray, base: np.ndarray | None = None) -> Comparison:
        """Return how much better answers [m, horizon, n] to the first m moments agree than the plain ones."""
        moments = self.moments.first(len(answers))
        plain = self.answers[: len(answers)] if base is None else base
        return compare(self.outputs.gain(moments, answers), self.outputs.gain(moments, plain), self.outputs.live)

    def change_by(self, answers: np.ndarray) -> tuple[float, float]:
        """Return the mean and the largest change of an action against the plain answers, in standard deviations."""
        difference = np.abs(answers - self.answers[: len(answers)]) / self.serving.spread
        difference = difference[np.isfinite(difference)]
        return (float(difference.mean()), float(difference.max())) if len(difference) else (float("nan"),) * 2

    def ask(self, change: Apply, count: int = SCREENED, start: int = 0) -> np.ndarray:
        return self.asker.ask_all(self.observations(count, change, start))


def check(
    asker: Asker, moments: Moments, answers: np.ndarray, found: Outputs, serving: Serving, familiar: bool
) -> tuple[list[Verdict], Outputs]:
    """Return the verdicts about inputs, and those about actions again if a change of the input made them clearer."""
    state = Inputs(asker, moments, answers, found, serving, familiar)
    search(state)
    verdicts = [uses(state, kind) for kind in ("images", "instruction", "state")]
    verdicts += details(state)
    verdicts += [summarized(state, convention) for convention in CONVENTIONS]
    return verdicts, state.outputs


# --- the search -----------------------------------------------------------------------------------------------


def search(state: Inputs) -> None:
    """Ask about every hypothesis; adopt the best one that is certain, and search again under it."""
    info = state.info
    candidates = changes.of_images(info.cameras) if info.cameras else []
    candidates += [change for change in changes.of_language() if change.finding not in changes.VARIANTS]
    candidates += changes.of_state(info.state)
    for _ in range(ROUNDS):
        if not candidates or state.asker.left < len(candidates) * SCREENED + RESERVED:
            break
        state.results.clear()
        scored = []
        for change in candidates:
            answers = state.ask(change.apply)
            result = state.compare(answers)
            state.results.setdefault(convention_of(change.finding), []).append((change, result))
            scored.append((result.log_ratio, change, answers))
        scored.sort(key=lambda row: -row[0])
        best = None
        for log_ratio, change, answers in scored[:3]:
            if log_ratio < PROMISING or state.asker.left < CONFIRMED + RESERVED:
                break
            count = min(CONFIRMED, len(state.moments))
            whole = np.concatenate([answers, state.ask(change.apply, count, len(answers))])
            result = state.compare(whole)
            rows = state.results[convention_of(change.finding)]
            rows[:] = [(change, result) if row[0] is change else row for row in rows]
            if result.is_certain and result.times > BETTER and (best is None or result.log_ratio > best[0].log_ratio):
                best = (result, change, whole)
        if best is None:
            break
        result, change, whole = best
        adopt(state, change, result, whole)
        candidates = [c for c in candidates if convention_of(c.finding) != convention_of(change.finding)]


def adopt(state: Inputs, change: Change, result: Comparison, answers: np.ndarray) -> None:
    """Keep a change as a fix, and judge the actions again under it."""
    convention = convention_of(change.finding)
    findings, evidence = state.found.setdefault(convention, ([], []))
    findings.append(change.finding)
    evidence.append(f"answers agree {result.times:.2f} times as well when {change.what}")
    state.fixes.insert(0, change)
    state.moments, state.answers = state.moments.first(len(answers)), answers
    state.outputs = outputs.check(state.info, state.moments, answers)


# --- what is used ---------------------------------------------------------------------------------------------


def _other(state: Inputs, seen: Observation) -> Observation:
    """Return a moment of another episode, with another instruction if there is one."""
    rows = state.moments.observations
    number = next(i for i, one in enumerate(rows) if one is seen)
    later = [*rows[number + 1 :], *rows[:number]]
    return next((one for one in later if one.instruction != seen.instruction), later[0])


def uses(state: Inputs, kind: str) -> Verdict:
    """Whether answers depend on the images, the instruction or the state, and agree better with the right ones."""
    info, title = state.info, f"{kind} used"
    has = {"images": bool(info.cameras), "instruction": True, "state": info.needs_state}[kind]
    if not has:
        return not_applicable(title, f"the policy takes no {kind}")
    if kind == "instruction" and len({seen.instruction for seen in state.moments.observations}) < 2:
        return cannot_tell(title, "the recording has one instruction")
    answers = state.ask(lambda seen: replace(seen, **{kind: getattr(_other(state, seen), kind)}))
    mean, largest = state.change_by(answers)
    result = state.compare(answers)
    state.effects[kind] = float(np.nan_to_num(mean))
    if np.isnan(mean):
        return cannot_tell(title, f"the policy answers no request with another episode's {kind}")
    evidence = (
        f"another episode's {kind} change an action by {mean:.2g} standard deviations; "
        f"answers then agree {result.times:.2f} times as well"
    ).replace("instruction change", "instruction changes").replace("state change", "state changes")  # fmt: skip
    if f"instruction {'kept'}" == state.serving.history and kind == "instruction":
        return cannot_tell(title, f"{evidence}; the policy keeps an earlier one")
    if state.outputs.verdicts[0].findings == ("constant output",):
        return cannot_tell(title, "all answers are equal")
    if not changes_answers(state, mean, largest):
        return wrong(title, f"ignores the {kind}", f"{evidence}: {'hardly' if largest > SAME else 'not'} used")
    return fine(title, evidence)


def changes_answers(state: Inputs, mean: float, largest: float) -> bool:
    """Return whether answers changed by more than they do for the same request, and enough to matter."""
    return largest > SAME and mean > max(UNUSED, NOISY * state.serving.mean_noise)


def details(state: Inputs) -> list[Verdict]:
    """Add what single changes of images and instruction show: one camera or colour ignored, sentences cut."""
    info = state.info
    if state.effects.get("images", 0) > UNUSED:
        for camera in info.cameras if len(info.cameras) > 1 else ():
            answers = state.ask(partial(_with_other_image, state, camera))
            mean, largest = state.change_by(answers)
            if largest <= SAME:
                _note(state, "cameras", f"ignores camera {camera}", f"{camera} changes nothing")
        answers = state.ask(lambda seen: changes.with_images(seen, changes.grey, info.cameras))
        mean, largest = state.change_by(answers)
        share = mean / state.effects["images"]
        if share < 0.01 and state.serving.noise == 0:
            _note(state, "colours", "grey", f"grey images change an action by {mean:.1g} standard deviations")
    return [truncated(state), *variants(state)]


def _with_other_image(state: Inputs, camera: str, seen: Observation) -> Observation:
    own, other = seen.images[camera], _other(state, seen).images[camera]
    return replace(seen, images={**seen.images, camera: changes.resized(other, *own.shape[:2])})


def _note(state: Inputs, convention: str, finding: str, evidence: str) -> None:
    findings, lines = state.found.setdefault(convention, ([], []))
    findings.append(finding)
    lines.append(evidence)


def truncated(state: Inputs) -> Verdict:
    """Whether the end of the instruction reaches the model."""
    title, effect = "whole instruction read", state.effects.get("instruction", 0.0)
    if effect < max(UNUSED, NOISY * state.serving.mean_noise):
        return cannot_tell(title, "no effect of the instruction was seen")

    def ending(seen: Observation) -> Observation:
        words, others = seen.instruction.split(), _other(state, seen).instruction.split()
        half = max(1, len(words) // 2)
        return replace(seen, instruction=" ".join([*words[:half], *others[::-1][: len(words) - half]]))

    mean, largest = state.change_by(state.ask(ending))
    evidence = f"another second half changes an action by {mean:.2g} deviations, another sentence by {effect:.2g}"
    if largest <= SAME or mean < NOISY * state.serving.mean_noise:
        clear = effect > CLEAR * state.serving.mean_noise
        return wrong(title, "instruction truncated", evidence) if clear else cannot_tell(title, evidence)
    return fine(title, evidence)


def variants(state: Inputs) -> Sequence[Verdict]:
    """Note whether upper case or a full stop changes answers like another sentence."""
    effect = state.effects.get("instruction", 0.0)
    if effect < max(UNUSED, NOISY * state.serving.mean_noise) or not state.outputs.agreement().is_certain:
        return ()
    for change in changes.of_language():
        if change.finding in changes.VARIANTS:
            mean, _ = state.change_by(state.ask(change.apply))
            noise = state.serving.mean_noise
            if mean - noise > SENTENCE * (effect - noise):
                evidence = f"{change.what}: an action changes by {mean:.2g}, with another sentence by {effect:.2g}"
                _note(state, "form of the instruction", change.finding, evidence)
    return ()


def summarized(state: Inputs, convention: str) -> Verdict:
    """Return the verdict of a convention from the search and the notes."""
    is_image = convention in OF_IMAGES
    if found := state.found.get(convention):
        findings, lines = found
        text = "; ".join(lines)
        if is_image and not state.familiar:
            return cannot_tell(convention, f"{text}; {UNFAMILIAR}")
        return wrong(convention, tuple(dict.fromkeys(findings)), text)
    rows = state.results.get(convention)
    if not rows:
        return not_applicable(convention, "the policy takes nothing that this could change")
    change, best = max(rows, key=lambda row: row[1].log_ratio)
    evidence = f"best of {len(rows)} others: answers agree {best.times:.2f} times as well when {change.what}"
    kind = "images" if is_image else "instruction" if "instruction" in convention else "state"
    if is_image and not state.familiar:
        return cannot_tell(convention, f"{evidence}; {UNFAMILIAR}")
    if state.effects.get(kind, 0.0) < UNUSED:
        return cannot_tell(convention, f"hardly an effect of the {kind} was seen")
    if not state.outputs.agreement().is_certain:
        return cannot_tell(convention, "answers do not follow the recording")
    return fine(convention, evidence)
