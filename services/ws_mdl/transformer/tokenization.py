"""Tokenization: whole words as in the course, or byte-pair encoding (BPE).

Both keep placeholders such as {name} as one token, and have four special tokens: [UNK] for unknown words, [PAD] for
padding, [SOS] and [EOS] for the start and end of a sentence.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("[UNK]", "[PAD]", "[SOS]", "[EOS]")
UNKNOWN = "⁇"  # stands for [UNK] in a translation
WORD = r"\{\w+\}|\w+|[^\w\s]+"  # a placeholder, a word, or a run of punctuation


def split_words(text: str) -> list[str]:
    """Split a text into words, placeholders and punctuation, as for BLEU and WER."""
    return re.findall(WORD, text)


def train_tokenizer(sentences: Iterable[str], kind: str, min_frequency: int, vocab_size: int) -> Tokenizer:
    """Train a tokenizer on sentences. kind: "word", or "bpe" with at most `vocab_size` tokens."""
    if kind == "word":
        tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
        trainer = trainers.WordLevelTrainer(
            special_tokens=list(SPECIAL), min_frequency=min_frequency, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
        placeholders = pre_tokenizers.Split(Regex(r" ?\{\w+\}"), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [placeholders, pre_tokenizers.Metaspace(prepend_scheme="first")]
        )
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
        trainer = trainers.BpeTrainer(
            special_tokens=list(SPECIAL), min_frequency=min_frequency, vocab_size=vocab_size, show_progress=False
        )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def get_or_build_tokenizer(
    path: Path, sentences: Iterable[str], kind: str, min_frequency: int = 2, vocab_size: int = 8000
) -> Tokenizer:
    """Load the tokenizer at `path`; if there is none, train it on the sentences and save it.

    Raises ValueError if the stored one is damaged or of another kind.
    """
    if path.exists():
        tokenizer = load_tokenizer(path)
        stored = "bpe" if isinstance(tokenizer.model, models.BPE) else "word"
        if stored != kind:
            raise ValueError(f"{path} is a {stored} tokenizer, requested: {kind}; use another --name")
        return tokenizer
    tokenizer = train_tokenizer(sentences, kind, min_frequency, vocab_size)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    tokenizer.save(str(fresh))
    os.replace(fresh, path)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer. Raises ValueError if it is damaged or lacks a special token."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{path} is not a tokenizer ({error}); remove it to train a new one") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer {path} lacks {', '.join(missing)}; expected {', '.join(SPECIAL)}")
    return tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return 12 hex digits that identify the vocabulary and its order."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:12]


def detokenize(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Decode token ids to text with natural spacing, without special tokens but with ⁇ for [UNK]."""
    silent = {tokenizer.token_to_id(token) for token in SPECIAL[1:]}
    tokens = [tokenizer.id_to_token(i) for i in ids if i not in silent]
    tokens = [UNKNOWN if token == "[UNK]" else token for token in tokens]
    if tokenizer.decoder:
        return tokenizer.decoder.decode(tokens).strip()
    text = " ".join(tokens)
    text = re.sub(r" (?=[.,;:!?%)\]}…»])", "", text)  # no space before these
    text = re.sub(r"(?<=[(\[«]) ", "", text)  # nor after these
    return re.sub(r"(?<=\w) (['’]) (?=\w)", r"\1", text)  # l ' ora -> l'ora
