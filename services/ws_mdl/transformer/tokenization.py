"""Text into token ids and back: whole words as in the course, or pieces of words (BPE).

Both keep a placeholder such as {name} in one piece, and know four special tokens: [UNK] for what was never seen, [PAD]
for filling up, [SOS] and [EOS] for a sentence's start and end.
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
    """Return the words, placeholders and punctuation of a text: what BLEU and WER count."""
    return re.findall(WORD, text)


def train_tokenizer(sentences: Iterable[str], kind: str, min_frequency: int, vocab_size: int) -> Tokenizer:
    """Return a tokenizer made from sentences. kind: "word" or "bpe", the latter with at most `vocab_size` tokens."""
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
    """Return the tokenizer stored at `path`, built from the sentences and stored there the first time.

    Raises ValueError where the stored one is damaged or of another kind.
    """
    if path.exists():
        tokenizer = load_tokenizer(path)
        stored = "bpe" if isinstance(tokenizer.model, models.BPE) else "word"
        if stored != kind:
            raise ValueError(f"{path} is a {stored} tokenizer; this run asks for {kind}: give it another --name")
        return tokenizer
    tokenizer = train_tokenizer(sentences, kind, min_frequency, vocab_size)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    tokenizer.save(str(fresh))
    os.replace(fresh, path)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Return a stored tokenizer. Raises ValueError for a file that holds none with the four special tokens."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"{path} holds no tokenizer ({error}); remove it, and training builds it again") from error
    missing = [token for token in SPECIAL if tokenizer.token_to_id(token) is None]
    if missing:
        raise ValueError(f"the tokenizer {path} lacks {', '.join(missing)}; expected {', '.join(SPECIAL)}")
    return tokenizer


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return 12 hex digits that change with the vocabulary or its order."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()[:12]


def detokenize(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Return the text of token ids, without special tokens but with ⁇ for [UNK], spaced as one would write it."""
    silent = {tokenizer.token_to_id(token) for token in SPECIAL[1:]}
    tokens = [tokenizer.id_to_token(i) for i in ids if i not in silent]
    tokens = [UNKNOWN if token == "[UNK]" else token for token in tokens]
    if tokenizer.decoder:
        return tokenizer.decoder.decode(tokens).strip()
    text = " ".join(tokens)
    text = re.sub(r" (?=[.,;:!?%)\]}…»])", "", text)  # no space before these
    text = re.sub(r"(?<=[(\[«]) ", "", text)  # nor after these
    return re.sub(r"(?<=\w) (['’]) (?=\w)", r"\1", text)  # l ' ora -> l'ora
