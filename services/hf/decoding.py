"""Words out of a model, one at a time: greedy, or drawn with temperature, top-k and top-p. Equal to `generate`.

tests/hf/test_decoding.py holds every token to the library's, also of a batch padded on the left, and of T5's decoder.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

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
    """Returns logits [B, V] with all but the k highest of each row at minus infinity."""
    lowest = logits.topk(min(k, logits.shape[-1])).values[:, -1:]
    return logits.masked_fill(logits < lowest, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Returns logits [B, V] with those at minus infinity that the others' probability p is reached without."""
    ascending, order = logits.sort(descending=False)
    unlikely = ascending.softmax(-1).cumsum(-1) <= 1 - p  # summed from the unlikely end, as the library does
    unlikely[:, -1] = False
    return logits.masked_fill(torch.zeros_like(unlikely).scatter(1, order, unlikely), NEVER)


def choose(logits: Tensor, sampling: Sampling) -> Tensor:
    """Returns the next word [B] from its logits [B, V]; what is drawn follows from torch's own seed."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    logits = keep_top_k(logits, sampling.top_k) if sampling.top_k else logits
    logits = keep_top_p(logits, sampling.top_p) if sampling.top_p < 1 else logits
    return torch.multinomial(logits.softmax(-1), 1)[:, 0]


@torch.no_grad()
def decode(model: PreTrainedModel, batch: dict[str, Tensor], sampling: Sampling, most: int) -> Tensor:
    """Returns what a model says to input_ids, attention_mask [B, L]: tokens [B, ≤ most], filled up with its pad token.

    The input stands on the right of its padding for a decoder alone. Every word is computed once: keys and values of
    those before are kept (past_key_values).
    """
    state = Encoded(model, batch) if model.config.is_encoder_decoder else Continued(model, batch)
    rows, end, pad = len(batch["input_ids"]), model.generation_config.eos_token_id, model.generation_config.pad_token_id
    said, done = [], torch.zeros(rows, dtype=torch.bool, device=model.device)
    while len(said) < most and not done.all():
        word = choose(state.logits().float(), sampling).masked_fill(done, pad)
        said.append(word)
        done |= word == end
        state.add(word)
    return torch.stack(said, dim=1)


class Continued:
    """A decoder alone (GPT-2): the input itself goes on. Positions count words, and not the padding before them."""

    def __init__(self, model: PreTrainedModel, batch: dict[str, Tensor]):
        self.model, self.cache = model, None
        self.next, self.mask = batch["input_ids"], batch["attention_mask"]

    def logits(self) -> Tensor:
        """Returns the logits [B, V] of the next word."""
        places = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, -self.next.shape[1] :]
        out = self.model(
            input_ids=self.next,
            attention_mask=self.mask,
            position_ids=places,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def add(self, word: Tensor) -> None:
        """Goes on behind a word [B]."""
        self.next = word[:, None]
        self.mask = torch.cat([self.mask, torch.ones_like(self.next)], dim=1)


class Encoded:
    """Encoder and decoder (T5): the input is read once, the answer begins at the start token."""

    def __init__(self, model: PreTrainedModel, batch: dict[str, Tensor]):
        self.model, self.cache, self.mask = model, None, batch["attention_mask"]
        self.memory = model.get_encoder()(**batch)
        self.next = torch.full_like(batch["input_ids"][:, :1], model.generation_config.decoder_start_token_id)

    def logits(self) -> Tensor:
        """Returns the logits [B, V] of the next word."""
        out = self.model(
            encoder_outputs=self.memory, attention_mask=self.mask, decoder_input_ids=self.next,
            past_key_values=self.cache, use_cache=True,
        )  # fmt: skip
        self.cache = out.past_key_values
        return out.logits[:, -1]

    def add(self, word: Tensor) -> None:
        """Goes on behind a word [B]."""
        self.next = word[:, None]
