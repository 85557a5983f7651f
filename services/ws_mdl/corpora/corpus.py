"""The type of a corpus, and a synthetic one: random letters and their reversal."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from typing import NamedTuple

from vla_common.volume import Volume

REVERSE_PAIRS = ("forward-backward",)
REVERSE_COUNT = 20_000  # of 26^4 + … + 26^12 possible ones, so a model must learn the rule
REVERSE_LENGTHS = (4, 12)


class Languages(NamedTuple):
    """Source and target language codes: ("en", "it")."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


class Corpus(NamedTuple):
    """Unique sentence pairs (source, target), their origin and licence."""

    name: str
    languages: Languages
    pairs: list[tuple[str, str]]
    origin: str
    licence: str


def clean(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Normalize spaces, and remove duplicate pairs and pairs with an empty side."""
    spaced = ((" ".join(source.split()), " ".join(target.split())) for source, target in pairs)
    return list(dict.fromkeys(pair for pair in spaced if all(pair)))


def load_reverse(languages: Languages, volume: Volume) -> Corpus:
    """Return 20,000 random sequences of 4 to 12 letters and their reversal; deterministic."""
    generator = random.Random(0)
    sequences = [
        generator.choices(string.ascii_lowercase, k=generator.randint(*REVERSE_LENGTHS)) for _ in range(REVERSE_COUNT)
    ]
    pairs = [(" ".join(letters), " ".join(reversed(letters))) for letters in sequences]
    return Corpus("reverse", languages, clean(pairs), "generated with seed 0", "free")
