"""A run's store on another machine, and functions for both kinds of stores."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from vla_contract.client.transport import FAULTS, Deadline, Transport, backoff_s
from vla_contract.protocol.tokens import check_token
from vla_evaluation.runs import STORE
from vla_evaluation.store.records import Counts, FailedAttempt, Lease, StoreError
from vla_evaluation.store.runstore import RunStore

JOINED = "joined.json"  # in the directory of a machine that has joined a run; its workers find the store by it
CALL_TIMEOUT_S = 30.0  # of one try
LEAVE_TIMEOUT_S = 5.0
RETRY_STATUS = (408, 429, 502, 503, 504)


@dataclass(frozen=True)
class Joined:
    """The run that a machine has joined. The token is not part of it: it stays in the environment."""

    url: str
    invocation: int
    name: str  # of this machine in the run
    key: str  # random; distinguishes machines of the same name
    patience_s: float  # for an evaluator that does not answer
    job: Mapping[str, Any]

    @classmethod
    def read(cls, directory: Path) -> Joined:
        return cls(**json.loads((directory / JOINED).read_text()))

    def write(self, directory: Path) -> None:
        (directory / JOINED).write_text(json.dumps(asdict(self), indent=1))


class RemoteStore:
    """The part of `RunStore` that workers and their supervisor use, over HTTP; see `coordinator.calls`.

    Times passed to it are not sent: the evaluator's clock is the only one. Raises StoreError if the evaluator
    rejects a call or has not answered for `patience_s`.
    """

    def __init__(self, directory: Path, joined: Joined, token: str | None):
        self.directory, self.joined = directory, joined
        self.transport = Transport(joined.url)
        self.headers = {"Authorization": f"Bearer {check_token('the token (VLALAB_TOKEN)', token)}"} if token else {}

    def meta(self, key: str) -> Any:
        """Return the job, the only metadata that a worker needs."""
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
        lease = self.call("lease", worker=worker, prefer_task=prefer_task, token=token, policies=list(policies))
        return lease and Lease(**lease)

    def heartbeat(self, lease: Lease, now: float, lease_s: float, steps: int = 0) -> bool:
        return self.call("heartbeat", lease=asdict(lease), steps=steps)

    def release(self, lease: Lease) -> bool:
        return self.call("release", lease=asdict(lease))

    def fail(self, lease: Lease, error: str, now: float, retries: int, by_policy: bool = False) -> bool:
        return self.call("fail", lease=asdict(lease), error=error, by_policy=by_policy)

    def finish_with(self, lease: Lease, result: dict[str, Any], now: float, draft: Path, final: Path) -> bool:
        """Send the episode's file, then its result."""
        return self._send(lease, "episode", draft) and self.call("finish", lease=asdict(lease), result=result)

    def add_to_result(self, lease: Lease, more: dict[str, Any]) -> None:
        """Send the files that `more` names, then `more`; the files are deleted here."""
        files = {
            kind: self.directory / more[name] for kind, name in (("film", "video"), ("still", "still")) if name in more
        }
        if all([self._send(lease, kind, path) for kind, path in files.items()]):
            self.call("add_to_result", lease=asdict(lease), more=more, files=list(files))
        for path in files.values():
            path.unlink()

    def take_back(self, worker: str, now: float, retries: int, reason: str) -> list[FailedAttempt]:
        return [FailedAttempt(**fault) for fault in self.call("take_back", worker=worker, reason=reason)]

    def set_status(self, worker: str, invocation: int, status: str, now: float) -> None:
        self.call("say", worker=worker, status=status)

    def open(self) -> bool:
        return self.call("is_open")

    def counts(self) -> Counts:
        return {row.pop("task"): row for row in self.call("counts")}

    def leases(self) -> dict[str, Lease]:
        """Return the leases of this machine's workers."""
        leases = self.call("leases", prefix=f"{self.joined.name}.")
        return {worker: Lease(**lease) for worker, lease in leases.items()}

    def is_last_try_of_policy(self, lease: Lease, retries: int) -> bool:
        return self.call("is_last_try_of_policy", lease=asdict(lease))

    def outcome_rank(self, lease: Lease) -> int:
        return self.call("place", lease=asdict(lease))

    def faults(self, invocation: int) -> list[FailedAttempt]:
        return [FailedAttempt(**fault) for fault in self.call("faults")]

    def workers(self) -> dict[str, str]:
        """Return the status of this machine's workers."""
        return self.call("workers", prefix=f"{self.joined.name}.")

    def leave(self) -> None:
        """Report that this machine is done; otherwise the evaluator waits until its lease time has passed."""
        self.joined = replace(self.joined, patience_s=LEAVE_TIMEOUT_S)
        self.call("leave")

    # --- done on the evaluator's machine ----------------------------------------------------------------------

    def expire(self, now: float, retries: int) -> list[FailedAttempt]:
        """Return nothing: leases run out by the evaluator's clock."""
        return []

    def missing_videos(self, invocation: int, wants_video: Callable[[bool, int], bool]) -> list[Lease]:
        """Return nothing: videos of earlier invocations are rendered where their episodes are stored."""
        return []

    # --- HTTP -------------------------------------------------------------------------------------------------

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Return the value of a call of `coordinator.calls`."""
        body = json.dumps({**arguments, "invocation": self.joined.invocation, "key": self.joined.key}).encode()
        return self._post(f"/v1/calls/{name}", "application/json", body)["value"]

    def _send(self, lease: Lease, kind: str, path: Path) -> bool:
        """Send a file; False if the lease has ended."""
        body = path.read_bytes()
        file_query = {"kind": kind, "token": lease.token, "sha256": hashlib.sha256(body).hexdigest()}
        query = urlencode({**file_query, "invocation": self.joined.invocation, "key": self.joined.key})
        return self._post(f"/v1/files?{query}", "application/octet-stream", body)["held"]

    def _post(self, route: str, media_type: str, body: bytes) -> dict[str, Any]:
        """Return the answer, repeating the request for `patience_s`; every call may be repeated."""
        deadline, attempt = Deadline(self.joined.patience_s), 0
        headers = {**self.headers, "Content-Type": media_type}
        while True:
            try:
                response = self.transport.request("POST", route, CALL_TIMEOUT_S, headers, body)
                if response.status not in RETRY_STATUS:
                    break
                reason = f"HTTP {response.status}"
            except FAULTS as error:
                reason = str(error) or type(error).__name__
            if deadline.left_s() <= 0:
                raise StoreError(
                    f"the evaluator at {self.joined.url} has not responded for {deadline.seconds:g} s ({reason}); "
                    "finished episodes are stored. Join it again after it is resumed (--resume)"
                )
            time.sleep(min(backoff_s(attempt), max(0.05, deadline.left_s())))
            attempt += 1
        try:
            value = json.loads(response.body)
        except ValueError:
            value = None
        if response.status != 200 or not isinstance(value, dict):
            detail = value.get("detail") if isinstance(value, dict) else None
            reason = detail or f"HTTP {response.status}, not a response of an evaluator"
            raise StoreError(f"the evaluator at {self.joined.url}: {reason}")
        return value


Store = RunStore | RemoteStore


def open_store(directory: Path, token: str | None) -> Store:
    """Return the store of a run's directory: its own, or that of the evaluator which this machine has joined."""
    if (directory / JOINED).is_file():
        return RemoteStore(directory, Joined.read(directory), token)
    return RunStore(directory / STORE, check=False)


def save_episode(
    store: Store,
    directory: Path,
    lease: Lease,
    result: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    now: Callable[[], float],
    **finishing: Any,
) -> bool:
    """Store a leased episode's result and a file of its arrays in a run's directory, both or neither.

    False if the lease was lost. `finishing` are further arguments of `RunStore.finish`.
    """
    name = f"{lease.stem}.npz"
    final, draft = directory / "episodes" / name, directory / "episodes" / f".{name}.{lease.token}"
    try:
        with open(draft, "wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        return store.finish_with(lease, {**result, "recording": f"episodes/{name}"}, now(), draft, final, **finishing)
    finally:
        draft.unlink(missing_ok=True)
