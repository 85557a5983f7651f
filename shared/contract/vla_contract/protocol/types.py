"""Observation, action chunk, and the base class of policies.

Values are checked on creation, so they are valid everywhere.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_contract.protocol.errors import InvalidObservation, shorten
from vla_contract.protocol.plain import check_plain

if TYPE_CHECKING:
    from vla_contract.protocol.info import PolicyInfo

MAX_SIDE = 4096  # pixels
MAX_INSTRUCTION = 4096  # characters
MAX_SESSION = 200  # characters
_SURROGATE = re.compile("[\ud800-\udfff]")  # valid in JSON but not in UTF-8: tokenizers and logs fail on it


@dataclass(frozen=True, eq=False)
class Observation:
    """A policy's input at one step of an episode.

    images      camera name -> uint8 [H, W, 3], RGB, row 0 at the top
    state       float32 [n] proprioception, the parts of `PolicyInfo.state` concatenated, or None
    instruction the task as text
    session     names one attempt at one episode; a stateful policy keeps its state under it
    step        number of actions executed so far in this session; 0 restarts the session
    privileged  simulator state (dict, list, str, number, bool, None, ndarray), for policies that need it
    unnorm_key  which dataset's statistics un-normalise the action, or None for the policy's only one

    Raises InvalidObservation (a ValueError) naming the field, its value and what was expected.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray | None
    instruction: str
    session: str
    step: int
    privileged: Mapping[str, Any] | None = None
    unnorm_key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.images, Mapping):
            raise InvalidObservation(f"images is a {_type(self.images)}; expected a mapping of camera name to image")
        for name, image in self.images.items():
            _check_text("a camera's name", name, MAX_SESSION)
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
                raise InvalidObservation(f"images[{name!r}] is {_describe(image)}; expected a uint8 array [H, W, 3]")
            if image.ndim != 3 or image.shape[2] != 3 or not 0 < min(image.shape) <= max(image.shape) <= MAX_SIDE:
                expected = f"expected [H, W, 3] with sides from 1 to {MAX_SIDE}"
                raise InvalidObservation(f"images[{name!r}] has shape {list(image.shape)}; {expected}")
        state = self.state
        if state is not None:
            if not isinstance(state, np.ndarray) or state.dtype != np.float32 or state.ndim != 1:
                raise InvalidObservation(f"state is {_describe(state)}; expected a float32 array [n] or None")
            if not np.isfinite(state).all():
                at = int(np.argmin(np.isfinite(state)))
                raise InvalidObservation(f"state[{at}] is {state[at]}; expected finite numbers")
        _check_text("instruction", self.instruction, MAX_INSTRUCTION)
        _check_text("session", self.session, MAX_SESSION)
        if type(self.step) is not int or not 0 <= self.step < 2**31:
            raise InvalidObservation(f"step is {shorten(self.step)}; expected an int >= 0, the actions executed so far")
        if self.privileged is not None:
            if not isinstance(self.privileged, Mapping):
                raise InvalidObservation(f"privileged is a {_type(self.privileged)}; expected a mapping or None")
            check_plain(self.privileged, "privileged")
        if self.unnorm_key is not None:
            _check_text("unnorm_key", self.unnorm_key, MAX_SESSION)


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """A policy's output: the next T actions in order.

    actions    float32 [T, n], T >= 1, finite; the n numbers are the parts of `PolicyInfo.action` concatenated, T is at
               most its horizon; the server checks both
    timings_ms durations; the server adds decode, queue, infer and encode, the client round_trip
    """

    actions: np.ndarray
    timings_ms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_actions(self.actions)
        if not isinstance(self.timings_ms, Mapping):
            raise ValueError(f"timings_ms is a {_type(self.timings_ms)}; expected a mapping of stage to milliseconds")
        for stage, value in self.timings_ms.items():
            if not isinstance(stage, str) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise ValueError(f"timings_ms[{stage!r}] is {value!r}; expected milliseconds >= 0 under a name")


class Policy(ABC):
    """Base class of policies: implement at least `info` and `act`.

    All methods are called from the thread that loaded the policy, one at a time.
    `act` gets 1 … `info().max_batch` observations and returns as many results in the same order. It may put an
    exception in the place of a chunk: only that request fails. An InvalidObservation is answered with 422 and
    its text, an UnknownSession with 409, a PolicyLost with 503, everything else with 500. Where `act` itself raises, a
    stateless policy is called again with one observation at a time. Step 0 restarts a session.
    """

    @abstractmethod
    def info(self) -> "PolicyInfo":
        """Return the policy's description."""

    @abstractmethod
    def act(self, observations: list[Observation]) -> Sequence["ActionChunk | Exception"]:
        """Return a chunk or an exception for every observation."""

    def reset(self, session: str) -> None:
        """Forget a session."""

    def example(self) -> Observation | None:
        """Return the input of the first inference; None: black images and zeros, if `info` allows that."""
        return None

    def settle(self) -> None:
        """Called after responses are sent: prepare for the next request."""

    def counters(self) -> Mapping[str, int]:
        """Return counts by event, exported as metrics."""
        return {}

    def close(self) -> None:
        """Called before the service ends."""


def check_actions(actions: object, size: int | None = None, horizon: int | None = None) -> None:
    """Raise ValueError unless `actions` is float32 [T, n], T >= 1, n >= 1, with no NaN or infinity.

    size: the required n; horizon: the maximum T.
    """
    n = "n" if size is None else size
    if not isinstance(actions, np.ndarray) or actions.dtype != np.float32:
        raise ValueError(f"actions are {_describe(actions)}; expected a float32 array [T, {n}]")
    if actions.ndim != 2 or 0 in actions.shape or (size is not None and actions.shape[1] != size):
        raise ValueError(f"actions have shape {list(actions.shape)}; expected [T, {n}] with T >= 1")
    if horizon is not None and actions.shape[0] > horizon:
        raise ValueError(f"actions hold {actions.shape[0]} steps; expected at most the policy's horizon {horizon}")
    if not math.isfinite(sum(map(sum, actions.tolist()))):  # ten times faster than numpy for so few numbers
        row, column = np.argwhere(~np.isfinite(actions))[0]
        raise ValueError(f"actions[{row}, {column}] is {actions[row, column]}; expected finite numbers")


def _check_text(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= limit:
        received = f"{len(value)} characters long" if isinstance(value, str) and value else shorten(value)
        raise InvalidObservation(f"{name} is {received}; expected a text of 1 to {limit} characters")
    if not value.isascii() and _SURROGATE.search(value):
        raise InvalidObservation(f"{name} is {ascii(value)[:80]}, with an unpaired surrogate; expected Unicode text")


def _type(value: object) -> str:
    return type(value).__name__


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {list(value.shape)}"
    return f"a {_type(value)}"
