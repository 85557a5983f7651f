"""The policy's thread: it loads, warms up and runs batches, which a task of the event loop takes from the queue."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from vla_contract.protocol.errors import ContractError, PolicyLost
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation, Policy
from vla_contract.server.batching import BatchQueue, InferenceJob
from vla_contract.server.metrics import Metrics
from vla_contract.server.outcomes import Outcome, run_batch, warm_up
from vla_contract.server.tenants import Tenant

log = logging.getLogger("vla_contract")
LOADING, READY, FAILED, STOPPED = "loading", "ready", "failed", "stopped"
FAILURES = 10  # consecutive failed requests; one error of a device is enough
STUCK_S = 120.0  # longer inferences mean a dead device or a deadlock
_DEVICE_ERROR = re.compile(  # by names and texts: torch is not in this environment
    r"CUDA error|CUDA driver|cudaError|cuBLAS|cuDNN|cuSOLVER|cuSPARSE|cuFFT|NVRTC|NVML|HIP error|Triton Error \[",
    re.IGNORECASE,
)


@dataclass(eq=False)
class PolicyEngine:
    """Owns the policy. Its methods are called on the event loop; the policy's on one thread.

    inline: that thread only loads, warms up and closes; the event loop itself calls a policy that never blocks.
    """

    load: Callable[[], Policy]
    queue: BatchQueue
    metrics: Metrics
    max_batch: int | None = None
    inline: bool = False
    on_failure: Callable[[], None] | None = None  # called once when the policy cannot be used any more
    stuck_s: float = STUCK_S
    state: str = LOADING
    reason: str = "the policy's weights are being loaded"
    info: PolicyInfo = field(init=False)  # set when loaded
    policy: Policy = field(init=False)
    _calls: "SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]" = field(default_factory=SimpleQueue)
    _started: float = field(default_factory=time.monotonic)
    _busy_since: float | None = None
    _failures: int = 0  # in a row
    _failure_kind: str = "load-failed"  # of problem
    _settling: "asyncio.Future[None] | None" = None
    _testing: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Start loading in the background."""
        self.metrics.queue_length.set_function(self.queue.__len__)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run_calls, name="policy", daemon=True)
        self._thread.start()
        self._task = self._loop.create_task(self._run())

    def stop(self, timeout_s: float = 3.0) -> None:
        """Fail what still waits, let the running inference finish, and close the policy."""
        was_ready, self.state = self.state == READY, STOPPED
        # During an inference the task continues: it delivers the result to the waiting requests.
        if self._busy_since is None:
            self._task.cancel()
        self._fail_jobs()
        self._calls.put(None)
        self._thread.join(timeout_s if was_ready else 0.1)  # loading cannot be interrupted

    def require_ready(self) -> PolicyInfo:
        """Return the policy's info. Raises Problem (503) with the reason while it is not ready."""
        if self.state == READY:
            return self.info
        raise self._problem()

    def require_alive(self) -> PolicyInfo:
        """Return the policy's info; Problem (503) too while one inference has been running for very long."""
        info, since = self.require_ready(), self._busy_since
        if since is not None and (seconds := time.monotonic() - since) > self.stuck_s:
            detail = f"one inference has been running for {seconds:.0f} s; check the device and restart the service"
            raise Problem("stuck", detail)
        return info

    def admit(self, tenant: Tenant) -> None:
        """Raise Problem where a request cannot be taken now: 503 while not ready, 429 with a full queue."""
        self.require_ready()
        self.queue.require_room(tenant)

    def submit(self, observation: Observation, client: str, tenant: Tenant, timeout_s: float) -> InferenceJob:
        """Queue an observation; the job's future becomes its outcome. Raises Problem (429) when the queue is full."""
        self.require_ready()
        job = InferenceJob(observation, self._loop.create_future(), client, tenant, time.monotonic() + timeout_s)
        if self.inline:
            if self._answer([job], *_attempt(lambda: self._compute([job]))):
                self._testing = self._loop.create_task(self._check_policy())
        else:
            self.queue.put(job)
        return job

    def give_up(self, job: InferenceJob) -> None:
        """Cancel a job whose sender has disconnected, unless it is being computed."""
        if self.queue.remove(job):
            _resolve(job.future, error=_expired())

    def call(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Run a function on the policy's thread, after earlier calls; return a future of its result."""
        future = self._loop.create_future()
        if self.inline and self.state == READY:
            _resolve(future, *_attempt(function))
        else:
            self._calls.put((function, future))
        return future

    async def reset(self, sessions: list[str]) -> None:
        """Let the policy forget sessions. Raises Problem (500) if that fails."""
        self.require_ready()
        for session in sessions:
            for job in self.queue.of_session(session):
                self.give_up(job)
            self.queue.arrivals.forget(session)

        def reset() -> None:
            for session in sessions:
                self.policy.reset(session)

        try:
            await self.call(reset)
        except Exception as error:
            log.exception("a reset failed")
            raise Problem("policy-failed", "the policy could not reset the session; see its log") from error

    def after_response(self) -> None:
        """Let the policy prepare for the next request, unless requests are waiting. Called after a response is sent:
        before, the two threads would compete for the GIL and delay the response.
        """
        is_idle = self._busy_since is None and not len(self.queue) and (self._settling is None or self._settling.done())
        if is_idle and self.state == READY and type(self.policy).settle is not Policy.settle:

            def settle() -> None:
                try:
                    self.policy.settle()
                except Exception:
                    log.exception("the policy's settle failed")

            self._settling = self.call(settle)

    def _run_calls(self) -> None:
        """Run the policy's thread."""
        while (item := self._calls.get()) is not None:
            function, future = item
            try:
                self._loop.call_soon_threadsafe(_resolve, future, *_attempt(function))
            except RuntimeError:
                log.info("the event loop was closed before an answer was given")
        if hasattr(self, "policy"):
            self.policy.close()

    async def _run(self) -> None:
        """Load the policy and run batches until it fails."""
        try:
            await self.call(self._prepare)
        except Exception as error:
            expected = isinstance(error, ContractError) and not isinstance(error, Problem)  # not a bug
            text = str(error) if expected else f"{_summarize(error)}; the service's log has the traceback"
            log.error("the policy could not be loaded: %s", error, exc_info=None if expected else error)
            self._fail("load-failed", f"the policy could not be loaded: {text}")
            return
        self.state = READY
        self.metrics.ready.set(1)
        log.info("policy %s is ready after %.1f s", self.info.name, time.monotonic() - self._started)
        while self.state == READY:
            await self._infer(await self.queue.take())

    def _prepare(self) -> None:
        policy = self.load()
        if not isinstance(policy, Policy):
            raise TypeError(f"the loader returned a {type(policy).__name__}; expected a vla_contract.Policy")
        self.policy, self.info = policy, policy.info()
        if not isinstance(self.info, PolicyInfo):
            raise TypeError(f"info() returned a {type(self.info).__name__}; expected a PolicyInfo")
        self.metrics.watch(self.policy.counters)
        self.queue.max_batch = 1 if self.inline else min(self.info.max_batch, self.max_batch or self.info.max_batch)
        self.reason = "the weights are loaded and a first inference is running"
        start = time.monotonic()
        warm_up(self.policy, self.info)
        self.queue.record_inference(time.monotonic() - start, [])

    async def _infer(self, jobs: list[InferenceJob]) -> None:
        """Run a batch on the policy's thread, and hand each job its outcome."""
        now = time.monotonic()
        for job in jobs:
            if job.expires <= now:
                _resolve(job.future, error=_expired())
        jobs = [job for job in jobs if job.expires > now]
        if not jobs:
            return
        self._busy_since, result, error = now, None, None
        try:
            result = await self.call(lambda: self._compute(jobs))
        except Exception as raised:
            error = raised
        self._busy_since = None
        if self._answer(jobs, result, error) and self.state == READY:
            await self._check_policy()

    def _compute(self, jobs: list[InferenceJob]) -> tuple[list[Outcome | Problem], float]:
        """Return the outcomes and the seconds that they took."""
        start = time.monotonic()
        outcomes = run_batch(self.policy, self.info, [job.observation for job in jobs])
        infer_s = time.monotonic() - start
        for index, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True)):
            if isinstance(outcome, Outcome):
                outcome.queue_s, outcome.infer_s = start - job.queued, infer_s
                outcome.batch = len(jobs) if index == 0 else 0
        return outcomes, infer_s

    def _answer(self, jobs: list[InferenceJob], batch: Any, error: Exception | None) -> bool:
        """Hand each job its outcome of `_compute`. Return whether the policy may be unable to answer at all."""
        if batch is None:
            log.error("a batch failed", exc_info=error)
            detail = f"the server failed with {type(error).__name__}; see the service's log"
            outcomes: list[Outcome | Problem] = [Problem("internal", detail)] * len(jobs)
        else:
            outcomes, infer_s = batch
            self.queue.record_inference(infer_s, jobs)
            ended = time.monotonic()
            for job in jobs:
                job.tenant.record_inference(ended - infer_s - job.queued, infer_s / len(jobs))
        for job, outcome in zip(jobs, outcomes, strict=True):
            _resolve(job.future, outcome, outcome if isinstance(outcome, Problem) else None)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Problem) and outcome.status >= 500]
        self._failures = self._failures + len(failed) if len(failed) == len(jobs) else 0
        causes = [problem.__cause__ for problem in failed]
        is_lost = any(isinstance(cause, PolicyLost) or is_device_error(cause) for cause in causes)
        return is_lost or self._failures >= FAILURES

    async def _check_policy(self) -> None:
        """Repeat the first inference: if it fails too, the policy is lost and not the requests invalid."""
        self._failures, self._busy_since = 0, time.monotonic()
        try:
            await self.call(lambda: warm_up(self.policy, self.info))
        except Exception as error:
            log.exception("the policy does not answer any more; the service exits and must be restarted")
            reason = f"the policy does not answer any more: {_summarize(error)}; the service exits and restarts"
            self._fail("policy-lost", reason)
        finally:
            self._busy_since = None

    def _fail(self, kind: str, reason: str) -> None:
        self._failure_kind, self.reason, self.state = kind, reason, FAILED
        self.metrics.ready.set(0)
        self._fail_jobs()
        if self.on_failure:
            self.on_failure()

    def _fail_jobs(self) -> None:
        for job in self.queue.clear():
            _resolve(job.future, error=self._problem())

    def _problem(self) -> Problem:
        """Return the answer to requests in a state other than READY."""
        if self.state == STOPPED:
            return Problem.retry_after("stopping", "the service is stopping; ask again once it is back", 1.0)
        if self.state == LOADING:
            seconds = time.monotonic() - self._started
            return Problem.retry_after("loading", f"{self.reason}, for {seconds:.0f} s so far; wait for /readyz", 1.0)
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


def _attempt(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return a function's result and the error it raised, as one that a future accepts."""
    try:
        return function(), None
    except BaseException as error:  # the thread must not die with requests waiting on it
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        return None, RuntimeError(_summarize(error))


def _resolve(future: "asyncio.Future[Any]", result: Any = None, error: Exception | None = None) -> None:
    if not future.done():
        future.set_exception(error) if error else future.set_result(result)


def _expired() -> Problem:
    return Problem("expired", "the request waited longer than its timeout; retry, or use fewer workers")


def _summarize(error: BaseException) -> str:
    if isinstance(error, Problem) and error.__cause__ is not None:
        error = error.__cause__  # the log may contain a cause that responses must not
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
