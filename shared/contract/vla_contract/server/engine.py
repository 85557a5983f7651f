"""The policy's thread: it loads, warms, and answers batches; the event loop only waits (unless `inline`)."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vla_contract.protocol.errors import ContractError, PolicyLost
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation, Policy
from vla_contract.server.batching import BatchQueue, Call, Job, stopping
from vla_contract.server.metrics import Metrics
from vla_contract.server.outcomes import Outcome, run_batch, warm_up

log = logging.getLogger("vla_contract")
LOADING, READY, FAILED, STOPPED = "loading", "ready", "failed", "stopped"
FAILURES = 10  # requests in a row that the policy failed; a device's own error is enough by itself
STUCK_S = 120.0  # an inference that takes longer has met a dead device or a deadlock
_DEVICE_ERROR = re.compile(  # by names and texts: torch is not in this environment
    r"CUDA error|CUDA driver|cudaError|cuBLAS|cuDNN|cuSOLVER|cuSPARSE|cuFFT|NVRTC|NVML|HIP error|Triton Error \[",
    re.IGNORECASE,
)


@dataclass(eq=False)
class Engine:
    """Owns the policy. `start` and `submit` are called on the event loop, all policy calls on one thread.

    inline: that thread only loads, warms and closes; the event loop itself calls a policy that never blocks.
    """

    load: Callable[[], Policy]
    queue: BatchQueue
    metrics: Metrics
    max_batch: int | None = None
    inline: bool = False
    on_failure: Callable[[], None] | None = None  # called once when the policy cannot be used any more, on its thread
    stuck_s: float = STUCK_S
    state: str = LOADING
    reason: str = "the policy's weights are being loaded"
    info: PolicyInfo | None = None
    policy: Policy | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _started: float = field(default_factory=time.monotonic)
    _busy_since: float | None = None
    _failures: int = 0  # in a row
    _in_doubt: bool = False
    _failure_kind: str = "load-failed"  # of problem

    def start(self) -> None:
        """Start loading in the background."""
        self.metrics.queue_length.set_function(self.queue.__len__)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Fail what still waits, let the running inference finish, and close the policy."""
        _resolve([(item.future, stopping()) for item in self.queue.close()])
        if self._thread is not None:
            self._thread.join(timeout_s if self.state == READY else 0.1)  # loading cannot be interrupted
        self.state = STOPPED

    def require_ready(self) -> PolicyInfo:
        """Return the policy's info. Raises Problem (503) with the reason while it is not ready."""
        if self.state == READY:
            return self.info
        if self.state == FAILED:
            raise self._failed()
        if self.state == STOPPED:
            raise stopping()
        seconds = time.monotonic() - self._started
        raise Problem.retry_after("loading", f"{self.reason}, for {seconds:.0f} s so far; wait for /readyz", 1.0)

    def require_alive(self) -> PolicyInfo:
        """Return the policy's info; Problem (503) too while one inference has been running for very long."""
        info, since = self.require_ready(), self._busy_since
        if since is not None and (seconds := time.monotonic() - since) > self.stuck_s:
            detail = f"one inference has been running for {seconds:.0f} s; look at the device and restart"
            raise Problem("stuck", detail)
        return info

    def admit(self) -> None:
        """Raise Problem where a request cannot be taken now: 503 while not ready, 429 with a full queue."""
        self.require_ready()
        if not self.inline:
            self.queue.require_room()

    def submit(self, observation: Observation, client: str, timeout_s: float) -> Job:
        """Return the job; its future becomes the outcome. Raises Problem (429) when the queue is full."""
        job = Job(observation, self._loop.create_future(), client, time.monotonic() + timeout_s)
        self._put(job)
        return job

    def call(self, function: Callable[[], object]) -> asyncio.Future:
        """Return a future of what `function` returns on the policy's thread."""
        call = Call(function, self._loop.create_future())
        self._put(call)
        return call.future

    def _put(self, item: Job | Call) -> None:
        if self.inline:
            _resolve(self._results([item]))
        else:
            self.queue.put(item)

    def give_up(self, job: Job) -> None:
        """Take back a job whose sender has disconnected; one that is being computed continues."""
        if not job.future.done() and self.queue.remove(job):
            job.future.set_exception(_expired())

    def answered(self) -> None:
        """Let the policy prepare for the next request. Called on the event loop after an answer is sent.

        Not earlier: two threads of one Python would slow each other down, and the answer would wait.
        """
        if type(self.policy).settle is Policy.settle:
            return  # nothing to do: its thread need not wake
        if self.inline:
            self._settle_policy()
        else:
            self.queue.at_leisure(self._settle_policy)

    def _run(self) -> None:
        try:
            self._prepare()
        except BaseException as error:
            expected = isinstance(error, ContractError) and not isinstance(error, Problem)  # not a fault of the code
            text = str(error) if expected else f"{_one_line(error)}; the service's log has the traceback"
            log.error("the policy could not be loaded: %s", error, exc_info=None if expected else error)
            self._fail(f"the policy could not be loaded: {text}")
            return
        while (item := self.queue.take()) is not None:
            if isinstance(item, Call) and item.future is None:
                item.function()
                continue
            self._hand_over(self._results([item] if isinstance(item, Call) else item))
            if self._in_doubt:
                self._test_again()
        self.policy.close()

    def _prepare(self) -> None:
        self.policy = self.load()
        if not isinstance(self.policy, Policy):
            raise TypeError(f"the loader returned a {type(self.policy).__name__}; expected a vla_contract.Policy")
        self.info = self.policy.info()
        if not isinstance(self.info, PolicyInfo):
            raise TypeError(f"info() returned a {type(self.info).__name__}; expected a PolicyInfo")
        self.metrics.watch(self.policy.counters)
        self.queue.max_batch = min(self.info.max_batch, self.max_batch or self.info.max_batch)
        self.reason = "the weights are loaded and a first inference is running"
        start = time.monotonic()
        warm_up(self.policy, self.info)
        self.queue.inferred(time.monotonic() - start)
        self.state = READY
        self.metrics.ready.set(1)
        log.info("policy %s is ready after %.1f s", self.info.name, time.monotonic() - self._started)

    def _results(self, items: list) -> list[tuple]:
        """Return (future, result or exception) of one call, or of the jobs of a batch."""
        try:
            if isinstance(items[0], Call):
                return [(items[0].future, items[0].function())]
            return self._infer(items)
        except BaseException as error:  # the thread must not die with requests waiting on it
            log.exception("a reset or a batch failed")
            if isinstance(items[0], Call):
                problem = Problem("policy-failed", "the policy could not reset the session; see its log")
            else:
                problem = Problem("internal", f"the server failed with {type(error).__name__}; see the service's log")
            return [(item.future, problem) for item in items]

    def _infer(self, jobs: list[Job]) -> list[tuple]:
        now = time.monotonic()
        live = [job for job in jobs if job.expires > now]
        expired = [(job.future, _expired()) for job in jobs if job.expires <= now]
        if not live:
            return expired
        self._busy_since = now
        try:
            outcomes = run_batch(self.policy, self.info, [job.observation for job in live])
        finally:
            self._busy_since = None
        failed = [outcome for outcome in outcomes if isinstance(outcome, Problem) and outcome.status >= 500]
        self._failures = self._failures + len(failed) if len(failed) == len(outcomes) else 0
        causes = [problem.__cause__ for problem in failed]
        is_lost = any(isinstance(cause, PolicyLost) or is_device_error(cause) for cause in causes)
        self._in_doubt = is_lost or self._failures >= FAILURES
        infer_s = time.monotonic() - now
        self.queue.inferred(infer_s)
        self.queue.answered(live)
        size = len(live)
        for job, outcome in zip(live, outcomes, strict=True):
            if isinstance(outcome, Outcome):
                outcome.queue_s, outcome.infer_s, outcome.batch, size = now - job.queued, infer_s, size, 0
        return expired + [(job.future, outcome) for job, outcome in zip(live, outcomes, strict=True)]

    def _hand_over(self, results: list[tuple]) -> None:
        try:
            self._loop.call_soon_threadsafe(_resolve, results)
        except RuntimeError:
            log.info("the event loop was closed before %d answers were given", len(results))

    def _settle_policy(self) -> None:
        try:
            self.policy.settle()
        except Exception:
            log.exception("the policy's settle failed")

    def _test_again(self) -> None:
        """Do the first inference once more: if that fails too, the fault is not in the requests."""
        self._in_doubt, self._failures, self._busy_since = False, 0, time.monotonic()
        try:
            warm_up(self.policy, self.info)
        except BaseException as error:
            log.exception("the policy does not answer any more; the service ends and is to be started again")
            self._failure_kind = "policy-lost"
            self._fail(f"the policy does not answer any more: {_one_line(error)}; the service ends and starts again")
        finally:
            self._busy_since = None

    def _fail(self, reason: str) -> None:
        self.reason, self.state = reason, FAILED
        self.metrics.ready.set(0)
        self._hand_over([(item.future, self._failed()) for item in self.queue.close()])
        if self.on_failure:
            self.on_failure()

    def _failed(self) -> Problem:
        if self._failure_kind == "policy-lost":
            return Problem.retry_after(self._failure_kind, self.reason, 2.0)
        return Problem(self._failure_kind, self.reason)


def is_device_error(error: BaseException | None) -> bool:
    """Return whether this, or its cause, is an error of a device or of one of its libraries; a full GPU is not.

    This is a suspicion only: some errors of CUDA pass with the request that made them.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
        is_full = "OutOfMemoryError" in kinds or "error: out of memory" in text
        if not is_full and ("AcceleratorError" in kinds or _DEVICE_ERROR.search(text)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _resolve(results: list[tuple]) -> None:
    for future, result in results:
        if not future.done():
            future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)


def _expired() -> Problem:
    return Problem("expired", "the request waited longer than its sender would; ask again, or with fewer workers")


def _one_line(error: BaseException) -> str:
    if isinstance(error, Problem) and error.__cause__ is not None:
        error = error.__cause__  # the service's log may show a cause that its answers may not
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
