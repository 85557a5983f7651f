"""The whole audit of one policy: moments, checks in their order, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_contract import PolicyClient
from vla_evaluation.audit import inputs, moments, outputs, serving
from vla_evaluation.audit.asking import MAX_CONCURRENT, Asker
from vla_evaluation.audit.findings import Verdict, fine, wrong
from vla_evaluation.audit.moments import Moments
from vla_evaluation.audit.outputs import Outputs
from vla_evaluation.audit.scoring import Comparison
from vla_evaluation.offline.policy_view import PolicyView

ASKED, EPISODES = 96, 24  # moments, and episodes they are from


@dataclass(frozen=True)
class Audit:
    """answers: float64 [M, horizon, n] to `moments` as they were recorded."""

    verdicts: tuple[Verdict, ...]
    moments: Moments
    answers: np.ndarray
    agreement: Comparison
    requests: int
    seconds: float

    @property
    def wrong(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.verdict == "wrong"]

    @property
    def summary(self) -> str:
        """One line."""
        count = len(self.wrong)
        found = f"{count} convention{'s' if count != 1 else ''} wrong" if count else "nothing wrong was found"
        if not self.agreement.is_certain:
            found += ", and the answers do not follow the recorded actions"
        return f"{found}; {self.requests} requests in {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "wrong": [finding for verdict in self.wrong for finding in verdict.findings],
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
            "agreement": round(self.agreement.times, 3),
            "requests": self.requests,
            "seconds": round(self.seconds, 1),
        }


def audit(
    client: PolicyClient,
    view: PolicyView,
    control_hz: float,
    executed: int,
    budget: int,
    familiar: bool,
    on_request: Callable[[int], None] = lambda sent: None,
) -> Audit:
    """Audit a policy. executed: actions used of each chunk; familiar: its images look like those of its training.

    Raises AuditStopped if the policy answers nothing.
    """
    began = time.monotonic()
    asker = Asker(client, view.info, budget, tick=on_request)
    asked = moments.load(view, min(ASKED, budget // 4), EPISODES)
    answers = asker.ask_all(asked.observations)
    asker.as_recorded = False
    served, checked = serving.check(asker, asked, answers)
    latency = serving.latency(asker, control_hz, executed)
    if not checked.history and not view.info.stateful and not any(verdict.verdict == "wrong" for verdict in served):
        asker.concurrent = min(MAX_CONCURRENT, view.info.max_batch)
    found = outputs.check(view.info, asked, answers)
    of_inputs, found = inputs.check(asker, asked, answers, found, checked, familiar)
    verdicts = [
        *of_inputs, *found.verdicts, serving.answered(asker), *served, latency,
        described(asker, asked, answers, checked, found),
    ]  # fmt: skip
    return Audit(tuple(verdicts), asked, answers, found.agreement(), asker.sent, time.monotonic() - began)


def described(
    asker: Asker, asked: Moments, answers: np.ndarray, served: serving.Serving, found: Outputs
) -> Verdict:  # fmt: skip
    """Whether /v1/info describes what the policy does."""
    info, claims, evidence = asker.info, [], []
    if asker.longest < info.horizon:
        claims.append("claims a longer chunk")
        evidence.append(f"horizon {info.horizon}, but the longest of {asker.answered} answers has {asker.longest}")
    if served.history and "session" in served.history:
        claims.append("claims no state")
        evidence.append("stateful is false, but answers depend on earlier requests")
    scale_is_wrong = any(verdict.convention == "scale of actions" and verdict.findings for verdict in found.verdicts)
    for part, index in found.parts:
        values = answers[..., index]
        if part.low is None or part.high is None or part.name == "gripper" or scale_is_wrong:
            continue
        margin = 0.25 * (part.high - part.low)
        share = float(np.mean((values < part.low - margin) | (values > part.high + margin)))
        if share > 0.05:
            claims.append("claims a smaller range")
            evidence.append(f"{part.name}: {share:.0%} of the numbers are outside of {part.low:g} to {part.high:g}")
    if claims:
        return wrong("/v1/info", tuple(claims), "; ".join(evidence))
    return fine(
        "/v1/info", f"horizon {info.horizon}, max_batch {info.max_batch}, stateful {info.stateful} as announced"
    )
