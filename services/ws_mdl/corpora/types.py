"""What a corpus is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Languages(NamedTuple):
    """Source and target, as codes: ("en", "it")."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class Corpus(NamedTuple):
    """Sentence pairs (source, target), none twice; where they come from, and on which terms."""

    name: str
    languages: Languages
    pairs: list[tuple[str, str]]
    origin: str
    licence: str


def clean(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the pairs with single spaces, each once, in their order; those with an empty side are left out."""
    spaced = ((" ".join(source.split()), " ".join(target.split())) for source, target in pairs)
    return list(dict.fromkeys(pair for pair in spaced if all(pair)))
