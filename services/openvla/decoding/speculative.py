"""Speculative decoding of one row: the draft tokens that the next pass verifies, and the model's accepted choices.

A draft tree has one chain, the likeliest token of every position, and branches: other tokens for a position, each of
which follows the chain before it. A pass reads `width` tokens of the chain, the first of them certain, and the branches
of the others. The model's choice after a certain token is the greedy token. If it is the chain's next one, the
choice after that counts too, and so on. Where the chain breaks, a branch may be the selected one: then the choice after
it counts as well, and that token is read again in the next pass, in the chain. So each pass yields at least one token,
and the tokens are those of greedy decoding one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from services.openvla.checkpoint.statistics import ACTION_TOKENS

DRAFT_LENGTH = ACTION_TOKENS - 1  # the last token is read by no pass
NO_TOKEN = -1  # for a non-finite best logit; no draft has it, so the row's chain ends there


@dataclass
class DecodedRow:
    """tokens so far; `cached` of them are in the KV cache; draft int64 [1 + branches, 7], the chain first, or None."""

    draft: np.ndarray | None
    tokens: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def done(self) -> bool:
        """Whether all seven tokens are decided, or the row failed."""
        return len(self.tokens) == ACTION_TOKENS or self.failed

    @property
    def failed(self) -> bool:
        """Whether the model's logits were not finite."""
        return self.tokens[-1:] == [NO_TOKEN]

    def result(self) -> list[int]:
        """Return seven tokens; those after a failure are NO_TOKEN."""
        return self.tokens + [NO_TOKEN] * (ACTION_TOKENS - len(self.tokens))

    def chain(self, width: int) -> np.ndarray:
        """Return int64 [width]: the chain to read, from the first token that is not in the cache."""
        start = min(self.cached, DRAFT_LENGTH)
        return np.array([max(self._at(min(start + column, DRAFT_LENGTH)), 0) for column in range(width)])

    def branches(self, width: int, count: int) -> np.ndarray:
        """Return int64 [count * (width - 1)]: the branches' tokens for every position of the chain but the first."""
        positions = np.minimum(min(self.cached, DRAFT_LENGTH) + np.arange(1, width), DRAFT_LENGTH)
        return self.draft[1 : 1 + count, positions].reshape(-1) if count else np.empty(0, np.int64)

    def accept_prefill(self, selected: np.ndarray) -> slice:
        """Process the choices [1] or [7] after the prompt and the chain; return the accepted columns."""
        following = selected[:0] if self.draft is None else self.draft[0, :DRAFT_LENGTH]
        mismatches = np.flatnonzero(following != selected[: len(following)])
        stands = min(int(mismatches[0]) + 1 if len(mismatches) else len(selected), len(selected))
        self.tokens += selected[:stands].tolist()
        self.cached = stands - 1
        return slice(stands)

    def accept(self, selected: np.ndarray, count: int) -> tuple[slice, int | None]:
        """Process the choices [width] after the tokens of `chain`.

        Returns the accepted columns, and the index among `branches` whose choice counts too (for `accept_branch`), or
        None.
        """
        width = len(selected)
        chain, branches = self.chain(width), self.branches(width, count).reshape(count, width - 1)
        first = column = len(self.tokens) - 1 - self.cached  # of the last certain token
        while True:
            self.cached = len(self.tokens)
            self.tokens.append(int(selected[column]))
            if self.done or column + 1 == width:
                return slice(first, column + 1), None
            if chain[column + 1] != selected[column]:
                fitting = np.flatnonzero(branches[:, column] == selected[column])
                branch = int(fitting[0]) * (width - 1) + column if len(fitting) else None
                return slice(first, column + 1), branch
            column += 1

    def accept_branch(self, token: int) -> None:
        """Process the choice after the branch that `accept` returned. Its token is read again, in the chain."""
        self.tokens.append(token)

    def _at(self, index: int) -> int:
        if index < len(self.tokens):
            return self.tokens[index]
        return int(self.draft[0, index]) if self.draft is not None else 0
