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
    """What a tokenizer makes of a sentence: its pieces, and the text that they come back to."""

    pieces: list[str]
    back: str

    def is_whole(self, sentence: str) -> bool:
        """Returns whether nothing was lost on the way."""
        return self.back == sentence


def cut(tokenizer: PreTrainedTokenizerBase, sentence: str) -> Cut:
    """Returns a sentence's pieces, without special tokens, each as a person reads it; unknown ones are told."""
    ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    pieces = [_readable(tokenizer, number) for number in ids]
    unknown = tokenizer.unk_token_id in ids
    back = tokenizer.decode(ids, skip_special_tokens=not unknown, clean_up_tokenization_spaces=False)
    return Cut(pieces, back)


def _readable(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """Returns a piece; where it is part of a letter's bytes, those in hexadecimal."""
    piece = tokenizer.convert_ids_to_tokens(number)
    if "ByteLevel" not in str(type(tokenizer.backend_tokenizer.decoder)):
        return piece
    text = tokenizer.backend_tokenizer.decoder.decode([piece])
    if "�" not in text:
        return text
    return "".join(f"<{_bytes()[letter]:02X}>" for letter in piece)


def _bytes() -> Mapping[str, int]:
    """Returns GPT-2's letters for bytes: those that print stand for themselves, the others for letters from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [number for number in range(256) if number not in printed]
    return {chr(number): number for number in printed} | {chr(256 + at): number for at, number in enumerate(others)}


def load(asked: str, volume: Volume) -> tuple[dict[str, PreTrainedTokenizerBase], list[str]]:
    """Returns the three tokenizers by kind, and whose they are."""
    if asked not in ("auto", "made"):
        raise ValueError(f"model {asked!r} is not known here; expected auto or made: three kinds are compared")
    found = {kind: sources.model(kind, asked, volume, steps=0) for kind in KINDS}
    said = [one.said.replace("model:", f"{KINDS[kind]}:") for kind, one in found.items()]
    return {kind: AutoTokenizer.from_pretrained(one.folder) for kind, one in found.items()}, said


def table(tokenizers: Mapping[str, PreTrainedTokenizerBase], sentences: Sequence[str]) -> Table:
    """Returns sentences down, tokenizers across: number of pieces, whether they come back to the text, and which."""
    shown = Table(show_lines=True)
    shown.add_column("sentence")
    for kind, tokenizer in tokenizers.items():
        shown.add_column(f"{KINDS[kind]} ({len(tokenizer)})")
    for sentence in sentences:
        cuts = [cut(tokenizer, sentence) for tokenizer in tokenizers.values()]
        shown.add_row(sentence, *(_cell(one, sentence) for one in cuts))
    return shown


def _cell(one: Cut, sentence: str) -> str:
    way = "comes back" if one.is_whole(sentence) else f"comes back as {one.back!r}"
    return f"{len(one.pieces)}, {way}\n{' '.join(one.pieces)}".replace("[", r"\[")


def main() -> None:
    """Prints a table of sentences cut by three tokenizers."""
    practice.quiet()
    request = tyro.cli(Tokens, prog="python -m services.hf.tokens", description=__doc__)
    tokenizers, said = load(request.model, Volume())
    print("\n".join(said))
    endings.console().print(table(tokenizers, request.sentences))


if __name__ == "__main__":
    endings.run(main)
