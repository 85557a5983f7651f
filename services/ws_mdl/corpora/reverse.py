"""A corpus to learn an algorithm from: random letters, and the same letters backwards. No network, no grammar."""

from __future__ import annotations

import random
import string

from services.ws_mdl.corpora.types import Corpus, Languages, clean
from vla_common.volume import Volume

PAIRS = ("forward-backward",)
COUNT = 20_000  # of 26^4 + … + 26^12 there are; what is learned must be the rule
LENGTHS = (4, 12)


def load(languages: Languages, volume: Volume) -> Corpus:
    """Returns 20,000 random sequences of 4 to 12 letters, the same ones at every call."""
    draw = random.Random(0)
    words = [draw.choices(string.ascii_lowercase, k=draw.randint(*LENGTHS)) for _ in range(COUNT)]
    pairs = [(" ".join(letters), " ".join(reversed(letters))) for letters in words]
    return Corpus("reverse", languages, clean(pairs), "drawn with seed 0", "free")
