"""Small models in the hub's format: BERT, GPT-2 and T5 with few parameters, trained on local texts.

`save_pretrained` writes them to a directory, so everything after `from_pretrained(DIRECTORY)` is as with a hub model.
They have no dropout, which makes training loops comparable number by number.
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
from vla_common.volume import Volume, replace_directory

STEPS = 300  # of pre-training; takes seconds on one core
PRETRAINING = {"bert": "masked tokens", "gpt": "the next token"}  # objective per kind; T5 is not pre-trained


def directory_of(kind: str, volume: Volume, steps: int = STEPS) -> Path:
    """Return the directory of the small model of a kind (bert, gpt, t5), made at the first call."""
    directory = volume.path("hf") / "made" / f"{kind}-{0 if kind not in PRETRAINING else steps}"
    return directory if directory.is_dir() else replace_directory(directory, lambda draft: make(kind, draft, steps))


def make(kind: str, directory: Path, steps: int) -> None:
    """Write tokenizer and model of a kind to a directory, after `steps` steps of pre-training."""
    sentences = list(texts.sentences())
    tokenizer = tokenizers.KINDS[kind](sentences)
    torch.manual_seed(0)
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = BUILD[kind](vocab_size=len(tokenizer), **special)
    if steps and kind in PRETRAINING:
        rows = [{"input_ids": ids[:64]} for ids in tokenizer(sentences)["input_ids"]]
        masked = kind == "bert"
        collator = collate.Masked.of(tokenizer, seed=0) if masked else collate.Causal(tokenizer.pad_token_id)
        params = loops.Hyperparameters(steps, batch_size=32, lr=3e-3, warmup_steps=steps // 10)
        loops.by_hand(model, rows, collator, params)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


# Two layers of width 64; T5: two in encoder and decoder.
BUILD: dict[str, Callable[..., PreTrainedModel]] = {
    "bert": lambda **options: BertForMaskedLM(
        BertConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
            max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options,
        )
    ),
    "gpt": lambda **options: GPT2LMHeadModel(
        GPT2Config(
            n_embd=64, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=options["eos_token_id"], **options,
        )
    ),
    "t5": lambda **options: T5ForConditionalGeneration(
        T5Config(
            d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=options["pad_token_id"], **options,
        )
    ),
}  # fmt: skip
