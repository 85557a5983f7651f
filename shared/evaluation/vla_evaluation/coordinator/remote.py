"""The other side: a run's store as a machine that has joined it sees it."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from vla_contract.client.transport import FAULTS, Deadline, RetryRule, Transport
from vla_contract.protocol.tokens import check_token
from vla_evaluation.store.records import Fault, Lease, StoreError
from vla_evaluation.store.runstore import RunStore

JOINED = "joined.json"  # in the folder of a machine that has joined; workers find their store by it
CALL_S = 30.0  # one try
LEAVE_S = 5.0
AGAIN = (408, 429, 502, 503, 504)  # HTTP status: what another try may change


@dataclass(frozen=True)
class Joined:
    """What a machine knows of the run that it has joined; never the token, which is in the environment."""

    url: str
    invocation: int
    name: str  # of this machine in the run
    key: str  # drawn at random: what tells it from others of the same name
    patience_s: float  # for an evaluator that does not answer
    job: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Joined:
        """Returns what lies in the folder."""
        return cls(**json.loads((folder / JOINED).read_text()))

    def write(self, folder: Path) -> None:
        """Writes it for the workers."""
        (folder / JOINED).write_text(json.dumps(asdict(self), indent=1))


class RemoteStore:
    """What a worker and its supervisor ask of a `RunStore`, asked of the evaluator that has it.

    Times that they give are not sent: the evaluator's clock is the only one. Raises StoreError where the evaluator
    refuses, or has not answered for `patience_s`.
    """

    def __init__(self, folder: Path, joined: Joined, token: str | None):
        self.folder, self.joined = folder, joined
        self.transport = Transport(joined.url)
        self.headers = {"Authorization": f"Bearer {check_token('the token (VLALAB_TOKEN)', token)}"} if token else {}

    def meta(self, key: str) -> Any:
        """Returns the job, the one recorded fact that a worker asks for."""
        return {"job": self.joined.job}[key]

    def close(self) -> None:
        self.transport.close()

    # --- calls, one for one ---------------------------------------------------------------------------------

    def lease(
        self,
        worker: str,
        invocation: int,
        now: float,
        lease_s: float,
        prefer_task: int | None,
        policies: Sequence[str] = (),
    ) -> Lease | None:
        token = secrets.token_hex(8)
        got = self.call("lease", worker=worker, prefer_task=prefer_task, token=token, policies=list(policies))
        return got and Lease(**got)

    def heartbeat(self, lease: Lease, now: float, lease_s: float, steps: int = 0) -> bool:
        return self.call("heartbeat", lease=asdict(lease), steps=steps)

    def release(self, lease: Lease) -> bool:
        return self.call("release", lease=asdict(lease))

    def fail(self, lease: Lease, error: str, now: float, retries: int, by_policy: bool = False) -> bool:
        return self.call("fail", lease=asdict(lease), error=error, by_policy=by_policy)

    def finish_with(self, lease: Lease, result: dict, now: float, draft: Path, final: Path) -> bool:
        """Sends the episode's file, then its result."""
        return self._send(lease, "episode", draft) and self.call("finish", lease=asdict(lease), result=result)

    def add_to_result(self, lease: Lease, more: dict) -> None:
        """Sends the files that `more` names, then `more`; nothing of them stays here."""
        drawn = {
            kind: self.folder / more[name] for kind, name in (("film", "video"), ("still", "still")) if name in more
        }
        if all([self._send(lease, kind, path) for kind, path in drawn.items()]):
            self.call("add_to_result", lease=asdict(lease), more=more, files=list(drawn))
        for path in drawn.values():
            path.unlink()

    def take_back(self, worker: str, now: float, retries: int, reason: str) -> list[Fault]:
        return [Fault(**one) for one in self.call("take_back", worker=worker, reason=reason)]

    def say(self, worker: str, invocation: int, status: str, now: float) -> None:
        self.call("say", worker=worker, status=status)

    def open(self) -> bool:
        return self.call("is_open")

    def counts(self) -> dict[int, dict[str, int]]:
        return {row.pop("task"): row for row in self.call("counts")}

    def leases(self) -> dict[str, Lease]:
        """Returns this machine's."""
        held = self.call("leases", prefix=f"{self.joined.name}.")
        return {worker: Lease(**one) for worker, one in held.items()}

    def is_last_try_of_policy(self, lease: Lease, retries: int) -> bool:
        return self.call("is_last_try_of_policy", lease=asdict(lease))

    def place(self, lease: Lease) -> int:
        return self.call("place", lease=asdict(lease))

    def faults(self, invocation: int) -> list[Fault]:
        return [Fault(**one) for one in self.call("faults")]

    def workers(self) -> dict[str, str]:
        """Returns what this machine's workers say."""
        return self.call("workers", prefix=f"{self.joined.name}.")

    def leave(self) -> None:
        """Says that this machine is done; an evaluator that does not hear it will miss this machine soon."""
        self.joined = replace(self.joined, patience_s=LEAVE_S)
        self.call("leave")

    # --- what the machine with the store does -----------------------------------------------------------------

    def expire(self, now: float, retries: int) -> list[Fault]:
        """Returns nothing: leases run out by the evaluator's clock."""
        return []

    def undrawn(self, invocation: int, wanted: Callable[[bool, int], bool]) -> list[Lease]:
        """Returns nothing: films of earlier invocations are drawn where their episodes lie."""
        return []

    # --- over HTTP ----------------------------------------------------------------------------------------------

    def call(self, name: str, /, **sent: Any) -> Any:
        """Returns what the call answers; see `coordinator.calls`."""
        body = json.dumps({**sent, "invocation": self.joined.invocation, "key": self.joined.key}).encode()
        return self._ask(f"/v1/calls/{name}", "application/json", body)["value"]

    def _send(self, lease: Lease, kind: str, path: Path) -> bool:
        """Sends a file; False where the lease is no longer held."""
        body, joined = path.read_bytes(), self.joined
        words = {"kind": kind, "token": lease.token, "sha256": hashlib.sha256(body).hexdigest()}
        query = urlencode({**words, "invocation": joined.invocation, "key": joined.key})
        return self._ask(f"/v1/files?{query}", "application/octet-stream", body)["held"]

    def _ask(self, route: str, media_type: str, body: bytes) -> dict[str, Any]:
        """Returns the answer; asks again for `patience_s` where none comes, since every call may be repeated."""
        deadline, rule, attempt = Deadline(self.joined.patience_s), RetryRule(), 0
        headers = {**self.headers, "Content-Type": media_type}
        while True:
            try:
                response = self.transport.request("POST", route, CALL_S, headers, body)
                if response.status not in AGAIN:
                    return _answer(self.joined.url, response)
                why = f"HTTP {response.status}"
            except FAULTS as error:
                why = str(error) or type(error).__name__
            if deadline.left_s() <= 0:
                raise StoreError(
                    f"the evaluator at {self.joined.url} has not answered for {deadline.seconds:g} s ({why}); what was "
                    "finished is safe: once it is up again (--resume), join it again"
                )
            time.sleep(min(rule.wait_s(attempt, None), max(0.05, deadline.left_s())))
            attempt += 1


def _answer(url: str, response: Any) -> dict[str, Any]:
    try:
        value = json.loads(response.body)
    except ValueError:
        value = None
    if response.status != 200 or not isinstance(value, dict):
        detail = value.get("detail") if isinstance(value, dict) else None
        raise StoreError(
            f"the evaluator at {url}: {detail or f'HTTP {response.status}, and no answer of an evaluator'}"
        )
    return value


def open_store(folder: Path, token: str | None) -> RunStore | RemoteStore:
    """Returns the store of a run's folder: its own, or that of the evaluator which this machine has joined."""
    if (folder / JOINED).is_file():
        return RemoteStore(folder, Joined.read(folder), token)
    return RunStore(folder / "run.sqlite", check=False)
