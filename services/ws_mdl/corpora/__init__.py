"""Parallel corpora: sentences with their translations.

`load` takes a name in NAMED, or a TSV or JSONL file.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ws_mdl.corpora import files, homeassistant, hub
from services.ws_mdl.corpora.corpus import REVERSE_PAIRS, Corpus, Languages, load_reverse
from vla_common.volume import Volume

__all__ = ["NAMED", "Corpus", "load"]

# Each with its language pairs; the first one is the default.
NAMED: dict[str, tuple[tuple[str, ...], Callable[[Languages, Volume], Corpus]]] = {
    "default": (homeassistant.PAIRS, homeassistant.load),
    "opus_books": (hub.OPUS_BOOKS_PAIRS, hub.load_opus_books),
    "lemon-mint": (hub.LEMON_MINT_PAIRS, hub.load_lemon_mint),
    "reverse": (REVERSE_PAIRS, load_reverse),
}


def load(name: str, pair: str | None, volume: Volume) -> Corpus:
    """Load a corpus with source and target in the direction of `pair` ("en-it").

    Raises ValueError for an unknown name or pair, an invalid file, or an empty corpus.
    """
    if name not in NAMED and not files.is_file_name(name):
        raise ValueError(f"corpus {name!r} not found; known: {', '.join(NAMED)}, or a file that ends in .tsv or .jsonl")
    if name not in NAMED:
        corpus = files.load(files.find(name, volume), _languages(name, pair or "en-it", None))
    else:
        pairs, make = NAMED[name]
        corpus = make(_languages(name, pair or pairs[0], pairs), volume)
    if not corpus.pairs:
        raise ValueError(f"corpus {name!r} ({corpus.origin}) has no sentence pairs; expected at least 1")
    return corpus


def _languages(name: str, pair: str, offered: tuple[str, ...] | None) -> Languages:
    """Parse "en-it"; both directions of an offered pair are valid."""
    source, _, target = pair.partition("-")
    if not source or not target or source == target:
        raise ValueError(f"invalid pair {pair!r}; expected source and target language, as in 'en-it'")
    if offered is not None and pair not in offered and f"{target}-{source}" not in offered:
        raise ValueError(f"corpus {name!r} has no pair {pair!r}; it has {', '.join(offered)}, in both directions")
    return Languages(source, target)
