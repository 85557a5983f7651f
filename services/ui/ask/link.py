"""A policy's status and actions over HTTP, with errors explained."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from vla_contract import (
    ActionChunk,
    Observation,
    PolicyClient,
    PolicyError,
    PolicyInfo,
    PolicyRefused,
    PolicyUnavailable,
)
from vla_contract.protocol.problems import TYPE_PREFIX

STATUS_TIMEOUT_S = 2.0
MAX_IMAGES = 4  # cameras of a policy, as of a two-armed robot
STATUS_TTL_S = 1.0  # shared by all browsers


@dataclass(frozen=True)
class Trouble:
    """An error as the page shows it: title, detail, and what to do."""

    title: str
    detail: str
    todo: str
    passing: bool = False  # may resolve by itself

    def to_dict(self) -> dict[str, str]:
        """Return the error as JSON types."""
        return {"detail": f"{self.title}: {self.detail}", "todo": self.todo}


@dataclass(frozen=True)
class PolicyStatus:
    """The policy's info, or trouble; both if it responds but the page cannot use it."""

    info: PolicyInfo | None = None
    trouble: Trouble | None = None

    @property
    def usable(self) -> bool:
        """Whether the page can request actions."""
        return self.trouble is None


class PolicyLink:
    """A connection to one policy service, with time-outs. Thread-safe.

    Raises ValueError for an invalid URL or a token that cannot be sent in a header.
    """

    def __init__(self, url: str, token: str | None = None, act_timeout_s: float = 120.0):
        quick = {"timeout_s": STATUS_TIMEOUT_S, "deadline_s": STATUS_TIMEOUT_S, "retries": 0}
        self._quick = PolicyClient(url, token, **quick)
        self._slow = PolicyClient(url, token, timeout_s=act_timeout_s, deadline_s=act_timeout_s, retries=2)
        self._lock, self._status, self._until = threading.Lock(), PolicyStatus(), 0.0
        self.url: str = self._quick.base_url

    def status(self) -> PolicyStatus:
        """Return the policy's status, cached for STATUS_TTL_S."""
        with self._lock:
            if time.monotonic() >= self._until:
                try:
                    info = self._quick.info()
                    self._status = PolicyStatus(info, unsuitable(info))
                except PolicyError as error:
                    self._status = PolicyStatus(None, explain(error, self.url))
                self._until = time.monotonic() + STATUS_TTL_S
            return self._status

    def act(self, observation: Observation, info: PolicyInfo) -> ActionChunk:
        """Return the next actions. Raises PolicyRefused or PolicyUnavailable; see `explain`."""
        try:
            return self._slow.act(observation)
        finally:
            if info.stateful:
                with suppress(PolicyError):  # the policy expires old sessions
                    self._quick.reset(observation.session)

    def close(self) -> None:
        """Close the connections."""
        self._quick.close()
        self._slow.close()


class Choice:
    """Policies by name. The first is the default."""

    def __init__(self, first: PolicyLink, other_policies: Mapping[str, PolicyLink] | None = None):
        others = other_policies or {}
        name = next((name for name, link in others.items() if link.url == first.url), first.url)
        self.links = {name: first, **{name: link for name, link in others.items() if link.url != first.url}}

    def up(self) -> list[str]:
        """Return the names of the usable policies."""
        with ThreadPoolExecutor(len(self.links)) as pool:
            statuses = pool.map(PolicyLink.status, self.links.values())
            return [name for name, status in zip(self.links, statuses, strict=True) if status.usable]

    def select(self, names: Sequence[str]) -> dict[str, PolicyLink]:
        """Return the policies of those names; if there is none, the default, or another usable one instead."""
        if selected := {name: self.links[name] for name in names if name in self.links}:
            return selected
        name, first = next(iter(self.links.items()))
        if not first.status().usable and (up := self.up()):
            name = up[0]
        return {name: self.links[name]}


def unsuitable(info: PolicyInfo) -> Trouble | None:
    """Return why the page cannot provide this policy's inputs, or None if it can."""
    cameras = info.cameras
    if info.needs_privileged:
        requirement = "the simulator's state"
    elif len(cameras) > MAX_IMAGES:
        requirement = f"images of {len(cameras)} cameras ({', '.join(cameras)}); the page supports {MAX_IMAGES}"
    else:
        return None
    todo = f"Evaluate it in the simulator: `./lab eval libero_goal --policy {info.name}`"
    return Trouble(f"This page cannot ask policy {info.name!r}", f"It needs {requirement}.", todo)


def explain(error: PolicyError, url: str) -> Trouble:
    """Return a client error as the page shows it: by problem type, else HTTP status, else network error."""
    kind = str(error.problem.get("type", "")).removeprefix(TYPE_PREFIX)
    cause = error.__cause__  # without the number of attempts
    detail = str(error.problem.get("detail") or (cause if isinstance(cause, PolicyUnavailable) else error))
    if kind in _TROUBLE_BY_KIND:
        title, todo, passing = _TROUBLE_BY_KIND[kind]
        return Trouble(title, detail, todo, passing)
    if error.status is not None or isinstance(error, PolicyRefused):
        todo = f"Check that {url} is the address of a policy of this lab, and see `./lab logs SERVICE`"
        return Trouble("The server is not a policy of this lab", detail, todo)
    if "no answer within" in detail:
        todo = "It may be busy or running on a CPU. Ask again, or see `./lab logs SERVICE`"
        return Trouble("The policy took too long", detail, todo)
    if "answered no valid" in detail:
        return Trouble("The policy's answer cannot be read", detail, "Page and policy may have different versions.")
    text = re.sub(rf"^{re.escape(url)}\S*: ", "", detail)  # the title has the URL
    return Trouble(f"No policy responds at {url}", f"{text[:1].upper()}{text[1:]}.", START, passing=True)


START = "Start one: `./lab up NAME`; without a checkpoint, it prints how to get one. This page finds it by itself."
LOGS = "For the reason, see `./lab logs SERVICE`"
# problem type -> (title, what to do, whether it may resolve by itself)
_TROUBLE_BY_KIND = {
    "unauthorized": (
        "The policy rejects this page's token", "Start page and policy with the same VLALAB_TOKEN.", False,
    ),
    "forbidden": ("The policy rejects this page's token", "Start page and policy with the same VLALAB_TOKEN.", False),
    "unknown-host": (
        "The policy rejects this host name", "Add the name to VLALAB_ALLOWED_HOSTS and restart the policy.", False,
    ),
    "loading": ("The policy is still loading", "The page continues when it is ready.", True),
    "load-failed": ("The policy could not be loaded", LOGS, False),
    "stopping": ("The policy is stopping", "Start it again, or wait for its automatic restart.", True),
    "stuck": ("The policy hangs", "Check its device, then run `./lab down SERVICE` and `./lab up SERVICE`.", False),
    "too-large": ("The image is too large for the policy", "Upload a smaller one.", False),
    "invalid-observation": ("The policy rejects this input", "Correct it and ask again.", False),
    "queue-full": ("The policy is busy", "Its queue is full; ask again in a moment.", True),
    "busy": ("The policy is busy", "It has too many connections; ask again in a moment.", True),
    "token-limit": ("The policy is busy", "This page's token has reached its limit; ask again in a moment.", True),
    "policy-lost": ("The policy's device is lost", f"It is restarting. {LOGS}", True),
    "expired": ("The policy is busy", "The request timed out in the queue; ask again in a moment.", True),
    "policy-failed": ("The policy failed on this request", LOGS, False),
    "invalid-action": ("The policy's answer is not a valid action", "For details, see `./lab logs SERVICE`", False),
    "session-lost": ("The policy was restarted", "Ask again.", True),
}  # fmt: skip
