"""One row's way to seven tokens: what the next pass reads for it, and what stands of the model's choices.

A pass reads `width` tokens in line, the first of them certain, the others guessed, and beside every guess in line some
side guesses for the same place. The model's choice after a certain token is the greedy token. If it is the guess that
was read next, the choice after that one counts too, and so on. Where the line breaks, a side guess may be the chosen
token: then the choice after it counts as well, and that token is read again in the next pass, in line. So each pass
yields at least one token, and the tokens are those of choosing one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from services.openvla.statistics import ACTION_TOKENS

GUESSES = ACTION_TOKENS - 1  # the last token is read by no pass
NO_TOKEN = -1  # what is "chosen" where the best score is no number; no guess is that, so the row's line ends there


@dataclass
class Row:
    """tokens so far; `read` of them are in the cache; guesses int64 [1 + sides, 7] or None."""

    guesses: np.ndarray | None
    tokens: list[int] = field(default_factory=list)
    read: int = 0

    @property
    def done(self) -> bool:
        """Whether all seven are there, or none can follow."""
        return len(self.tokens) == ACTION_TOKENS or self.failed

    @property
    def failed(self) -> bool:
        """Whether the model's scores were no numbers."""
        return self.tokens[-1:] == [NO_TOKEN]

    def result(self) -> list[int]:
        """Returns seven tokens; those after a failure are NO_TOKEN."""
        return self.tokens + [NO_TOKEN] * (ACTION_TOKENS - len(self.tokens))

    def line(self, width: int) -> np.ndarray:
        """Returns int64 [width]: the tokens to read in line, from the first that is not in the cache."""
        start = min(self.read, GUESSES)
        return np.array([max(self._at(min(start + column, GUESSES)), 0) for column in range(width)])

    def sides(self, width: int, count: int) -> np.ndarray:
        """Returns int64 [count * (width - 1)]: side guesses for every place in line but the first."""
        places = np.minimum(min(self.read, GUESSES) + np.arange(1, width), GUESSES)
        return self.guesses[1 : 1 + count, places].reshape(-1) if count else np.empty(0, np.int64)

    def take_prompt(self, chosen: np.ndarray) -> slice:
        """Takes the choices [1] or [7] after the prompt and main guesses behind it; returns the columns that stand."""
        following = chosen[:0] if self.guesses is None else self.guesses[0, :GUESSES]
        wrong = np.flatnonzero(following != chosen[: len(following)])
        stands = min(int(wrong[0]) + 1 if len(wrong) else len(chosen), len(chosen))
        self.tokens += chosen[:stands].tolist()
        self.read = stands - 1
        return slice(stands)

    def take(self, chosen: np.ndarray, count: int) -> tuple[slice, int | None]:
        """Takes the choices [width] after the tokens of `line`.

        Returns the columns that stand, and the place among `sides` whose choice counts too (for `take_side`), or None.
        """
        width = len(chosen)
        line, sides = self.line(width), self.sides(width, count).reshape(count, width - 1)
        first = column = len(self.tokens) - 1 - self.read  # of the last certain token
        while True:
            self.read = len(self.tokens)
            self.tokens.append(int(chosen[column]))
            if self.done or column + 1 == width:
                return slice(first, column + 1), None
            if line[column + 1] != chosen[column]:
                fitting = np.flatnonzero(sides[:, column] == chosen[column])
                side = int(fitting[0]) * (width - 1) + column if len(fitting) else None
                return slice(first, column + 1), side
            column += 1

    def take_side(self, token: int) -> None:
        """Takes the choice after the side guess that `take` named. That guess is read again, in line."""
        self.tokens.append(token)

    def _at(self, index: int) -> int:
        if index < len(self.tokens):
            return self.tokens[index]
        return int(self.guesses[0, index]) if self.guesses is not None else 0
