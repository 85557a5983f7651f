"""Parallel corpora: sentences with their translations.

`load` takes a name in NAMED, or a TSV or JSONL file.
"""

from __future__ import annotations

from collections.abc import Callable

from services.ws_mdl.corpora import files, homeassistant
from services.ws_mdl.corpora.corpus import Corpus, Languages, load_lemon_mint, load_opus_books, load_reverse
from vla_common.volume import Volume

__all__ = ["NAMED", "Corpus", "load"]

# Each with its language pairs; the first one is the default.
NAMED: dict[str, tuple[tuple[str, ...], Callable[[Languages, Volume], Corpus]]] = {
    "default": (homeassistant.PAIRS, homeassistant.load),
    "opus_books": (("en-it",), load_opus_books),
    "lemon-mint": (("en-ko",), load_lemon_mint),
    "reverse": (("forward-backward",), load_reverse),
}


def load(name: str, pair: str | None, volume: Volume) -> Corpus:
    """Load a corpus with source and target in the direction of `pair` ("en-it").

    Raises ValueError for an unknown name or pair, an invalid file, or an empty corpus.
    """
    is_file = name not in NAMED
    if is_file and not name.endswith((".tsv", ".jsonl")) and "/" not in name:
        raise ValueError(f"corpus {name!r} not found; known: {', '.join(NAMED)}, or a file that ends in .tsv or .jsonl")
    offered, make = ((), None) if is_file else NAMED[name]
    pair = pair or (offered[0] if offered else "en-it")
    source, _, target = pair.partition("-")
    if not source or not target or source == target:
        raise ValueError(f"invalid pair {pair!r}; expected source and target language, as in 'en-it'")
    if offered and pair not in offered and f"{target}-{source}" not in offered:
        raise ValueError(f"corpus {name!r} has no pair {pair!r}; it has {', '.join(offered)}, in both directions")
    languages = Languages(source, target)
    corpus = make(languages, volume) if make else files.load(files.find(name, volume), languages)
    if not corpus.pairs:
        raise ValueError(f"corpus {name!r} ({corpus.origin}) has no sentence pairs; expected at least 1")
    return corpus
