"""Instruction to token ids, as OpenVLA was trained to read it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.openvla.checkpoint.config import SPACE_TOKEN
from vla_common.unreadable import explain
from vla_modelkit.checkpoint import CheckpointError

PROMPT = "In: What action should the robot take to {instruction}?\nOut:"
BOS = 1


class PromptTokenizer:
    """Tokenizer of tokenizer.json (the published format), else of tokenizer.model.

    Raises CheckpointError if the directory has neither, or the file is broken.
    """

    def __init__(self, directory: Path):
        fast, sentencepiece = directory / "tokenizer.json", directory / "tokenizer.model"
        if not fast.is_file() and not sentencepiece.is_file():
            raise CheckpointError(
                f"{directory} has no tokenizer.json and no tokenizer.model; run the download again: a checkpoint needs "
                "its tokenizer"
            )
        path = fast if fast.is_file() else sentencepiece
        try:
            self._encode = _from_json(path) if path == fast else _from_sentencepiece(path)
        except Exception as error:  # tokenizers raises bare Exception; sentencepiece and protobuf their own
            raise CheckpointError(f"{path} cannot be read: {explain(path, error)}") from error

    def prompt_ids(self, instruction: str) -> list[int]:
        """Return the ids of the prompt: BOS first, the space token last."""
        return complete(self._encode(PROMPT.format(instruction=instruction.lower())))


def complete(ids: list[int]) -> list[int]:
    """Return ids with BOS at the start and the space token at the end, added if missing."""
    ids = ids if ids[:1] == [BOS] else [BOS, *ids]
    return ids if ids[-1] == SPACE_TOKEN else [*ids, SPACE_TOKEN]


def _from_json(path: Path) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: tokenizer.encode(text).ids


def _from_sentencepiece(path: Path) -> Callable[[str], list[int]]:
    """Read tokenizer.model as upstream does: converted, so that `</s>` in a text is the special token there too."""
    from transformers import LlamaTokenizerFast

    tokenizer = LlamaTokenizerFast(vocab_file=str(path))
    return lambda text: tokenizer(text)["input_ids"]
