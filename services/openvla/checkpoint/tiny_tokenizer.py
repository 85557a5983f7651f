"""A tokenizer of Llama's kind for the tiny checkpoint: byte fallback, "▁" for spaces, BOS first, 32000 + 1 ids.

Its ids are its own, but for those that OpenVLA's rules name: BOS 1, "▁" 29871, PAD 32000. The words of LIBERO's
instructions are merged as a trained one would merge them; everything else falls back to characters and bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

SPACE = "▁"
FIRST_CHARACTER = 29871  # "▁", then single characters, as in Llama's vocabulary
VOCABULARY = 32000
CHARACTERS = SPACE + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"-_()/"
_TEXT = """
In What action should the robot take to put bowl on plate stove open drawer of cabinet top middle bottom push front turn
wine bottle rack cream cheese pick up and place it basket black from next between ramekin cookie box wooden table center
soup sauce butter milk tomato alphabet orange juice chocolate pudding bbq salad dressing ketchup both moka pots mug
white yellow microwave close left right book caddy back compartment
"""
LEXICON = _TEXT.split()


def write_tokenizer(directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<PAD>"}
    config = {
        **special, "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
        "model_max_length": 2048, "padding_side": "right", "clean_up_tokenization_spaces": False, "legacy": False,
        "processor_class": "PrismaticProcessor",
        "auto_map": {"AutoProcessor": "processing_prismatic.PrismaticProcessor"},
    }  # fmt: skip
    for name, value in {
        "tokenizer.json": tokenizer_json(), "tokenizer_config.json": config, "special_tokens_map.json": special,
    }.items():  # fmt: skip
        (directory / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def tokenizer_json() -> dict:
    """Return the tokenizer in the form that Hugging Face's tokenizers reads."""
    merges = _merges()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(0, "<unk>"), _added(1, "<s>"), _added(2, "</s>"), _added(VOCABULARY, "<PAD>")],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": SPACE},
                {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
            "vocab": _vocabulary(merges), "merges": [" ".join(pair) for pair in merges],
        },
    }  # fmt: skip


def _merges() -> list[tuple[str, str]]:
    """Return pairs that build every known word from the left."""
    merges: dict[tuple[str, str], None] = {}
    for word in LEXICON:
        for end in range(1, len(word) + 1):
            merges[(SPACE + word[: end - 1], word[end - 1])] = None
    return list(merges)


def _vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += dict.fromkeys(left + right for left, right in merges)
    pieces += [f"<unused{index}>" for index in range(len(pieces), FIRST_CHARACTER)]
    pieces += CHARACTERS
    pieces += [f"<unused{index}>" for index in range(len(pieces), VOCABULARY)]
    return {piece: index for index, piece in enumerate(pieces)}


def _added(index: int, text: str) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": text, **flags, "special": True}
