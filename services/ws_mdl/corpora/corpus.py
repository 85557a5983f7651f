"""The type of a corpus, a synthetic one (random letters and their reversal), and the course's corpora on the hub."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vla_common.volume import Volume
from vla_modelkit import hub

REVERSE_COUNT = 20_000  # of 26^4 + … + 26^12 possible ones, so a model must learn the rule
REVERSE_LENGTHS = (4, 12)

OPUS_BOOKS = "Helsinki-NLP/opus_books"
OPUS_BOOKS_REVISION = "1f9f6191d0e91a3c539c2595e2fe48fc1420de9b"
LEMON_MINT = "lemon-mint/korean_english_parallel_wiki_augmented_v1"  # commit unknown: use the newest
LEMON_MINT_SPLIT = "train[:10%]"  # the course's subset
LEMON_MINT_FIELDS = {"en": "english", "ko": "korean"}


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


def load_opus_books(languages: Languages, volume: Volume) -> Corpus:
    """Load books in English and Italian. Raises ValueError if the hub is not reachable."""
    rows = _rows(OPUS_BOOKS, OPUS_BOOKS_REVISION, "en-it", "train", volume)
    pairs = opus_books_pairs(rows, languages)
    return Corpus("opus_books", languages, clean(pairs), OPUS_BOOKS, "see its page")


def opus_books_pairs(rows: Iterable[Mapping[str, Any]], languages: Languages) -> list[tuple[str, str]]:
    """Return the pairs of rows {"translation": {"en": …, "it": …}}."""
    return [(row["translation"][languages.source], row["translation"][languages.target]) for row in rows]


def load_lemon_mint(languages: Languages, volume: Volume) -> Corpus:
    """Load the first tenth of Wikipedia sentences in English and Korean, as in the course."""
    pairs = lemon_mint_pairs(_rows(LEMON_MINT, None, None, LEMON_MINT_SPLIT, volume), languages)
    return Corpus("lemon-mint", languages, clean(pairs), LEMON_MINT, "see its page")


def lemon_mint_pairs(rows: Iterable[Mapping[str, Any]], languages: Languages) -> list[tuple[str, str]]:
    """Return the pairs of rows {"english": …, "korean": …}."""
    source, target = (LEMON_MINT_FIELDS[code] for code in languages)
    return [(row[source], row[target]) for row in rows]


def _rows(
    repository: str, revision: str | None, configuration: str | None, split: str, volume: Volume
) -> Iterable[Mapping[str, Any]]:
    import datasets  # slow import, needed by these corpora only

    directory = str(volume.hf / "datasets")
    with hub.offline_if_unreachable() as unreachable:
        try:
            return datasets.load_dataset(repository, configuration, split=split, revision=revision, cache_dir=directory)
        except (OSError, ValueError, RuntimeError) as error:
            reason = unreachable or str(error).splitlines()[0]
            raise ValueError(
                f"{repository} could not be loaded from the hub ({reason}); "
                "use `--corpus default`, which needs no hub, or a TSV or JSONL file"
            ) from error
