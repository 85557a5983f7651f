"""A worker's connection to the policy: one address, or several replicas of the same policy.

An episode stays at the address of its lease. Each worker checks which replicas it can reach, since reachability differs
between machines; it leases no episode for an unreachable replica.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vla_contract import ContractError, PolicyClient, PolicyUnavailable
from vla_evaluation.terminal import single_line

PROBE_TIMEOUT_S = 5.0
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 30.0  # before a replica that did not answer is probed again
POLL_S = 0.5  # while none answers


class AnotherPolicy(Exception):
    """Another policy than the run's answers at its address; no worker can continue."""


@dataclass
class Replica:
    """One address. `url` names it in the run, `client` reaches it from here; `pause_s` is 0 while it answers."""

    url: str
    client: PolicyClient
    pause_s: float = 0.0
    next_at: float = 0.0  # on the monotonic clock, s
    error: str = ""


class Replicas:
    """All addresses of a run's policy.

    urls: their names in the run. at: the address of each from this machine. expected: the policy's description
    as JSON. before_probe: called before each probe.
    """

    def __init__(
        self,
        urls: Sequence[str],
        at: Sequence[str],
        expected: Mapping,
        token: str | None,
        timeout_s: float,
        deadline_s: float,
        before_probe: Callable[[], None] = lambda: None,
    ):
        self.expected, self.token, self.before_probe = expected, token, before_probe
        clients = [PolicyClient(address, token, timeout_s=timeout_s, deadline_s=deadline_s) for address in at]
        self.all = {url: Replica(url, client) for url, client in zip(urls, clients, strict=True)}
        self.current = next(iter(self.all.values()))  # of the current episode
        self.is_single = len(self.all) == 1

    def available(self) -> list[str]:
        """Return the replicas to choose from; those that did not answer are probed once their pause is over."""
        now = time.monotonic()
        return [
            replica.url
            for replica in self.all.values()
            if not replica.pause_s or (now >= replica.next_at and self._probe(replica))
        ]

    def pin(self, url: str) -> bool:
        """Use that replica for the next episode; False if it does not answer and is not the only one."""
        self.current = self.all[url]
        return self.is_single or self._probe(self.current)

    def suspect(self, error: str) -> None:
        """Mark the current replica, which failed in an episode, to be probed before its next use."""
        if not self.is_single:
            self.current.pause_s, self.current.next_at, self.current.error = FIRST_PAUSE_S, time.monotonic(), error

    def wait(self, timeout_s: float, on_wait: Callable[[float, str], None]) -> None:
        """Wait until one answers. Raises PolicyUnavailable after that time, AnotherPolicy for another policy."""
        if self.is_single:
            self.current.client.wait_ready(timeout_s, on_wait)
            self._require_same(self.current, self.current.client)
            return
        start = time.monotonic()
        while not self.available():
            waited_s, error = time.monotonic() - start, self.current.error
            if waited_s >= timeout_s:
                raise PolicyUnavailable(
                    f"none of the policy's {len(self.all)} addresses responded within {timeout_s:g} s: {error}"
                )
            on_wait(waited_s, error)
            time.sleep(POLL_S)
            for replica in self.all.values():
                replica.next_at = min(replica.next_at, time.monotonic() + FIRST_PAUSE_S)

    def _probe(self, replica: Replica) -> bool:
        self.before_probe()
        try:
            address = replica.client.base_url
            with PolicyClient(address, self.token, PROBE_TIMEOUT_S, PROBE_TIMEOUT_S, retries=0) as client:
                self._require_same(replica, client)
        except ContractError as error:
            replica.pause_s, replica.error = min(2 * replica.pause_s, MAX_PAUSE_S) or FIRST_PAUSE_S, single_line(error)
            replica.next_at = time.monotonic() + replica.pause_s
            return False
        replica.pause_s = 0.0
        return True

    def _require_same(self, replica: Replica, client: PolicyClient) -> None:
        if json.loads(json.dumps(client.info().to_dict())) != self.expected:
            address = "the same address" if self.is_single else replica.client.base_url
            raise AnotherPolicy(f"another policy came back at {address}; start a new run for it")
