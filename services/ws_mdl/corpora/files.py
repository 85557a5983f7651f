"""Corpus files: TSV (source, tab, target) or JSONL (one object per line, with languages as keys), or plain text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

from services.ws_mdl.corpora.corpus import Corpus, Languages, clean
from vla_common.regular_files import UnsafeFileError, open_regular
from vla_common.unreadable import explain
from vla_common.volume import Volume

# Column names of a header line, in lower case.
COLUMN_NAMES = frozenset(
    ("source", "target", "src", "tgt", "sentence", "translation", "en", "it", "ko", "de", "fr", "es", "ja", "zh",
     "english", "italian", "korean", "german", "french", "spanish", "japanese", "chinese", "영어", "한국어")
)  # fmt: skip
MAX_BYTES = 2**30  # of a corpus file, which is read into memory


def find(name: str, volume: Volume) -> Path:
    """Return the path of a file, searched in the working directory and in the volume's datasets. Raises ValueError."""
    for path in (Path(name).expanduser(), volume.path("datasets") / name):
        if path.is_file():
            return path
    raise ValueError(f"corpus file {name!r} not found, also not in {volume.path('datasets')}")


def load(path: Path, languages: Languages) -> Corpus:
    """Load a corpus file. Raises ValueError with the number of an invalid line, or for another file type."""
    readers = {".tsv": _tsv, ".jsonl": _jsonl}
    if path.suffix not in readers:
        raise ValueError(f"{path} has the suffix {path.suffix!r}; expected .tsv or .jsonl")
    pairs = clean(readers[path.suffix](path, read_lines(path), languages))
    return Corpus(path.name, languages, pairs, str(path), "that of the file's owner")


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Raises ValueError for one that is too large or not UTF-8."""
    try:
        with open_regular(path, MAX_BYTES) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
            return text.read().split("\n")  # splitlines would also split at other characters
    except OSError as error:
        reason = error if isinstance(error, UnsafeFileError) else explain(path, error)
        raise ValueError(f"corpus {path} cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error


def _tsv(path: Path, lines: list[str], languages: Languages) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if not line.strip() or (number == 1 and _is_header(path, fields, languages)):
            continue
        if len(fields) != 2:
            raise ValueError(f"{path}, line {number}: {len(fields)} columns; expected source, one tab, target")
        yield fields[0], fields[1]


def _is_header(path: Path, fields: list[str], languages: Languages) -> bool:
    """Return whether the first line is a header, and print that. Raises ValueError if its columns are swapped."""
    names = [field.strip().casefold() for field in fields]
    codes = [language.casefold() for language in languages]
    if names == codes[::-1]:
        pair = "-".join(names)
        raise ValueError(f"{path}, line 1 names the columns {' and '.join(names)}; expected {languages}: --pair {pair}")
    if len(set(names)) != 2 or not set(names) <= COLUMN_NAMES | set(codes):
        return False
    print(f"{path}, line 1 names the columns ({', '.join(fields)}) and is not a pair", flush=True)
    return True


def _jsonl(path: Path, lines: list[str], languages: Languages) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not valid JSON: {error}") from error
        row = row.get("translation", row) if isinstance(row, dict) else row  # the format of opus_books
        texts = tuple(row.get(name) for name in languages) if isinstance(row, dict) else ()
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            columns = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise ValueError(f"{path}, line {number} has {columns}; expected texts under {' and '.join(languages)}")
        yield texts
