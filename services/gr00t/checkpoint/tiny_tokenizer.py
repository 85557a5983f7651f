"""A tokenizer of Qwen2's kind for the tiny checkpoint: bytes, a few words, and Eagle's marks under their real ids."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

SPACE = "Ġ"  # how byte-level vocabularies write a space
VOCABULARY = 151643  # ids below the marks'
_VISION = (
    "object_ref_start",
    "object_ref_end",
    "box_start",
    "box_end",
    "quad_start",
    "quad_end",
    "vision_start",
    "vision_end",
    "vision_pad",
    "image_pad",
    "video_pad",
)
_CODE = ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")
_PLAIN = (
    "<tool_call>",
    "</tool_call>",
    *(f"<|{name}|>" for name in _CODE),
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_EAGLE = (
    "<IMG_CONTEXT>",
    *(f"<{close}{name}>" for name in ("img", "box", "quad", "ref", "interval") for close in ("", "/")),
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|{name}|>" for name in _VISION))
MARKS = (*_SPECIAL, *_PLAIN, *_EAGLE)  # added_tokens.json of upstream's package, in order of their ids
_TEXT = """
You are a helpful assistant system user assistant image put bowl on plate stove open drawer of the cabinet top middle
bottom push front turn wine bottle rack cream cheese pick up and place it in basket black from next between ramekin
cookie box wooden table center soup sauce butter milk tomato both moka pots mug white yellow microwave close left right
book caddy back compartment cup pan
"""
LEXICON = tuple(dict.fromkeys(_TEXT.split()))


def write_tokenizer(directory: Path) -> None:
    """Write vocab.json, merges.txt, added_tokens.json, tokenizer_config.json and special_tokens_map.json."""
    merges = _merges()
    ids = {mark: VOCABULARY + index for index, mark in enumerate(MARKS)}
    special = [mark for mark in MARKS if mark not in _PLAIN]
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {str(number): {"content": mark, **flags, "special": mark in special} for mark, number in ids.items()}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "additional_special_tokens": special[1:]}
    config = {
        **ends, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "unk_token": None,
        "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 16384,
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
    }  # fmt: skip
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, value in {
        "vocab.json": _vocabulary(merges), "added_tokens.json": ids, "tokenizer_config.json": config,
        "special_tokens_map.json": ends,
    }.items():  # fmt: skip
        (directory / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _merges() -> list[tuple[str, str]]:
    """Return pairs that build every known word, with and without a space before it, from the left."""
    merges: dict[tuple[str, str], None] = {}
    for word in (*LEXICON, *(SPACE + word for word in LEXICON)):
        for end in range(1, len(word)):
            merges[(word[:end], word[end])] = None
    return list(merges)


def _vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    pieces = dict.fromkeys([*bytes_to_unicode().values(), *(left + right for left, right in merges)])
    fill = (f"<{number}>" for number in range(VOCABULARY - len(pieces)))
    return {piece: index for index, piece in enumerate([*pieces, *fill])}
