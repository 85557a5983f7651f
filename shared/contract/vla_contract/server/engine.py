"""The policy's thread: it loads, warms, and answers batches; the event loop only waits (unless `inline`)."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vla_contract.protocol.errors import ContractError, PolicyLost
from vla_contract.protocol.info import PolicyInfo
from vla_contract.protocol.problems import Problem
from vla_contract.protocol.types import Observation, Policy
from vla_contract.server.batching import BatchQueue, Call, Job
from vla_contract.server.devices import is_device_error
from vla_contract.server.metrics import Metrics
from vla_contract.server.outcomes import Outcome, run_batch
from vla_contract.server.warm import warm_up

log = logging.getLogger("vla_contract")
LOADING, READY, FAILED, STOPPED = "loading", "ready", "failed", "stopped"
FAILURES = 10  # requests in a row that the policy failed; a device's own error is enough by itself
STUCK_S = 120.0  # an inference that takes longer has met a dead device or a deadlock


@dataclass(eq=False)
class Engine:
    """Owns the policy. `start` and `submit` are called on the event loop, all policy calls on one thread.

    inline: that thread only loads, warms and closes; the event loop itself calls a policy that never keeps it waiting.
    """

    load: Callable[[], Policy]
    queue: BatchQueue
    metrics: Metrics
    max_batch: int | None = None
    inline: bool = False
    on_failure: Callable[[], None] | None = None  # called once when the policy is of no more use, from its thread
    state: str = LOADING
    reason: str = "the policy's weights are being loaded"
    info: PolicyInfo | None = None
    policy: Policy | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _started: float = field(default_factory=time.monotonic)
    _busy_since: float | None = None
    stuck_s: float = STUCK_S
    _failures: int = 0  # in a row
    _in_doubt: bool = False
    _settles: bool = False  # the policy has something to do once answers are given
    _kind: str = "load-failed"  # of problem, once it failed

    def start(self) -> None:
        """Starts loading in the background."""
        self.metrics.queue_length.set_function(self.queue.__len__)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="policy", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """Fails what still waits, lets the inference that runs finish, and closes the policy."""
        for item in self.queue.close():
            _settle([(item.future, _stopping())])
        if self._thread is not None:
            self._thread.join(timeout_s if self.state == READY else 0.1)  # loading cannot be interrupted
        self.state = STOPPED

    def require_ready(self) -> PolicyInfo:
        """Returns the policy's info. Raises Problem (503) saying why not, while it is not ready."""
        if self.state == READY:
            return self.info
        if self.state == FAILED:
            raise self._failed()
        if self.state == STOPPED:
            raise _stopping()
        seconds = time.monotonic() - self._started
        raise Problem.retry_after("loading", f"{self.reason}, for {seconds:.0f} s so far; wait for /readyz", 1.0)

    def require_alive(self) -> PolicyInfo:
        """Returns the policy's info; Problem (503) too while one inference has been running for very long."""
        info, since = self.require_ready(), self._busy_since
        if since is not None and (seconds := time.monotonic() - since) > self.stuck_s:
            raise Problem(
                "stuck", f"one inference has been running for {seconds:.0f} s; look at the device and restart"
            )
        return info

    def admit(self) -> None:
        """Raises Problem where a request cannot be taken now: 503 while not ready, 429 with a full queue."""
        self.require_ready()
        if not self.inline:
            self.queue.require_room()

    def submit(self, observation: Observation, client: str, timeout_s: float) -> Job:
        """Returns the job; its future becomes the outcome. Raises Problem (429) when the queue is full."""
        future = self._loop.create_future()
        job = Job(observation, future, client, time.monotonic() + timeout_s)
        if self.inline:
            _settle(self._answers([job]))
        else:
            self.queue.put(job)
        return job

    def give_up(self, job: Job) -> None:
        """Takes back a job whose sender has gone; one that is being computed goes on."""
        if not job.future.done() and self.queue.remove(job):
            job.future.set_exception(_expired())

    def answered(self) -> None:
        """Lets the policy prepare for what comes next. To be called once an answer is sent, on the event loop.

        Not earlier: two threads of one Python would get in each other's way, and the answer would wait.
        """
        if self._settles:
            self._settle_policy() if self.inline else self.queue.at_leisure(self._settle_policy)

    def call(self, function: Callable[[], object]) -> asyncio.Future:
        """Returns a future of what `function` returns where the policy runs."""
        call = Call(function, self._loop.create_future())
        if self.inline:
            _settle(self._answers([call]))
        else:
            self.queue.put(call)
        return call.future

    def _run(self) -> None:
        try:
            self._prepare()
        except BaseException as error:
            if _is_told(error):
                log.error("the policy could not be loaded: %s", error)
                self._fail(f"the policy could not be loaded: {error}")
                return
            log.exception("the policy could not be loaded")
            self._fail(f"the policy could not be loaded: {_one_line(error)}; the service's log has the traceback")
            return
        while (item := self.queue.take()) is not None:
            if isinstance(item, Call) and item.future is None:
                item.function()
            else:
                self._hand_over(self._answers([item] if isinstance(item, Call) else item))
                if self._in_doubt:
                    self._look_again()
        self.policy.close()

    def _prepare(self) -> None:
        self.policy = self.load()
        if not isinstance(self.policy, Policy):
            raise TypeError(f"the loader returned a {type(self.policy).__name__}; expected a vla_contract.Policy")
        self.info = self.policy.info()
        if not isinstance(self.info, PolicyInfo):
            raise TypeError(f"info() returned a {type(self.info).__name__}; expected a PolicyInfo")
        self._settles = type(self.policy).settle is not Policy.settle  # else its thread need not wake for nothing
        self.metrics.watch(self.policy.counters)
        limit = self.info.max_batch
        self.queue.max_batch = min(limit, self.max_batch or limit)
        self.reason = "the weights are loaded and a first inference is running"
        start = time.monotonic()
        warm_up(self.policy, self.info)
        self.queue.inferred(time.monotonic() - start)
        self.state = READY
        self.metrics.ready.set(1)
        log.info("policy %s is ready after %.1f s", self.info.name, time.monotonic() - self._started)

    def _answers(self, items: list) -> list[tuple]:
        try:
            return [self._called(items[0])] if isinstance(items[0], Call) else self._inferred(items)
        except BaseException as error:  # the thread must not die with requests waiting on it
            log.exception("answering a batch failed")
            failure = Problem("internal", f"the server failed with {type(error).__name__}; see the service's log")
            return [(item.future, failure) for item in items]

    def _hand_over(self, results: list[tuple]) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, results)
        except RuntimeError:
            log.info("the event loop was gone before %d answers were given", len(results))

    def _settle_policy(self) -> None:
        try:
            self.policy.settle()
        except Exception:
            log.exception("the policy's settle failed")

    def _called(self, call: Call) -> tuple:
        try:
            return call.future, call.function()
        except Exception:
            log.exception("the policy's reset failed")
            return call.future, Problem("policy-failed", "the policy could not reset the session; see its log")

    def _inferred(self, jobs: list[Job]) -> list[tuple]:
        now = time.monotonic()
        live = [job for job in jobs if job.expires > now]
        gone = [(job.future, _expired()) for job in jobs if job.expires <= now]
        if not live:
            return gone
        self._busy_since = now
        try:
            outcomes = run_batch(self.policy, self.info, [job.observation for job in live])
            self._count_failures(outcomes)
        finally:
            self._busy_since = None
        infer_s = time.monotonic() - now
        self.queue.inferred(infer_s)
        self.queue.answered(live)
        size = len(live)
        for job, outcome in zip(live, outcomes, strict=True):
            if isinstance(outcome, Outcome):
                outcome.queue_s, outcome.infer_s, outcome.batch, size = now - job.queued, infer_s, size, 0
        return gone + [(job.future, outcome) for job, outcome in zip(live, outcomes, strict=True)]

    def _count_failures(self, outcomes: list[Outcome | Problem]) -> None:
        problems = [one for one in outcomes if isinstance(one, Problem) and one.status >= 500]
        self._failures = self._failures + len(problems) if len(problems) == len(outcomes) else 0
        self._in_doubt = self._failures >= FAILURES or any(_is_lost(one.__cause__) for one in problems)

    def _look_again(self) -> None:
        """Asks the policy for its first inference once more: if that fails too, it is not the requests that are bad."""
        self._in_doubt, self._failures, self._busy_since = False, 0, time.monotonic()
        try:
            warm_up(self.policy, self.info)
        except BaseException as error:
            log.exception("the policy does not answer any more; ending, to be started anew")
            self._kind = "policy-lost"
            self._fail(f"the policy does not answer any more: {_one_line(error)}; the service ends, to be started anew")
        finally:
            self._busy_since = None

    def _fail(self, reason: str) -> None:
        self.reason, self.state = reason, FAILED
        self.metrics.ready.set(0)
        self._hand_over([(item.future, self._failed()) for item in self.queue.close()])
        if self.on_failure:
            self.on_failure()

    def _failed(self) -> Problem:
        if self._kind == "policy-lost":
            return Problem.retry_after(self._kind, self.reason, 2.0)
        return Problem(self._kind, self.reason)


def _settle(results: list[tuple]) -> None:
    for future, result in results:
        if not future.done():
            future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)


def _is_told(error: BaseException) -> bool:
    """Returns whether its text is all that there is to know, and no line of code is at fault."""
    return isinstance(error, ContractError) and not isinstance(error, Problem)


def _is_lost(error: BaseException | None) -> bool:
    return isinstance(error, PolicyLost) or is_device_error(error)


def _stopping() -> Problem:
    return Problem.retry_after("stopping", "the service is stopping; ask again once it is back", 1.0)


def _expired() -> Problem:
    return Problem("expired", "the request waited longer than its sender would; ask again, or with fewer workers")


def _one_line(error: BaseException) -> str:
    if isinstance(error, Problem) and error.__cause__ is not None:
        error = error.__cause__  # whoever starts a service may read its cause; whoever only asks it may not
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__
