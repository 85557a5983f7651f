"""Tokenizers side by side: what WordPiece, byte-level BPE and SentencePiece's unigram make of the same sentence.

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
from vla_common import endings
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
    """Compares three tokenizers, made here or the hub's."""

    sentences: Annotated[tuple[str, ...], tyro.conf.Positional] = SENTENCES
    model: str = "auto"  # auto: KcBERT's, KoGPT2's and T5's, else those made here; made


class Cut(NamedTuple):
    """A sentence's pieces, and the text that they come back to."""

    pieces: list[str]
    back: str

    def is_whole(self, sentence: str) -> bool:
        """Whether nothing was lost on the way."""
        return self.back == sentence


def cut(tokenizer: PreTrainedTokenizerBase, sentence: str) -> Cut:
    """Return a sentence's pieces, without special tokens, each as a person reads it; unknown ones stay visible."""
    ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    pieces = [readable(tokenizer, piece) for piece in tokenizer.convert_ids_to_tokens(ids)]
    unknown = tokenizer.unk_token_id in ids
    back = tokenizer.decode(ids, skip_special_tokens=not unknown, clean_up_tokenization_spaces=False)
    return Cut(pieces, back)


def readable(tokenizer: PreTrainedTokenizerBase, piece: str) -> str:
    """Return a piece as text; where it is part of a letter's bytes, those in hexadecimal."""
    decoder = tokenizer.backend_tokenizer.decoder
    if "ByteLevel" not in str(type(decoder)):
        return piece
    text = decoder.decode([piece])
    if "\ufffd" not in text:
        return text
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}  # GPT-2 writes each byte as a letter
    return "".join(f"<{byte_of[letter]:02X}>" for letter in piece)


def load(asked: str, volume: Volume) -> tuple[dict[str, PreTrainedTokenizerBase], list[str]]:
    """Return the three tokenizers by kind, and whose they are."""
    if asked not in ("auto", "made"):
        raise ValueError(f"model {asked!r} is not known here; expected auto or made: three kinds are compared")
    models = {kind: sources.model(kind, asked, volume, steps=0) for kind in KINDS}
    said = [model.said.replace("model:", f"{KINDS[kind]}:") for kind, model in models.items()]
    return {kind: AutoTokenizer.from_pretrained(model.directory) for kind, model in models.items()}, said


def table(tokenizers: Mapping[str, PreTrainedTokenizerBase], sentences: Sequence[str]) -> Table:
    """Return sentences down, tokenizers across: number of pieces, whether they come back to the text, and which."""
    shown = Table(show_lines=True)
    shown.add_column("sentence")
    for kind, tokenizer in tokenizers.items():
        shown.add_column(f"{KINDS[kind]} ({len(tokenizer)})")
    for sentence in sentences:
        cells = []
        for tokenizer in tokenizers.values():
            pieces, back = result = cut(tokenizer, sentence)
            way = "comes back" if result.is_whole(sentence) else f"comes back as {back!r}"
            cells.append(f"{len(pieces)}, {way}\n{' '.join(pieces)}".replace("[", r"\["))
        shown.add_row(sentence, *cells)
    return shown


def main() -> None:
    """Print a table of sentences cut by three tokenizers."""
    practice.quiet()
    request = tyro.cli(Tokens, prog="python -m services.hf.tokens", description=__doc__)
    tokenizers, said = load(request.model, Volume())
    print("\n".join(said))
    endings.console().print(table(tokenizers, request.sentences))


if __name__ == "__main__":
    endings.run(main)
