"""The client of a policy service: keep-alive, retries with backoff, a deadline per call."""

import http.client
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from vla_contract.client.transport import FAULTS, Deadline, Response, Transport, backoff_s
from vla_contract.protocol import codec
from vla_contract.protocol.errors import PolicyError, PolicyRefused, PolicyUnavailable, SessionLost
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.messages import decode_chunk, encode_observation
from vla_contract.protocol.tokens import check_token
from vla_contract.protocol.types import ActionChunk, Observation

_RETRYABLE = frozenset({408, 429, 502, 503, 504})  # temporary: of the server or a proxy
_FINAL = "load-failed"  # a 503 that is permanent
SUPPORTED_PROTOCOLS = (
    "Supported: policy services of the lab (http://), OpenVLA's and OpenVLA-OFT's /act (act://), openpi's and "
    "vla-eval's servers (ws://)"
)


class PolicyClient(AbstractContextManager["PolicyClient"]):
    """Talks to one policy service. Use one per process; safe to share between threads.

    timeout_s    of one attempt, from connecting to the last byte of the response
    deadline_s   of one call with all its attempts and pauses
    retries      attempts after the first, for 429, 503 and connection errors

    Raises PolicyUnavailable (an infrastructure fault; SessionLost is one of them) and PolicyRefused (our
    observation or configuration is wrong). All attempts of a call have one X-Request-Id: a stateful policy answers
    a repeat from its cache instead of stepping twice.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        retries: int = 8,
    ):
        if timeout_s <= 0 or deadline_s <= 0 or retries < 0:
            values = f"timeout_s={timeout_s}, deadline_s={deadline_s}, retries={retries}"
            raise ValueError(f"{values}; expected seconds > 0 and retries >= 0")
        self.timeout_s, self.deadline_s, self.retries = timeout_s, deadline_s, retries
        self._name, self._count = uuid.uuid4().hex, itertools.count()
        self._transport = Transport(base_url)
        self._token = {"Authorization": f"Bearer {check_token('the token (VLALAB_TOKEN)', token)}"} if token else {}

    @property
    def base_url(self) -> str:
        """The service's address."""
        return self._transport.base_url

    def info(self) -> PolicyInfo:
        """Return the policy's description."""
        answer = self._call("GET", "/v1/info")
        try:
            return PolicyInfo.from_dict(json.loads(answer.body))
        except (ValueError, TypeError, AttributeError) as error:
            raise PolicyRefused(f"{self.base_url}/v1/info returned an invalid PolicyInfo: {error}") from error

    def act(self, observation: Observation) -> ActionChunk:
        """Return the next actions; `timings_ms["round_trip"]` is the duration of this call."""
        start = time.perf_counter()
        answer = self._call("POST", "/v1/act", encode_observation(observation))
        try:
            chunk = decode_chunk(answer.body)
        except ValueError as error:
            raise PolicyUnavailable(f"{self.base_url}/v1/act returned an invalid action chunk: {error}") from error
        assert isinstance(chunk.timings_ms, dict)  # from decode_chunk
        chunk.timings_ms["round_trip"] = (time.perf_counter() - start) * 1e3
        return chunk

    def reset(self, session: str) -> None:
        """Make the policy forget a session; unknown sessions are ignored."""
        self._call("POST", "/v1/reset", codec.pack({"session": session}))

    def reset_all(self, prefix: str) -> None:
        """Make the policy forget all sessions with this prefix, for example those of a finished run."""
        self._call("POST", "/v1/reset", codec.pack({"prefix": prefix}))

    def wait_ready(self, timeout_s: float, on_wait: Callable[[float, str], None] | None = None) -> None:
        """Wait until `/readyz` returns 200; call `on_wait(seconds waited, reason)` about once a second.

        Raises PolicyUnavailable after `timeout_s` or if loading has failed, PolicyRefused if the URL is not of a policy
        service.
        """
        deadline, pause_s, reported_s = Deadline(timeout_s), 0.05, -1.0
        while True:
            reason = self._not_ready(min(self.timeout_s, max(deadline.left_s(), 0.1)))
            if reason is None:
                return
            if deadline.left_s() <= 0:
                raise PolicyUnavailable(f"{self.base_url} is not ready after {timeout_s:g} s: {reason}")
            waited_s = timeout_s - deadline.left_s()
            if on_wait and waited_s - reported_s >= 1.0:
                on_wait(waited_s, reason)
                reported_s = waited_s
            time.sleep(min(pause_s, max(deadline.left_s(), 0.0)))
            pause_s = min(1.5 * pause_s, 1.0)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _not_ready(self, timeout_s: float) -> str | None:
        """Return the reason why the policy is not ready, None if it is."""
        try:
            answer = self._transport.request("GET", "/readyz", timeout_s, {})
        except FAULTS as error:
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
                message = f"{self.base_url} does not speak HTTP: {_reason(error)}. {SUPPORTED_PROTOCOLS}"
                raise PolicyRefused(message) from error
            return _reason(error)
        if answer.status == 200:
            return None
        problem = _problem(answer)
        if 300 <= answer.status < 500 and answer.status not in _RETRYABLE:
            detail = problem.get("detail") or f"it is not a policy service of the lab. {SUPPORTED_PROTOCOLS}"
            message = f"{self.base_url}/readyz answered HTTP {answer.status}: {detail}"
            raise PolicyRefused(message, answer.status, problem)
        if str(problem.get("type", "")).endswith(_FINAL):
            raise PolicyUnavailable(f"{self.base_url}: {problem.get('detail')}", answer.status, problem)
        return str(problem.get("detail") or f"HTTP {answer.status}")

    def _call(self, method: str, route: str, body: bytes | None = None) -> Response:
        """Return the response, of status 200. Raises a permanent fault, or that of the last attempt."""
        deadline, url = Deadline(self.deadline_s), self.base_url + route
        headers = {"X-Request-Id": f"{self._name}-{os.getpid()}-{next(self._count)}", **self._token}
        if body is not None:
            headers["Content-Type"] = codec.MEDIA_TYPE
        for attempt in itertools.count():
            timeout_s, requested_s = min(self.timeout_s, max(deadline.left_s(), 0.001)), 0.0
            headers["X-Timeout-S"] = f"{timeout_s:.3f}"  # the server drops the request afterwards
            try:
                answer = self._transport.request(method, route, timeout_s, headers, body)
            except FAULTS as error:
                fault: PolicyError = PolicyUnavailable(f"{url}: {_reason(error, timeout_s)}")
            else:
                if answer.status == 200:
                    return answer
                fault = _fault(url, answer)
                if answer.status not in _RETRYABLE or str(fault.problem.get("type", "")).endswith(_FINAL):
                    raise fault
                with suppress(TypeError, ValueError):  # missing, or an HTTP date, which our servers never send
                    stated: Any = fault.problem.get("retry_after_s", answer.headers.get("Retry-After"))
                    requested_s = min(max(float(stated), 0.0), 3600.0)
            wait_s = backoff_s(attempt, requested_s)
            if attempt >= self.retries or wait_s >= deadline.left_s():
                spent = f"{attempt + 1} tries in {self.deadline_s - deadline.left_s():.1f} s"
                raise PolicyUnavailable(f"{fault} ({spent})", fault.status, fault.problem) from fault
            time.sleep(wait_s)
        raise AssertionError


def _fault(url: str, answer: Response) -> PolicyError:
    problem, status = _problem(answer), answer.status
    text = f"{url} answered {status}: {problem.get('detail') or problem.get('title') or answer.reason}"
    text += "; set VLALAB_TOKEN here to the token that the service was started with" if status == 401 else ""
    kind = PolicyRefused if 300 <= status < 500 and status not in _RETRYABLE else PolicyUnavailable
    return (SessionLost if status == 409 else kind)(text, status, problem)


def _problem(answer: Response) -> Mapping[str, Any]:
    with suppress(ValueError):
        if isinstance(members := json.loads(answer.body), dict):
            return members
    return {}


def _reason(error: Exception, timeout_s: float = 0.0) -> str:
    """Return a fault's message: the system's, without its number, if it has one."""
    if isinstance(error, TimeoutError) and timeout_s:  # with an errno: the kernel got no acknowledgement
        return "the server's machine does not respond" if error.errno else f"no answer within {timeout_s:.3g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
