"""Text to learn a language from: the corpora of lab 1, one side of them; the reference of Python; a file.

Texts stand in their order, since what follows what is learned too. Some runs of neighbours are held out whole: a
neighbour on the same subject tells more than a fair reader should know.
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

PYTHON = "python"  # comes with the interpreter: no download, another version has other words
RUN = 16  # neighbours that are held out, or not, together

Block = list[str]  # some texts, in their order
Ids = list[list[int]]  # the same as token ids


@dataclass(frozen=True)
class Text:
    """Blocks of texts to learn from and held out, and the tokenizer that was made of the former alone."""

    train: list[Ids]
    val: list[Ids]
    tokenizer: Tokenizer
    val_characters: int  # in the texts that are held out, the end of each counted as one


def load(corpus: str, pair: str | None, tokenizer: str, vocab_size: int, held_fraction: float, volume: Volume) -> Text:
    """Return a corpus as token ids. Raises ValueError for a corpus that is unknown or too short to hold some out.

    pair: as in "en-it", the first is the language that is read. tokenizer: "character", "word" or "bpe".
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
    """Return the numbers of the blocks that are held out: the same for every run and every model."""
    return set(random.Random(seed).sample(range(count), min(max(1, round(fraction * count)), count - 1)))


def encoded(blocks: Sequence[Block], tokenizer: Tokenizer) -> list[Ids]:
    """Return the token ids of blocks, without texts that have none."""
    return [[encoding.ids for encoding in tokenizer.encode_batch(block) if encoding.ids] for block in blocks]


# --- reading ------------------------------------------------------------------------------------------------


def read(corpus: str, pair: str | None, volume: Volume) -> list[str]:
    """Return the texts of a corpus in their order, none twice."""
    if corpus == PYTHON:
        texts = python_reference()
    elif corpus.endswith(".txt"):
        texts = text_file(files.find(corpus, volume))
    else:
        texts = [source for source, _ in corpora.load(corpus, pair, volume).pairs]
    return list(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))


def python_reference() -> list[str]:
    """Return the paragraphs and code of the reference that `help()` shows. Raises ValueError where it is left out."""
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError as error:
        raise ValueError("this Python comes without its reference; take --corpus default, or a file") from error
    return [paragraph for name in sorted(topics) for paragraph in re.split(r"\n\s*\n", topics[name])]


def text_file(path: Path) -> list[str]:
    """Return the lines of a text file. Raises ValueError for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from error
