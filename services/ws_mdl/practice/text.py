"""Monolingual text: one side of lab 1's corpora, Python's reference manual, or a file.

Texts keep their order, which is learned too. Whole blocks of consecutive texts are held out, because neighbouring texts
on the same subject would leak information.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from services.ws_mdl import corpora
from services.ws_mdl.corpora import files
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_common.volume import Volume

PYTHON = "python"  # part of the interpreter, and specific to its version
RUN = 16  # consecutive texts per block

Block = list[str]  # some texts, in their order
Ids = list[list[int]]  # the same as token ids


@dataclass(frozen=True)
class Text:
    """Training and held-out blocks, and the tokenizer trained on the training blocks."""

    train: list[Ids]
    val: list[Ids]
    tokenizer: Tokenizer
    val_characters: int  # of the held-out texts, with one for each text's end


def load(corpus: str, pair: str | None, tokenizer: str, vocab_size: int, held_fraction: float, volume: Volume) -> Text:
    """Load a corpus as token ids. Raises ValueError for an unknown or too short corpus.

    pair: as in "en-it", the first language is used. tokenizer: "character", "word" or "bpe".
    """
    kind, vocab_size = ("bpe", 1) if tokenizer == "character" else (tokenizer, vocab_size)  # no pairs are merged
    texts = read(corpus, pair, volume)
    blocks = [texts[start : start + RUN] for start in range(0, len(texts), RUN)]
    if len(blocks) < 2:
        raise ValueError(f"corpus {corpus!r} has {len(texts)} texts; expected {2 * RUN} at least, to hold some out")
    val_blocks = select_val_blocks(len(blocks), held_fraction)
    train = [block for number, block in enumerate(blocks) if number not in val_blocks]
    made = train_tokenizer((text for block in train for text in block), kind, 2, vocab_size)
    rest = [blocks[number] for number in sorted(val_blocks)]
    characters = sum(len(text) + 1 for block in rest for text in block)
    return Text(encoded(train, made), encoded(rest, made), made, characters)


def select_val_blocks(count: int, fraction: float, seed: int = 0) -> set[int]:
    """Return the indices of the held-out blocks, the same for every run and model."""
    return set(random.Random(seed).sample(range(count), min(max(1, round(fraction * count)), count - 1)))


def encoded(blocks: Sequence[Block], tokenizer: Tokenizer) -> list[Ids]:
    """Tokenize blocks, without empty texts."""
    return [[encoding.ids for encoding in tokenizer.encode_batch(block) if encoding.ids] for block in blocks]


# --- reading ------------------------------------------------------------------------------------------------


def read(corpus: str, pair: str | None, volume: Volume) -> list[str]:
    """Return the unique texts of a corpus, in order."""
    if corpus == PYTHON:
        texts = python_reference()
    elif corpus.endswith(".txt"):
        texts = text_file(files.find(corpus, volume))
    else:
        texts = [source for source, _ in corpora.load(corpus, pair, volume).pairs]
    return list(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))


def python_reference() -> list[str]:
    """Return the paragraphs of the manual that `help()` shows. Raises ValueError if Python lacks it."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError as error:
        raise ValueError(
            "this Python lacks its reference manual (pydoc_data); use --corpus default, or a file"
        ) from error
    return [paragraph for name in sorted(topics) for paragraph in re.split(r"\n\s*\n", topics[name])]


def text_file(path: Path) -> list[str]:
    """Return the lines of a text file. Raises ValueError for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
