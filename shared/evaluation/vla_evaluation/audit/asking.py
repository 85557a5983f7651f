"""Ask a policy: every request is counted against a budget, errors are kept, and answers become one array."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from vla_contract import Observation, PolicyClient, PolicyInfo
from vla_contract.protocol.errors import PolicyError, PolicyRefused

MAX_CONCURRENT = 8
MAX_FAILURES = 5  # in a row, at the start: the policy answers nothing


class AuditStopped(ValueError):
    """The policy cannot be audited; the message says why and what to do."""


@dataclass
class Asker:
    """Sends requests.

    budget     requests that may be sent
    sent       requests sent; answered: those with actions
    errors     messages of failed requests, with their count; refusals (4xx) only of recorded observations
    latencies_ms  of requests that were sent alone
    """

    client: PolicyClient
    info: PolicyInfo
    budget: int
    concurrent: int = 1
    sent: int = 0
    answered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    as_recorded: bool = True  # false: observations are changed, which a policy may refuse
    not_finite: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    longest: int = 0  # actions in the longest chunk
    tick: Callable[[int], None] = lambda sent: None

    @property
    def left(self) -> int:
        return self.budget - self.sent

    def ask(self, observation: Observation) -> np.ndarray | None:
        """Return actions float64 [T, n], or None after an error or at the end of the budget.

        Raises AuditStopped if it never answers.
        """
        if self.left < 1:
            return None
        self.sent += 1
        began = time.perf_counter()
        try:
            actions = self.client.act(observation).actions.astype(np.float64)
        except PolicyError as error:
            self._failed(error, time.perf_counter() - began >= self.client.timeout_s)
            return None
        if actions.shape[1] != self.info.action_size:
            raise AuditStopped(
                f"the policy answers {actions.shape[1]} numbers per action and announces {self.info.action_size}; "
                "correct PolicyInfo.action or the policy's output"
            )
        if self.concurrent == 1:
            self.latencies_ms.append((time.perf_counter() - began) * 1e3)
        self.answered += 1
        self.longest = max(self.longest, len(actions))
        self.tick(self.sent)
        return actions

    def ask_all(self, observations: Sequence[Observation]) -> np.ndarray:
        """Return float64 [len(observations), horizon, n], NaN where there is no action."""
        if self.concurrent > 1:
            with ThreadPoolExecutor(self.concurrent) as pool:
                chunks = list(pool.map(self.ask, observations))
        else:
            chunks = [self.ask(observation) for observation in observations]
        answers = np.full((len(chunks), self.info.horizon, self.info.action_size), np.nan)
        for row, chunk in zip(answers, chunks, strict=True):
            if chunk is not None:
                row[: len(chunk)] = chunk[: len(row)]
        return answers

    def together(self, observations: Sequence[Observation]) -> list[np.ndarray | None]:
        """Send requests at the same time, so that the server makes a batch of them."""
        alone, self.concurrent = self.concurrent, len(observations)
        with ThreadPoolExecutor(len(observations)) as pool:
            answers = list(pool.map(self.ask, observations))
        self.concurrent = alone
        return answers

    def _failed(self, error: PolicyError, hangs: bool) -> None:
        text = str(error).split("/v1/act", 1)[-1].strip(" :")
        refused = isinstance(error, PolicyRefused)
        if refused and not self.as_recorded:
            return
        self.errors[text] = self.errors.get(text, 0) + 1
        self.not_finite += any(word in text for word in ("finite", " nan", "NaN", " inf"))
        failed = sum(self.errors.values())
        if self.answered or (failed < MAX_FAILURES and not hangs):
            return
        way = (
            "it refuses what this recording has; audit it with recordings of its own robot: --dataset NAME"
            if refused else "look into its log; a slow policy needs --act-timeout-s"
        )  # fmt: skip
        raise AuditStopped(f"the policy answered no request ({failed} sent): {text}; {way}")


def in_session(observation: Observation, tag: str, step: int | None = None) -> Observation:
    """Return the observation in another session of the same episode, so that a seeded policy draws the same noise."""
    session = observation.session.rsplit(".", 1)[0] + f".{tag}"
    return replace(observation, session=session, step=observation.step if step is None else step)
