"""Guesses for a step's action tokens, from the session's actions so far.

A robot moves smoothly: most dimensions of an action repeat the one before or go on changing as they did. A handful of
extrapolations guess every dimension; those that were right lately have the louder vote. The model verifies (engine.py):
a wrong guess costs nothing but the pass it did not save.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from services.openvla.actions import ACTION_TOKENS, ActionCodec

SIDES = 2  # further guesses per dimension, beside the main one
MAX_SESSIONS = 4096
DECAY = 0.85  # per step, of what an extrapolation earned by being right
NEAR_MISS = 0.3  # what being one bin off earns
SPREAD = 0.5  # share of a vote that the neighbouring bins get
_DIMENSIONS = np.arange(ACTION_TOKENS)


@dataclass
class Session:
    """The latest actions of one session as bins [7], how right each extrapolation [5, 7] was, and the next ones."""

    last: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=4))
    merit: np.ndarray = field(default_factory=lambda: np.eye(5, 1) * np.full(ACTION_TOKENS, 0.5))  # at first: unchanged
    guessed: np.ndarray | None = None  # int64 [5, 7], of every extrapolation
    ready: np.ndarray | None = None  # int64 [1 + SIDES, 7]


class Drafts:
    """Guesses per session; the longest unused session is dropped past `limit`.

    What `note` takes is worked in by `settle`, or by the next `guess` where nobody calls that.
    """

    def __init__(self, codec: ActionCodec, limit: int = MAX_SESSIONS):
        self._low, self._bins, self._limit = codec.vocab_size - codec.bins, codec.bins, limit
        self._rest = codec.tokens(np.zeros(ACTION_TOKENS)) - self._low  # no motion
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._noted: list[tuple[str, np.ndarray]] = []

    def guess(self, session: str) -> np.ndarray:
        """Returns int64 [1 + SIDES, 7]: token ids, the likeliest first."""
        self.settle()
        known = self._sessions.get(session)
        if known is None:
            return self._low + np.stack([self._rest, self._rest - 1, self._rest + 1])
        return known.ready

    def note(self, session: str, tokens: np.ndarray) -> None:
        """Remembers a step's action tokens [7]; an id outside the action range counts as the nearest bin."""
        self._noted.append((session, tokens))

    def settle(self) -> None:
        """Makes the guesses that follow from what was noted."""
        noted, self._noted = self._noted, []
        for session, tokens in noted:
            self._work_in(session, tokens)

    def _work_in(self, session: str, tokens: np.ndarray) -> None:
        bins = np.clip(tokens - self._low, 0, self._bins - 1)
        known = self._sessions.setdefault(session, Session())
        self._sessions.move_to_end(session)
        if known.guessed is not None:
            off = np.abs(known.guessed - bins)
            known.merit = DECAY * known.merit + np.where(off == 0, 1.0, NEAR_MISS * (off == 1))
        known.last.append(bins)
        known.guessed = extrapolate(known.last, self._bins)
        known.ready = self._low + ranked(known.guessed, known.merit, self._bins)[: 1 + SIDES]
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)

    def forget(self, session: str) -> None:
        """Drops a session; one that was never known is fine."""
        self.settle()
        self._sessions.pop(session, None)

    def __len__(self) -> int:
        self.settle()
        return len(self._sessions)


def extrapolate(last: deque[np.ndarray], bins: int) -> np.ndarray:
    """Returns int64 [5, 7]: unchanged; half, whole, and the mean of the last two and three steps' change going on."""
    first, *others = last
    d, c, b, a = [first] * (4 - len(last)) + [first, *others]
    ways = np.stack([a, a + (a - b) / 2, a + (a - b), a + (a - c) / 2, a + (a - d) / 3])
    return np.clip(np.rint(ways), 0, bins - 1).astype(np.int64)


def ranked(guessed: np.ndarray, merit: np.ndarray, bins: int) -> np.ndarray:
    """Returns int64 [3, 7]: per dimension the three bins with the most votes of extrapolations [5, 7]."""
    votes = np.zeros((ACTION_TOKENS, bins + 2))
    np.add.at(votes, (np.broadcast_to(_DIMENSIONS, guessed.shape), guessed + 1), merit + 1e-3)
    around = SPREAD * (votes[:, :-2] + votes[:, 2:])
    return np.argsort(-(votes[:, 1:-1] + around), axis=1, kind="stable")[:, :3].T
