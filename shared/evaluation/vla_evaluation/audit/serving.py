"""Checks of how a policy is served: the same request again, requests in between, in batches, after a reset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vla_contract import Observation
from vla_evaluation.audit.asking import Asker, in_session
from vla_evaluation.audit.findings import Verdict, cannot_tell, fine, not_applicable, wrong
from vla_evaluation.audit.moments import Moments

SAME = 1e-3  # largest difference, in standard deviations of the answers, that rounding explains
SAME_IN_BATCH = 0.03  # the same for other batch sizes, also in bf16
PAIRS = 4  # moments that each test uses
SAYS_SO = ("sampling", "stochastic", "temperature", "deterministic", "assumed")  # of PolicyInfo.details


@dataclass
class Serving:
    """spread: float64 [n], standard deviations of the answers; noise, mean_noise: largest and mean difference of two
    answers to one request.
    """

    asker: Asker
    moments: Moments
    spread: np.ndarray
    noise: float = 0.0
    mean_noise: float = 0.0
    history: str = ""  # finding about what an answer keeps of an earlier request

    def difference(self, one: np.ndarray | None, other: np.ndarray | None) -> float:
        """Return the largest difference of two answers in standard deviations; NaN if one is missing."""
        if one is None or other is None:
            return float("nan")
        if one.shape != other.shape:
            return 10.0
        return float(np.max(np.abs(one - other) / self.spread))

    @property
    def tolerance(self) -> float:
        return max(SAME, 3 * self.noise)

    def pairs(self) -> list[tuple[Observation, Observation]]:
        """Return pairs of moments of different episodes; the second in the first's session, one step earlier."""
        seen = self.moments.observations
        pairs = [(seen[k], seen[k + 1]) for k in range(0, min(2 * PAIRS, len(seen) - 1), 2)]
        return [(a, replace(b, session=a.session, step=max(0, a.step - 1))) for a, b in pairs]


def check(asker: Asker, moments: Moments, answers: np.ndarray) -> tuple[list[Verdict], Serving]:
    """Return the verdicts about serving. answers: float64 [M, horizon, n], of all moments."""
    spread = np.nanstd(answers, (0, 1))
    serving = Serving(asker, moments, np.where(spread > 1e-9, spread, 1.0))
    verdicts = [deterministic(serving), kept(serving), reset(serving), batch(serving)]
    return verdicts, serving


def deterministic(serving: Serving) -> Verdict:
    """Whether the same request gets the same answer."""
    differences, means = [], []
    for seen, _ in serving.pairs():
        again = [serving.asker.ask(in_session(seen, "r", 0 if serving.asker.info.stateful else None)) for _ in range(4)]
        # the first may depend on what came before
        differences.append(max(serving.difference(again[1], other) for other in again[2:]))
        if again[1] is not None and again[2] is not None and again[1].shape == again[2].shape:
            means.append(float(np.mean(np.abs(again[1] - again[2]) / serving.spread)))
    worst = float(np.nanmax([*differences, 0.0]))
    evidence = f"the same request again changes an action by {worst:.2g} standard deviations"
    if worst <= SAME:
        return fine("deterministic", evidence)
    serving.noise, serving.mean_noise = float(np.nanmedian(differences)), float(np.mean(means or [0.0]))
    if any(name in serving.asker.info.details for name in SAYS_SO):
        return cannot_tell("deterministic", f"{evidence}; its description says so, or its protocol cannot")
    return wrong("deterministic", "not deterministic", evidence)


def kept(serving: Serving) -> Verdict:
    """Whether an answer depends on earlier requests: of the same session, or of another."""
    title, asker = "nothing kept between requests", serving.asker

    def after(tag: str, before: Sequence[Observation], seen: Observation) -> np.ndarray | None:
        for other in before:
            asker.ask(other)
        return asker.ask(in_session(seen, tag))

    def differs(number: int, same_session: bool, part: str) -> float:
        worst = []
        for k, (seen, other) in enumerate(serving.pairs()):
            tag = f"k{number}{k}"
            names = {"all": ("images", "state", "instruction"), "images": ("images",), "state": ("state",),
                     "instruction": ("instruction",)}[part]  # fmt: skip
            earlier = replace(seen, step=other.step, **{name: getattr(other, name) for name in names})
            earlier = in_session(earlier, tag if same_session else f"{tag}o", 0 if asker.info.stateful else None)
            alone = after(f"{tag}r", [in_session(seen, f"{tag}r")], seen)
            worst.append(serving.difference(after(tag, [earlier], seen), alone))
        return float(np.nanmedian(worst)) if np.isfinite(worst).any() else float("nan")

    across = differs(0, False, "all")
    evidence = f"a request of another session in between changes an action by {across:.2g} standard deviations"
    within = 0.0 if asker.info.stateful else differs(1, True, "all")
    if not asker.info.stateful:
        evidence += f", an earlier one of its own session by {within:.2g}"
    limit = serving.tolerance
    if not max(across, within) > limit:
        return fine(title, evidence) if np.isfinite(across) else cannot_tell(title, "requests failed")
    same = within > limit
    effects = {part: differs(2 + k, same, part) for k, part in enumerate(("images", "instruction", "state"))}
    part = max(effects, key=lambda name: effects[name])
    rest = [value for name, value in effects.items() if name != part]
    finding = {"images": "stale images", "instruction": "instruction kept"}.get(part, "keeps state")
    if effects[part] <= limit or max(rest) > 0.1 * effects[part]:
        finding = "sessions leak" if across > limit else "keeps state between requests of a session"
    serving.history = finding
    evidence += "; " + ", ".join(f"only its {name} differs: {value:.2g}" for name, value in effects.items())
    return wrong(title, finding, evidence)


def reset(serving: Serving) -> Verdict:
    """Whether a session that starts again forgets what it has seen."""
    asker = serving.asker
    if not asker.info.stateful:
        return not_applicable("reset", "the policy announces no state")
    differences, moved = [], []
    for k, (seen, other) in enumerate(serving.pairs()):
        start = in_session(seen, f"z{k}", 0)
        first = asker.ask(start)
        for step in (1, 2):
            last = asker.ask(in_session(other, f"z{k}", step))
        moved.append(serving.difference(first, last))
        asker.client.reset(start.session)
        differences.append(serving.difference(first, asker.ask(start)))
    worst = float(np.nanmax([*differences, 0.0]))
    evidence = f"after a reset the first answer differs by {worst:.2g} standard deviations"
    return wrong("reset", "reset ignored", evidence) if worst > serving.tolerance else fine("reset", evidence)


def batch(serving: Serving) -> Verdict:
    """Whether requests that arrive together get the answers that they get alone."""
    title, asker = "batches", serving.asker
    if asker.info.max_batch == 1:
        return not_applicable(title, "the policy announces no batches")
    seen = serving.moments.observations[: min(8, asker.info.max_batch + 1)]
    tagged = [in_session(one, "b", 0 if asker.info.stateful else None) for one in seen]
    alone = [asker.ask(one) for one in tagged]
    mixed = [serving.difference(*pair) for _ in range(2) for pair in zip(alone, asker.together(tagged), strict=True)]
    equal = [serving.difference(alone[0], answer) for answer in asker.together([tagged[0]] * len(tagged))]
    limit = max(SAME_IN_BATCH, 3 * serving.noise)
    worst, same = float(np.nanmax([*mixed, 0.0])), float(np.nanmax([*equal, 0.0]))
    evidence = f"beside other requests an action changes by {worst:.2g} deviations, beside equal ones by {same:.2g}"
    if serving.history:
        return cannot_tell(title, f"{evidence}; answers depend on earlier requests")
    if same > limit:
        return wrong(title, "depends on the batch size", evidence)
    if worst > limit:
        return wrong(title, "rows of a batch leak", evidence)
    return fine(title, evidence)


def latency(asker: Asker, control_hz: float, executed: int) -> Verdict:
    """Whether an answer arrives before the steps that it covers are over."""
    if not asker.latencies_ms:
        return cannot_tell("latency", "no request was sent alone")
    median, slow = np.quantile(asker.latencies_ms, (0.5, 0.95))
    period = 1e3 * executed / control_hz
    evidence = f"{median:.0f} ms an answer (95 %: {slow:.0f}); the {executed} actions used of it last {period:.0f} ms"
    return wrong("latency", "too slow", evidence) if median > period else fine("latency", evidence)


def answered(asker: Asker) -> Verdict:
    """Whether every request got finite numbers."""
    failed = sum(asker.errors.values())
    evidence = f"{asker.answered} of {asker.sent} requests were answered"
    if refused := asker.sent - asker.answered - failed:
        evidence += f", {refused} with a change were refused"
    if not failed:
        return fine("finite answers", evidence)
    text = max(asker.errors, key=lambda name: asker.errors[name])
    finding = "NaN" if asker.not_finite else "errors"
    return wrong("finite answers", finding, f"{evidence}; {asker.errors[text]} times: {text}")
