"""Guesses for a step's action tokens, and what verifying them yields.

A robot moves smoothly, so most dimensions of an action repeat the step before or change as they did before. Guessed
tokens are read by the model in one pass together with what precedes them; every guess that the model would have chosen
itself is accepted, and the first one that it would not is replaced by its own choice. So the result is that of
choosing one token after the other, whatever was guessed: a bad guess costs nothing but the pass it did not save.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from services.openvla.actions import ACTION_TOKENS

MAX_SESSIONS = 4096


def accepted(guessed: np.ndarray, chosen: np.ndarray) -> int:
    """Returns how many of the model's choices [n] stand, given the guesses [n - 1] it read: 1 to n.

    Choice 0 follows a certain token. Choice i + 1 stands where all guesses up to i are what was chosen there.
    """
    wrong = np.flatnonzero(guessed != chosen[: len(guessed)])
    return int(wrong[0]) + 1 if len(wrong) else len(chosen)


@dataclass
class Drafts:
    """The last actions of every session, as tokens. The longest unused session is dropped past MAX_SESSIONS."""

    first: np.ndarray  # int64 [7]: what to guess before anything is known
    _history: OrderedDict[str, np.ndarray] = field(default_factory=OrderedDict)

    def guess(self, session: str) -> np.ndarray:
        """Returns int64 [7]: the tokens of the session's previous action."""
        return self._history.get(session, self.first)

    def note(self, session: str, tokens: np.ndarray) -> None:
        """Remembers a step's action tokens [7]."""
        assert tokens.shape == (ACTION_TOKENS,)
        self._history[session] = tokens
        self._history.move_to_end(session)
        while len(self._history) > MAX_SESSIONS:
            self._history.popitem(last=False)

    def forget(self, session: str) -> None:
        """Drops a session; one that was never known is fine."""
        self._history.pop(session, None)

    def __len__(self) -> int:
        return len(self._history)
