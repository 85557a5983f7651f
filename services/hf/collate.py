"""Collate functions: from rows of unequal length to a padded batch.

Each pads to the longest row of its batch and no further. tests/hf/test_collate.py compares each with the library's own
(DataCollatorWithPadding, DataCollatorForLanguageModeling, DataCollatorForSeq2Seq).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

IGNORED = -100  # label that the loss ignores: ignore_index of torch.nn.functional.cross_entropy
Rows = Sequence[Mapping[str, Any]]


def padded(rows: Sequence[Sequence[int]], fill: int, left: bool = False) -> Tensor:
    """Pad rows [B][≤ L] with `fill` to a tensor [B, L], on the right or on the left."""
    longest = max(map(len, rows))
    gaps = [[fill] * (longest - len(row)) for row in rows]
    return torch.tensor([[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)])


def inputs(rows: Rows, pad_id: int, left: bool = False) -> dict[str, Tensor]:
    """Return input_ids and attention_mask [B, L] of rows {input_ids}."""
    ids = [row["input_ids"] for row in rows]
    return {"input_ids": padded(ids, pad_id, left), "attention_mask": padded([[1] * len(row) for row in ids], 0, left)}


@dataclass(frozen=True)
class Classification:
    """Rows {input_ids, label} → input_ids, attention_mask [B, L], labels [B]."""

    pad_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        return {**inputs(rows, self.pad_id), "labels": torch.tensor([row["label"] for row in rows])}


@dataclass(frozen=True)
class Causal:
    """Rows {input_ids} or {input_ids, labels} → input_ids, attention_mask, labels [B, L].

    Labels equal the inputs: the model shifts them by one. The loss ignores padding, and what a row's own labels ignore,
    such as the text before a headline.
    """

    pad_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        labels = padded([row.get("labels", row["input_ids"]) for row in rows], IGNORED)
        return {**inputs(rows, self.pad_id), "labels": labels}


@dataclass(frozen=True)
class Masked:
    """Rows {input_ids} → input_ids with masked tokens, and labels [B, L] of these (BERT, section 3.1).

    15 % of the tokens are prediction targets: 80 % of them become [MASK], 10 % a random token, 10 % stay unchanged.
    Special tokens are never targets. Each call samples new targets from its own generator.
    """

    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    vocabulary: int
    generator: torch.Generator

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Masked:
        """Return a collator for a tokenizer."""
        special, generator = tuple(tokenizer.all_special_ids), torch.Generator().manual_seed(seed)
        return cls(tokenizer.pad_token_id, tokenizer.mask_token_id, special, len(tokenizer), generator)

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        batch = inputs(rows, self.pad_id)
        ids = batch["input_ids"]
        selected = torch.rand(ids.shape, generator=self.generator) < 0.15
        selected &= ~torch.isin(ids, torch.tensor(self.special_ids))
        fate = torch.rand(ids.shape, generator=self.generator)  # selects one of the three replacements
        random_ids = torch.randint(self.vocabulary, ids.shape, generator=self.generator)
        hidden = torch.where(fate < 0.8, self.mask_id, torch.where(fate < 0.9, random_ids, ids))
        return {**batch, "input_ids": torch.where(selected, hidden, ids), "labels": ids.where(selected, IGNORED)}


@dataclass(frozen=True)
class PairCollator:
    """Rows {input_ids, labels} → input_ids, attention_mask [B, S], labels, decoder_input_ids [B, T].

    Teacher forcing: the decoder input is the start token followed by the labels, so no position sees its own target.
    """

    pad_id: int
    start_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        labels = padded([row["labels"] for row in rows], IGNORED)
        read = torch.cat([torch.full_like(labels[:, :1], self.start_id), labels[:, :-1]], dim=1)
        read = read.masked_fill(read == IGNORED, self.pad_id)
        return {**inputs(rows, self.pad_id), "labels": labels, "decoder_input_ids": read}
