"""The course's corpora on the Hugging Face hub; downloads are stored under hf/ on the volume."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from services.ws_mdl.corpora.corpus import Corpus, Languages, clean
from vla_common.volume import Volume
from vla_modelkit import hub

OPUS_BOOKS = "Helsinki-NLP/opus_books"
OPUS_BOOKS_REVISION = "1f9f6191d0e91a3c539c2595e2fe48fc1420de9b"
OPUS_BOOKS_PAIRS = ("en-it",)
LEMON_MINT = "lemon-mint/korean_english_parallel_wiki_augmented_v1"
LEMON_MINT_REVISION = None  # commit unknown: use the newest
LEMON_MINT_PAIRS = ("en-ko",)
LEMON_MINT_SPLIT = "train[:10%]"  # the course's subset
LEMON_MINT_FIELDS = {"en": "english", "ko": "korean"}


def load_opus_books(languages: Languages, volume: Volume) -> Corpus:
    """Load books in English and Italian. Raises ValueError if the hub is not reachable."""
    rows = _rows(OPUS_BOOKS, OPUS_BOOKS_REVISION, OPUS_BOOKS_PAIRS[0], "train", volume)
    return Corpus("opus_books", languages, clean(opus_books_pairs(rows, languages)), OPUS_BOOKS, "see its page")


def load_lemon_mint(languages: Languages, volume: Volume) -> Corpus:
    """Load the first tenth of Wikipedia sentences in English and Korean, as in the course."""
    rows = _rows(LEMON_MINT, LEMON_MINT_REVISION, None, LEMON_MINT_SPLIT, volume)
    return Corpus("lemon-mint", languages, clean(lemon_mint_pairs(rows, languages)), LEMON_MINT, "see its page")


def opus_books_pairs(rows: Iterable[Mapping[str, Any]], languages: Languages) -> Iterator[tuple[str, str]]:
    """Yield the pairs of rows {"translation": {"en": …, "it": …}}."""
    for row in rows:
        yield row["translation"][languages.source], row["translation"][languages.target]


def lemon_mint_pairs(rows: Iterable[Mapping[str, Any]], languages: Languages) -> Iterator[tuple[str, str]]:
    """Yield the pairs of rows {"english": …, "korean": …}."""
    source, target = (LEMON_MINT_FIELDS[code] for code in languages)
    for row in rows:
        yield row[source], row[target]


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
