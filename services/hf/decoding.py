"""Words out of a model, one at a time: greedy, or sampled with temperature, top-k and top-p. Equal to `generate`.

tests/hf/test_decoding.py compares every token with the library's, also of a batch padded on the left, and of T5's
decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from services.hf import collate, practice

NEVER = float("-inf")


@dataclass(frozen=True)
class Sampling:
    """How the next word is chosen. temperature 0: the likeliest, always."""

    temperature: float = 0.0  # below 1 the likely ones become likelier
    top_k: int = 0  # of the k likeliest only; 0: of all
    top_p: float = 1.0  # of the fewest that together have this probability (nucleus sampling)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; expected 0 for the likeliest word, or a number above")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; expected 0 for all words, or how many")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; expected above 0 and at most 1")


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Return logits [B, V] with all but the k highest of each row at minus infinity."""
    lowest = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < lowest, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Return logits [B, V] with those at minus infinity that the others' probability p is reached without."""
    ascending, order = logits.sort(descending=False)
    unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - p  # summed from the unlikely end, as the library does
    unlikely[:, -1] = False
    return logits.masked_fill(torch.zeros_like(unlikely).scatter(1, order, unlikely), NEVER)


def choose(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the next word [B] from its logits [B, V]; random numbers follow from torch's own seed."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    logits = keep_top_k(logits, sampling.top_k) if sampling.top_k else logits
    logits = keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


@torch.no_grad()
def decode(model: PreTrainedModel, batch: dict[str, Tensor], sampling: Sampling, most: int) -> Tensor:
    """Return a model's answer to input_ids, attention_mask [B, L]: tokens [B, ≤ most], filled up with its pad token.

    A decoder alone (GPT-2) continues the input, which stands on the right of its padding; with an encoder (T5) the
    input is read once, and the answer begins at the start token. Every word is computed once: keys and values of those
    before it are stored (past_key_values).
    """
    settings, mask, cache = model.generation_config, batch["attention_mask"], None
    next_input = batch["input_ids"]
    if has_encoder := model.config.is_encoder_decoder:
        memory = model.get_encoder()(**batch)
        next_input = torch.full_like(next_input[:, :1], settings.decoder_start_token_id)
    words: list[Tensor] = []
    done = torch.zeros(len(mask), dtype=torch.bool, device=model.device)
    while len(words) < most and not done.all():
        if has_encoder:
            inputs = {"encoder_outputs": memory, "decoder_input_ids": next_input}
        else:  # positions count words, and not the padding before them
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -next_input.shape[1] :]
            inputs = {"input_ids": next_input, "position_ids": positions}
        out = model(**inputs, attention_mask=mask, past_key_values=cache, use_cache=True)
        word = choose(out.logits[:, -1].float(), sampling).masked_fill(done, settings.pad_token_id)
        words.append(word)
        done |= word == settings.eos_token_id
        cache, next_input = out.past_key_values, word[:, None]
        if not has_encoder:
            mask = torch.cat([mask, torch.ones_like(next_input)], dim=1)
    return torch.stack(words, dim=1)


def write(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]], sampling: Sampling,
    most: int,
) -> list[str]:  # fmt: skip
    """Return a model's answers to prompts as texts, 50 prompts at a time."""
    texts: list[str] = []
    for group in practice.batches(prompts, 50):
        rows = [{"input_ids": ids} for ids in group]
        batch = collate.inputs(rows, tokenizer.pad_token_id, left=not model.config.is_encoder_decoder)
        tokens = decode(model, practice.on_device(model, batch), sampling, most)
        texts += [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    return texts
