"""One row's way to seven tokens: what the next pass reads for it, and what stands of the model's choices.

A pass reads `width` tokens in line, the first of them certain, the others guessed, and beside every guess in line some
side guesses for the same place. The model's choice after a certain token is the greedy token. If it is the guess that
was read next, the choice after that one counts too, and so on. Where the line breaks, a side guess may be the chosen
token: then the choice after it counts as well, and that token is read again in the next pass, in line. So each pass
yields at least one token, and the tokens are those of choosing one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from services.openvla.actions import ACTION_TOKENS

GUESSES = ACTION_TOKENS - 1  # the last token is read by no pass


@dataclass
class Row:
    """tokens so far; `read` of them are in the cache; guesses int64 [1 + sides, 7] or None."""

    guesses: np.ndarray | None
    tokens: list[int] = field(default_factory=list)
    read: int = 0

    @property
    def done(self) -> bool:
        """Whether all seven are there."""
        return len(self.tokens) == ACTION_TOKENS

    def line(self, width: int) -> np.ndarray:
        """Returns int64 [width]: the tokens to read in line, from the first that is not in the cache."""
        start = min(self.read, GUESSES)
        return np.array([self._at(min(start + column, GUESSES)) for column in range(width)])

    def sides(self, width: int, count: int) -> np.ndarray:
        """Returns int64 [count * (width - 1)]: side guesses for every place in line but the first."""
        places = np.minimum(min(self.read, GUESSES) + np.arange(1, width), GUESSES)
        return self.guesses[1 : 1 + count, places].reshape(-1) if count else np.empty(0, np.int64)

    def take_prompt(self, chosen: np.ndarray) -> Iterator[int]:
        """Takes the choices [1] or [7] after the prompt and main guesses behind it; yields the columns that stand."""
        following = chosen[:0] if self.guesses is None else self.guesses[0, :GUESSES]
        yield 0
        self.tokens.append(int(chosen[0]))
        for column in range(1, len(chosen)):
            if following[column - 1] != chosen[column - 1]:
                return
            self.read += 1
            yield column
            self.tokens.append(int(chosen[column]))

    def take(self, chosen: np.ndarray, width: int, count: int) -> Iterator[int]:
        """Takes the choices [width + sides] after what `line` and `sides` gave; yields the columns that stand."""
        line, sides = self.line(width), self.sides(width, count).reshape(count, width - 1)
        column = len(self.tokens) - 1 - self.read  # of the last certain token
        while not self.done:
            yield column
            token = int(chosen[column])
            self.read = len(self.tokens)
            self.tokens.append(token)
            following = column + 1
            if self.done or following == width:
                return
            if line[following] == token:
                column = following
                continue
            for side in np.flatnonzero(sides[:, column] == token)[:1]:
                column = width + int(side) * (width - 1) + column
                yield column
                self.tokens.append(int(chosen[column]))
            return

    def _at(self, index: int) -> int:
        if index < len(self.tokens):
            return self.tokens[index]
        return int(self.guesses[0, index]) if self.guesses is not None else 0
