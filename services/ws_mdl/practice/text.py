"""Monolingual text: one side of lab 1's corpora, Python's reference manual, or a file.

Texts keep their order, which is learned too. Whole blocks of consecutive texts are held out, because neighbouring texts
on the same subject would leak information.
"""

from __future__ import annotations

import importlib
import random
import re
from typing import NamedTuple

from tokenizers import Tokenizer

from services.ws_mdl import corpora
from services.ws_mdl.corpora import files
from services.ws_mdl.practice.settings import TextSettings
from services.ws_mdl.settings import PYTHON
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_common.volume import Volume

RUN = 16  # consecutive texts per block

Ids = list[list[int]]  # the texts of a block as token ids


class Text(NamedTuple):
    """Training and held-out blocks, and the tokenizer trained on the training blocks."""

    train: list[Ids]
    val: list[Ids]
    tokenizer: Tokenizer
    val_characters: int  # of the held-out texts, with one for each text's end


def load(config: TextSettings, tokenizer: str, vocab_size: int, volume: Volume) -> Text:
    """Load a lab's corpus as token ids. Raises ValueError for an unknown or too short corpus.

    tokenizer: "character", "word" or "bpe".
    """
    kind, vocab_size = ("bpe", 1) if tokenizer == "character" else (tokenizer, vocab_size)  # no pairs are merged
    texts = read(config.corpus, config.pair, volume)
    blocks = [texts[start : start + RUN] for start in range(0, len(texts), RUN)]
    if len(blocks) < 2:
        raise ValueError(f"corpus {config.corpus!r} has {len(texts)} texts; expected {2 * RUN} at least")
    # the same blocks are held out in every run and lab
    count = min(max(1, round(config.held_fraction * len(blocks))), len(blocks) - 1)
    val_numbers = sorted(random.Random(0).sample(range(len(blocks)), count))
    train = [block for number, block in enumerate(blocks) if number not in val_numbers]
    val = [blocks[number] for number in val_numbers]
    made = train_tokenizer((text for block in train for text in block), kind, 2, vocab_size)
    encoded = [
        [[encoding.ids for encoding in made.encode_batch(block) if encoding.ids] for block in part]
        for part in (train, val)
    ]
    return Text(*encoded, made, sum(len(text) + 1 for block in val for text in block))


def read(corpus: str, pair: str | None, volume: Volume) -> list[str]:
    """Return the unique texts of a corpus, in order: the manual's paragraphs, a .txt file's lines, or sentences."""
    if corpus == PYTHON:
        topics = importlib.import_module("pydoc_data.topics").topics  # what `help()` shows
        texts = [paragraph for name in sorted(topics) for paragraph in re.split(r"\n\s*\n", topics[name])]
    elif corpus.endswith(".txt"):
        texts = files.read_lines(files.find(corpus, volume))
    else:
        texts = [source for source, _ in corpora.load(corpus, pair, volume).pairs]
    return list(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))
