"""Compare tokenizers: WordPiece, byte-level BPE and SentencePiece's unigram on the same sentences.

python -m services.hf.tokens
python -m services.hf.tokens "한 문장" "another one"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import tyro
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from services.hf import practice, sources
from vla_common import entrypoint
from vla_common.volume import Volume

KINDS = {"bert": "WordPiece", "gpt": "byte-level BPE", "t5": "unigram"}
SENTENCES = (
    "부산 시청은 수요일 야간 버스를 확대한다고 밝혔다.",
    "이야기가 정말 지루하지 않았다!",
    "the robot does not hide the old map today",
    "A fox says: 안녕 😀",
)


@dataclass(frozen=True)
class Tokens:
    """Compare three tokenizers, from the hub or trained locally."""

    sentences: Annotated[tuple[str, ...], tyro.conf.Positional] = SENTENCES
    model: str = "auto"  # auto: KcBERT's, KoGPT2's and T5's, else local ones; made


class Cut(NamedTuple):
    """A sentence's pieces, and the text that they decode to."""

    pieces: list[str]
    back: str


def cut(tokenizer: PreTrainedTokenizerBase, sentence: str) -> Cut:
    """Return a sentence's pieces as readable text, without special tokens; [UNK] stays visible."""
    ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    pieces = [readable(tokenizer, piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    unknown = tokenizer.unk_token_id in ids
    back = tokenizer.decode(ids, skip_special_tokens=not unknown, clean_up_tokenization_spaces=False)
    return Cut(pieces, back)


def readable(tokenizer: PreTrainedTokenizerBase, piece: str) -> str:
    """Return a piece as text; incomplete UTF-8 sequences as hexadecimal bytes."""
    decoder = tokenizer.backend_tokenizer.decoder
    if "ByteLevel" not in str(type(decoder)):
        return piece
    text = decoder.decode([piece])
    if "\ufffd" not in text:
        return text
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}  # GPT-2 represents each byte by a letter
    return "".join(f"<{byte_of[letter]:02X}>" for letter in piece)


def load(requested: str, volume: Volume) -> tuple[dict[str, PreTrainedTokenizerBase], list[str]]:
    """Return the three tokenizers by kind, and a description of each."""
    if requested not in ("auto", "made"):
        raise ValueError(f"unknown model {requested!r}; expected auto or made")
    tokenizers, descriptions = {}, []
    for kind, name in KINDS.items():
        model = sources.model(kind, requested, volume, steps=0)
        tokenizers[kind] = AutoTokenizer.from_pretrained(model.directory)
        descriptions.append(model.description.replace("model:", f"{name}:"))
    return tokenizers, descriptions


def table(tokenizers: Mapping[str, PreTrainedTokenizerBase], sentences: Sequence[str]) -> Table:
    """Return a table, one row per sentence, one column per tokenizer: number of pieces, round trip, pieces."""
    grid = Table(show_lines=True)
    grid.add_column("sentence")
    for kind, tokenizer in tokenizers.items():
        grid.add_column(f"{KINDS[kind]} ({len(tokenizer)})")
    for sentence in sentences:
        cells = []
        for tokenizer in tokenizers.values():
            pieces, back = cut(tokenizer, sentence)
            round_trip = "lossless" if back == sentence else f"decodes to {back!r}"
            cells.append(f"{len(pieces)}, {round_trip}\n{' '.join(pieces)}".replace("[", r"\["))
        grid.add_row(sentence, *cells)
    return grid


def main() -> None:
    """Print the table of sentences and tokenizers."""
    practice.quiet()
    request = tyro.cli(Tokens, prog="python -m services.hf.tokens", description=__doc__)
    tokenizers, descriptions = load(request.model, Volume())
    print("\n".join(descriptions))
    entrypoint.console().print(table(tokenizers, request.sentences))


if __name__ == "__main__":
    entrypoint.run(main)
