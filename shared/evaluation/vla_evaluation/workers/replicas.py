"""The policy as a worker sees it: at one address, or at several where the same one answers.

An episode keeps to the address that its lease names. Each worker finds out for itself where nobody answers, since what
one machine does not reach another may; it asks for no episode there until somebody does again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vla_contract import ContractError, PolicyClient, PolicyUnavailable
from vla_evaluation.terminal import one_line

ASK_S = 5.0  # for an answer to who is there
PAUSES_S = 1.0, 30.0  # before one that gave no answer is asked again: the first, and the longest
LOOK_S = 0.5  # between two looks where nobody answers


class AnotherPolicy(Exception):
    """At a policy's address answers another."""


@dataclass
class Replica:
    """One address. `url` names it in the run, `client` reaches it from here; `pause_s` is 0 while it answers."""

    url: str
    client: PolicyClient
    pause_s: float = 0.0
    next_at: float = 0.0  # on the monotonic clock, s
    why: str = ""

    def is_gone(self, why: str) -> None:
        """Leaves it alone for a while, each time for longer."""
        first, longest = PAUSES_S
        self.pause_s, self.why = min(2 * self.pause_s, longest) or first, why
        self.next_at = time.monotonic() + self.pause_s


class Replicas:
    """All addresses of a run's policy.

    urls: their names in the run. at: where each is reached from here. expected: what each says of itself, as JSON.
    looking: called before each question whether somebody is there.
    """

    def __init__(
        self,
        urls: Sequence[str],
        at: Sequence[str],
        expected: Mapping,
        token: str | None,
        timeout_s: float,
        deadline_s: float,
        looking: Callable[[], None] = lambda: None,
    ):
        self.expected, self.token, self.looking = expected, token, looking
        self.all = {
            url: Replica(url, PolicyClient(where, token, timeout_s=timeout_s, deadline_s=deadline_s))
            for url, where in zip(urls, at, strict=True)
        }
        self.current = next(iter(self.all.values()))

    @property
    def client(self) -> PolicyClient:
        """The client of the address that the episode under way keeps to."""
        return self.current.client

    @property
    def is_one(self) -> bool:
        return len(self.all) == 1

    def there(self) -> list[str]:
        """Returns those to choose from; asks, of those that gave no answer, the ones whose pause is over."""
        now = time.monotonic()
        return [one.url for one in self.all.values() if not one.pause_s or (now >= one.next_at and self._answers(one))]

    def keep_to(self, url: str) -> bool:
        """Has the next episode keep to that one; False where there are others and it gives no answer."""
        self.current = self.all[url]
        return self.is_one or self._answers(self.current)

    def doubt(self, why: str) -> None:
        """Has the current one asked before it is chosen again: it failed in an episode."""
        if not self.is_one:
            self.current.pause_s, self.current.next_at, self.current.why = PAUSES_S[0], time.monotonic(), why

    def wait(self, timeout_s: float, on_wait: Callable[[float, str], None]) -> None:
        """Returns once one answers. PolicyUnavailable where none does in that time, AnotherPolicy where another is."""
        if self.is_one:
            self.client.wait_ready(timeout_s, on_wait)
            self._require_same(self.current, self.client)
            return
        begun = time.monotonic()
        while not self.there():
            waited_s, why = time.monotonic() - begun, self.current.why
            if waited_s >= timeout_s:
                raise PolicyUnavailable(f"none of its {len(self.all)} addresses answers after {timeout_s:g} s: {why}")
            on_wait(waited_s, why)
            time.sleep(LOOK_S)
            for one in self.all.values():
                one.next_at = min(one.next_at, time.monotonic() + PAUSES_S[0])

    def _answers(self, one: Replica) -> bool:
        self.looking()
        try:
            with PolicyClient(one.client.base_url, self.token, ASK_S, ASK_S, retries=0) as client:
                self._require_same(one, client)
        except ContractError as error:
            one.is_gone(one_line(error))
            return False
        one.pause_s = 0.0
        return True

    def _require_same(self, one: Replica, client: PolicyClient) -> None:
        if json.loads(json.dumps(client.info().to_dict())) != self.expected:
            where = "the same address" if self.is_one else one.client.base_url
            raise AnotherPolicy(f"another policy came back at {where}; start a new run for it")
