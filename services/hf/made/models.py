"""Small models in the hub's format: real BERT, GPT-2 and T5 classes with few numbers, trained on texts made here.

A model lies in a folder as `save_pretrained` writes it, so everything after `from_pretrained(FOLDER)` is the same as
with one from the hub. None has dropout: two ways to train it can then be compared number by number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from services.hf import collate, loops
from services.hf.made import texts, tokenizers
from vla_common.volume import Volume, put_whole

STEPS = 300  # of pre-training: seconds on one core
FIRST = {"bert": "masked words", "gpt": "the next word"}  # what each is pre-trained on; t5 on nothing


def directory_of(kind: str, volume: Volume, steps: int = STEPS) -> Path:
    """Return the folder of the small model of a kind (bert, gpt, t5), made at the first call."""
    directory = volume.path("hf") / "made" / f"{kind}-{0 if kind not in FIRST else steps}"
    return directory if directory.is_dir() else put_whole(directory, lambda draft: make(kind, draft, steps))


def make(kind: str, directory: Path, steps: int) -> None:
    """Write tokenizer and model of a kind to a folder, after `steps` steps of what its kind is pre-trained by."""
    sentences = list(texts.sentences())
    tokenizer = tokenizers.KINDS[kind](sentences)
    torch.manual_seed(0)
    model = BUILD[kind](
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    if steps and kind in FIRST:
        rows = [{"input_ids": ids[:64]} for ids in tokenizer(sentences)["input_ids"]]
        masked = kind == "bert"
        joined = collate.Masked.of(tokenizer, seed=0) if masked else collate.Causal(tokenizer.pad_token_id)
        loops.by_hand(model, rows, joined, loops.Plan(steps=steps, batch_size=32, lr=3e-3, warmup_steps=steps // 10))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


# Each of two layers, 64 wide; T5 has two and two.
BUILD: dict[str, Callable[..., PreTrainedModel]] = {
    "bert": lambda **words: BertForMaskedLM(
        BertConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **words,
        )
    ),
    "gpt": lambda **words: GPT2LMHeadModel(
        GPT2Config(
            n_embd=64, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=words["eos_token_id"], **words,
        )
    ),
    "t5": lambda **words: T5ForConditionalGeneration(
        T5Config(
            d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=words["pad_token_id"], **words,
        )
    ),
}  # fmt: skip
