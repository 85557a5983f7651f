"""The client of a policy service: keep-alive, retries with backoff, a deadline per call."""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from vla_contract import codec
from vla_contract.errors import PolicyRefused, PolicyUnavailable, SessionLost
from vla_contract.info import PolicyInfo
from vla_contract.messages import decode_chunk, encode_observation
from vla_contract.retry import Deadline, RetryRule
from vla_contract.types import ActionChunk, Observation

_PACKED = {"Content-Type": codec.MEDIA_TYPE}
_AGAIN = frozenset({408, 429, 502, 503, 504})  # the server, or what stands before it, asks to come again
_FINAL = "load-failed"  # a 503 that waiting will not change


class PolicyClient:
    """Talks to one policy service. Use one per process; safe to share between threads.

    timeout_s    for one try, from connecting to the last byte of the answer's next piece
    deadline_s   for one call with all its tries and pauses
    retries      tries after the first, for 429, 503 and connection errors

    Raises PolicyUnavailable (an infrastructure fault; SessionLost is one of them) and PolicyRefused (our
    observation or configuration is wrong). A call that is tried again keeps its X-Request-Id, so that a stateful
    policy answers a repeat from memory instead of stepping twice.
    """

    def __init__(
        self,
        base_url: str,
        token: str | None = None,
        timeout_s: float = 30.0,
        deadline_s: float = 120.0,
        retries: int = 8,
        rule: RetryRule | None = None,
    ):
        url = _url(base_url)
        if timeout_s <= 0 or deadline_s <= 0:
            raise ValueError(f"timeout_s={timeout_s}, deadline_s={deadline_s}; expected seconds > 0")
        self.base_url = str(url).rstrip("/")
        self.timeout_s, self.deadline_s = timeout_s, deadline_s
        self._rule = rule or RetryRule(retries=retries)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            limits=httpx.Limits(max_keepalive_connections=8, keepalive_expiry=60.0),
            trust_env=url.scheme == "https",  # a proxy from the environment has no business before a lab's own service
        )

    def info(self) -> PolicyInfo:
        """Returns what the policy says about itself."""
        answer = self._call("GET", "/v1/info")
        try:
            return PolicyInfo.from_dict(answer.json())
        except (ValueError, TypeError, AttributeError) as error:
            raise PolicyRefused(f"{self.base_url}/v1/info answered no valid PolicyInfo: {error}") from error

    def act(self, observation: Observation) -> ActionChunk:
        """Returns the next actions; `timings_ms["round_trip"]` holds what the whole call took here."""
        start = time.perf_counter()
        answer = self._call("POST", "/v1/act", encode_observation(observation))
        try:
            chunk = decode_chunk(answer.content)
        except ValueError as error:
            raise PolicyUnavailable(f"{self.base_url}/v1/act answered no valid action chunk: {error}") from error
        chunk.timings_ms["round_trip"] = (time.perf_counter() - start) * 1e3
        return chunk

    def reset(self, session: str) -> None:
        """Makes the policy forget a session; a session it never knew is fine."""
        self._call("POST", "/v1/reset", codec.pack({"session": session}))

    def wait_ready(self, timeout_s: float, on_wait: Callable[[float, str], None] | None = None) -> None:
        """Returns once `/readyz` answers 200; calls `on_wait(seconds waited, reason)` about once a second.

        Raises PolicyUnavailable when that takes longer than `timeout_s` or when loading has failed.
        """
        deadline = Deadline(timeout_s)
        while True:
            reason = self._not_ready(min(self.timeout_s, max(deadline.left_s(), 0.1)))
            if reason is None:
                return
            if deadline.left_s() <= 0:
                raise PolicyUnavailable(f"{self.base_url} is not ready after {timeout_s:g} s: {reason}")
            if on_wait:
                on_wait(timeout_s - deadline.left_s(), reason)
            time.sleep(min(1.0, max(deadline.left_s(), 0.0)))

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> "PolicyClient":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def _not_ready(self, timeout_s: float) -> str | None:
        try:
            answer = self._http.get(self.base_url + "/readyz", timeout=timeout_s)
        except httpx.HTTPError as error:
            return _text(error)
        if answer.status_code == 200:
            return None
        problem = _problem(answer)
        if str(problem.get("type", "")).endswith(_FINAL):
            raise PolicyUnavailable(f"{self.base_url}: {problem.get('detail')}", answer.status_code, problem)
        return str(problem.get("detail") or f"HTTP {answer.status_code}")

    def _call(self, method: str, route: str, body: bytes | None = None) -> httpx.Response:
        deadline = Deadline(self.deadline_s)
        headers = {"X-Request-Id": uuid.uuid4().hex, **(_PACKED if body is not None else {})}
        attempt = 0
        while True:
            asked_s, fault = None, None
            try:
                timeout_s = min(self.timeout_s, max(deadline.left_s(), 0.001))
                headers["X-Timeout-S"] = f"{timeout_s:.3f}"  # past it the server need not begin
                url = self.base_url + route
                answer = self._http.request(method, url, content=body, headers=headers, timeout=timeout_s)
            except httpx.HTTPError as error:
                fault = PolicyUnavailable(f"{self.base_url}{route}: {_text(error)}")
            else:
                if answer.status_code == 200:
                    return answer
                fault, asked_s = _fault(self.base_url + route, answer)
                if answer.status_code not in _AGAIN or str(fault.problem.get("type", "")).endswith(_FINAL):
                    raise fault
            wait_s = self._rule.wait_s(attempt, asked_s)
            if attempt >= self._rule.retries or wait_s >= deadline.left_s():
                spent = f"{attempt + 1} tries in {self.deadline_s - deadline.left_s():.1f} s"
                raise PolicyUnavailable(f"{fault} ({spent})", fault.status, fault.problem) from fault
            time.sleep(wait_s)
            attempt += 1


def _url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, TypeError):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"policy address {text!r} is no URL; expected for example http://127.0.0.1:8001")
    return url


def _fault(url: str, answer: httpx.Response) -> tuple[PolicyUnavailable | PolicyRefused, float | None]:
    problem, status = _problem(answer), answer.status_code
    text = f"{url} answered {status}: {problem.get('detail') or problem.get('title') or answer.reason_phrase}"
    kind = PolicyRefused if 300 <= status < 500 and status not in _AGAIN else PolicyUnavailable
    asked = problem.get("retry_after_s", answer.headers.get("Retry-After"))
    return (SessionLost if status == 409 else kind)(text, status, problem), _seconds(asked)


def _problem(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        members = json.loads(answer.content)
    except ValueError:
        members = {}
    return members if isinstance(members, dict) else {}


def _seconds(value: Any) -> float | None:
    try:
        return min(max(float(value), 0.0), 3600.0)
    except (TypeError, ValueError):
        return None  # absent, or an HTTP date, which our servers never send


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
