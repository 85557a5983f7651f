"""Autoregressive decoding: greedy, or sampling with temperature, top-k and top-p. Equal to `generate`.

tests/hf/test_decoding.py compares every token with the library's, including left-padded batches and T5's decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.hf import collate, practice

NEVER = float("-inf")


class Sampling(NamedTuple):
    """How the next token is chosen. Temperature 0 is greedy decoding."""

    temperature: float = 0.0  # below 1: sharper distribution
    top_k: int = 0  # sample from the k most likely tokens; 0: from all
    top_p: float = 1.0  # nucleus sampling: from the smallest set with this probability


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k highest logits of each row [B, V] to minus infinity."""
    lowest = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < lowest, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Set the logits [B, V] outside each row's smallest set of probability p to minus infinity."""
    ascending, order = logits.sort(descending=False)
    unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - p  # cumulative from the least likely token, as in the library
    unlikely[:, -1] = False
    return logits.masked_fill(torch.zeros_like(unlikely).scatter(1, order, unlikely), NEVER)


def choose(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the next token [B] for logits [B, V]; sampling uses torch's global generator."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    logits = keep_top_k(logits, sampling.top_k) if sampling.top_k else logits
    logits = keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


@torch.no_grad()
def decode(model: PreTrainedModel, batch: dict[str, Tensor], sampling: Sampling, max_new_tokens: int) -> Tensor:
    """Generate from input_ids, attention_mask [B, L]: tokens [B, ≤ max_new_tokens], padded after the end token.

    A decoder-only model (GPT-2) continues the input, which must be left-padded. With an encoder (T5) the input is
    encoded once and generation begins at the start token. Keys and values of earlier tokens are cached.
    """
    settings, mask, cache = model.generation_config, batch["attention_mask"], None
    next_input = batch["input_ids"]
    if has_encoder := model.config.is_encoder_decoder:
        memory = model.get_encoder()(**batch)
        next_input = torch.full_like(next_input[:, :1], settings.decoder_start_token_id)
    generated: list[Tensor] = []
    done = torch.zeros(len(mask), dtype=torch.bool, device=model.device)
    while len(generated) < max_new_tokens and not done.all():
        if has_encoder:
            inputs = {"encoder_outputs": memory, "decoder_input_ids": next_input}
        else:  # positions do not count the padding
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -next_input.shape[1] :]
            inputs = {"input_ids": next_input, "position_ids": positions}
        out = model(**inputs, attention_mask=mask, past_key_values=cache, use_cache=True)
        token = choose(out.logits[:, -1].float(), sampling).masked_fill(done, settings.pad_token_id)
        generated.append(token)
        done |= token == settings.eos_token_id
        cache, next_input = out.past_key_values, token[:, None]
        if not has_encoder:
            mask = torch.cat([mask, torch.ones_like(next_input)], dim=1)
    return torch.stack(generated, dim=1)


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], sampling: Sampling,
    max_new_tokens: int,
) -> list[str]:  # fmt: skip
    """Generate text for each prompt, in batches of 50."""
    texts: list[str] = []
    for group in practice.batches(prompts, 50):
        rows = [{"input_ids": ids} for ids in group]
        batch = collate.inputs(rows, tokenizer.pad_token_id, left=not model.config.is_encoder_decoder)
        tokens = decode(model, practice.on_device(model, batch), sampling, max_new_tokens)
        texts += [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    return texts
