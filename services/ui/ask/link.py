"""The policy as the page sees it: what it is, or in words why it does not answer."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from services.ui.ask import advice
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
MAX_IMAGES = 4  # cameras of a policy: a robot with two arms has so many
KEEP_S = 1.0  # many browsers ask; the policy is asked once


@dataclass(frozen=True)
class Trouble:
    """What is wrong, what was said about it, and what to do: the page's only form of an error."""

    title: str
    detail: str
    todo: str
    passing: bool = False  # waiting may be enough

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON types, for programs."""
        return {"detail": f"{self.title}: {self.detail}", "todo": self.todo}


@dataclass(frozen=True)
class PolicyStatus:
    """What the policy last said: its info, or trouble; both where it answers but the page cannot serve it."""

    info: PolicyInfo | None = None
    trouble: Trouble | None = None

    @property
    def usable(self) -> bool:
        """Whether the page can ask it for actions."""
        return self.trouble is None


class PolicyLink:
    """Asks one policy service, with a time-out on everything. Safe to share between threads.

    Raises ValueError for an address that is no URL and a token that cannot travel in a header.
    """

    def __init__(self, url: str, token: str | None = None, act_timeout_s: float = 120.0):
        quick = {"timeout_s": STATUS_TIMEOUT_S, "deadline_s": STATUS_TIMEOUT_S, "retries": 0}
        self._quick = PolicyClient(url, token, **quick)
        self._slow = PolicyClient(url, token, timeout_s=act_timeout_s, deadline_s=act_timeout_s, retries=2)
        self._lock, self._status, self._until = threading.Lock(), PolicyStatus(), 0.0

    @property
    def url(self) -> str:
        """The policy's address."""
        return self._quick.base_url

    def status(self) -> PolicyStatus:
        """Return what the policy says about itself; what it said in the last second counts."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._status = self._ask_status()
                self._until = time.monotonic() + KEEP_S
            return self._status

    def act(self, observation: Observation, info: PolicyInfo) -> ActionChunk:
        """Return the next actions. Raises PolicyRefused or PolicyUnavailable, which `explain` puts into words."""
        try:
            return self._slow.act(observation)
        finally:
            if info.stateful:
                self._forget(observation.session)

    def explain(self, error: PolicyError) -> Trouble:
        """Return an error in words."""
        return explain(error, self.url)

    def close(self) -> None:
        """Closes the connections."""
        self._quick.close()
        self._slow.close()

    def _ask_status(self) -> PolicyStatus:
        try:
            info = self._quick.info()
        except PolicyError as error:
            return PolicyStatus(None, self.explain(error))
        return PolicyStatus(info, unsuitable(info))

    def _forget(self, session: str) -> None:
        try:
            self._quick.reset(session)
        except PolicyError:
            return  # the policy drops old sessions by itself


class Choice:
    """Policies by name; the first is the one that is asked where none is chosen and it answers."""

    def __init__(self, first: PolicyLink, others: Mapping[str, PolicyLink] | None = None):
        named = {name: link for name, link in (others or {}).items() if link.url != first.url}
        name = next((name for name, link in (others or {}).items() if link.url == first.url), first.url)
        self.links = {name: first, **named}

    def up(self) -> list[str]:
        """Return the names of those that answer and that the page can ask."""
        with ThreadPoolExecutor(len(self.links)) as pool:
            statuses = pool.map(PolicyLink.status, self.links.values())
            return [name for name, status in zip(self.links, statuses, strict=True) if status.usable]

    def chosen(self, names: Sequence[str]) -> dict[str, PolicyLink]:
        """Return the policies of those names; where it is none, the first one, or another that is up in its place."""
        found = {name: self.links[name] for name in names if name in self.links}
        if found:
            return found
        name, first = next(iter(self.links.items()))
        if not first.status().usable and (up := self.up()):
            name = up[0]
        return {name: self.links[name]}


def unsuitable(info: PolicyInfo) -> Trouble | None:
    """Return why a page with pictures, a sentence and a state cannot serve this policy, or None where it can."""
    if info.needs_privileged:
        what = "the simulator's own state, which no picture can give"
    elif len(info.cameras) > MAX_IMAGES:
        what = f"pictures of {len(info.cameras)} cameras ({', '.join(info.cameras)}), and the page has {MAX_IMAGES}"
    else:
        return None
    todo = f"Evaluate it in the simulator instead: `./lab eval libero_goal --policy {info.name}`"
    return Trouble(f"This page cannot ask policy {info.name!r}", f"It needs {what}.", todo)


def explain(error: PolicyError, url: str) -> Trouble:
    """Return an error of the client in words: by the problem's kind, else by the status, else by the network."""
    kind = str(error.problem.get("type", "")).removeprefix(TYPE_PREFIX)
    tried = error.__cause__ if isinstance(error.__cause__, PolicyUnavailable) else error  # without the count of tries
    detail = str(error.problem.get("detail") or tried)
    if kind in _BY_KIND:
        title, todo, passing = _BY_KIND[kind]
        return Trouble(title, detail, todo, passing)
    if error.status is not None or isinstance(error, PolicyRefused):
        todo = f"Is {url} the address of a policy of this lab? Its log tells more: `./lab logs SERVICE`"
        return Trouble("What answers there is no policy of this lab", detail, todo)
    if "no answer within" in detail:
        return Trouble(
            "The policy took too long", detail, "Is it busy, or on a CPU? Ask again, or `./lab logs SERVICE`"
        )
    if "answered no valid" in detail:
        return Trouble("The policy's answer cannot be read", detail, "Page and policy may be of different versions.")
    return Trouble(f"No policy answers at {url}", _without(detail, url), advice.start_one(), passing=True)


def _without(detail: str, url: str) -> str:
    """Return what was said about an address, without the address: the title has it."""
    said = re.sub(rf"^{re.escape(url)}\S*: ", "", detail)
    return f"{said[:1].upper()}{said[1:]}."


# kind of problem -> (title, what to do, whether it passes by itself)
_BY_KIND = {
    "unauthorized": (
        "The policy does not take this page's token",
        "Start page and policy with the same VLALAB_TOKEN.",
        False,
    ),
    "unknown-host": (
        "The policy does not answer to this host name",
        "Add the name to VLALAB_ALLOWED_HOSTS and start the policy again.",
        False,
    ),
    "loading": ("The policy is still loading", "The page goes on by itself as soon as it is ready.", True),
    "load-failed": ("The policy could not be loaded", "Its log says why: `./lab logs SERVICE`", False),
    "stopping": ("The policy is stopping", "Start it again, or wait where it restarts by itself.", True),
    "stuck": ("The policy hangs", "Look at its device, then `./lab down SERVICE` and `./lab up SERVICE`.", False),
    "too-large": ("The picture is too large for the policy", "Upload a smaller one.", False),
    "invalid-observation": ("The policy cannot work with this", "Change what it names and ask again.", False),
    "queue-full": ("The policy is busy", "Others are waiting too; ask again in a moment.", True),
    "busy": ("The policy is busy", "It has as many connections as it takes; ask again in a moment.", True),
    "policy-lost": ("The policy's device is lost", "It is started again; its log says why: `./lab logs SERVICE`", True),
    "expired": ("The policy is busy", "The request waited too long; ask again in a moment.", True),
    "policy-failed": ("The policy failed at this request", "Its log says why: `./lab logs SERVICE`", False),
    "invalid-action": ("The policy's answer is no valid action", "Its log says more: `./lab logs SERVICE`", False),
    "session-lost": ("The policy was restarted meanwhile", "Ask again.", True),
}
