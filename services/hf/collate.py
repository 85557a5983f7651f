"""From rows of unequal length to one batch: our own collate functions, of the four kinds that the labs need.

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

IGNORED = -100  # the label that no loss counts: torch.nn.functional.cross_entropy's ignore_index
Rows = Sequence[Mapping[str, Any]]


def padded(rows: Sequence[Sequence[int]], fill: int, left: bool = False) -> Tensor:
    """Return rows [B][≤ L] as one tensor [B, L], filled up behind, or before with `left`."""
    longest = max(map(len, rows))
    gaps = [[fill] * (longest - len(row)) for row in rows]
    full = [[*gap, *row] if left else [*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
    return torch.tensor(full, dtype=torch.long)


def inputs(rows: Rows, pad_id: int, left: bool = False) -> dict[str, Tensor]:
    """Return input_ids and attention_mask [B, L] of rows that have input_ids."""
    ids = [row["input_ids"] for row in rows]
    return {"input_ids": padded(ids, pad_id, left), "attention_mask": padded([[1] * len(one) for one in ids], 0, left)}


@dataclass(frozen=True)
class Classification:
    """Rows {input_ids, label} → input_ids, attention_mask [B, L], labels [B]."""

    pad_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        return {**inputs(rows, self.pad_id), "labels": torch.tensor([row["label"] for row in rows])}


@dataclass(frozen=True)
class Causal:
    """Rows {input_ids} or {input_ids, labels} → input_ids, attention_mask, labels [B, L].

    The labels are the inputs, which the model itself moves by one; padding is ignored, and so is what a row's own
    labels ignore: the text before a headline.
    """

    pad_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        labels = padded([row.get("labels", row["input_ids"]) for row in rows], IGNORED)
        return {**inputs(rows, self.pad_id), "labels": labels}


@dataclass(frozen=True)
class Masked:
    """Rows {input_ids} → the same with words hidden, and labels [B, L] that know them (BERT, section 3.1).

    15 % of the words are to be guessed; of these 80 % are [MASK], 10 % another word, and 10 % stay as they are. Special
    tokens are never asked for. Each call takes new random numbers, from a generator of its own.
    """

    pad_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    vocabulary: int
    generator: torch.Generator

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> Masked:
        """Return one with a tokenizer's numbers."""
        special, generator = tuple(tokenizer.all_special_ids), torch.Generator().manual_seed(seed)
        return cls(tokenizer.pad_token_id, tokenizer.mask_token_id, special, len(tokenizer), generator)

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        batch = inputs(rows, self.pad_id)
        ids = batch["input_ids"]
        asked = torch.rand(ids.shape, generator=self.generator) < 0.15
        asked &= ~torch.isin(ids, torch.tensor(self.special_ids))
        fate = torch.rand(ids.shape, generator=self.generator)  # one number: the three shares exclude each other
        others = torch.randint(self.vocabulary, ids.shape, generator=self.generator)
        hidden = torch.where(fate < 0.8, self.mask_id, torch.where(fate < 0.9, others, ids))
        return {**batch, "input_ids": torch.where(asked, hidden, ids), "labels": ids.where(asked, IGNORED)}


@dataclass(frozen=True)
class Pairs:
    """Rows {input_ids, labels} → input_ids, attention_mask [B, S], labels, decoder_input_ids [B, T].

    The decoder reads the labels moved by one behind its start token (teacher forcing): what it is to say at a place is
    never what it reads there.
    """

    pad_id: int
    start_id: int

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        labels = padded([row["labels"] for row in rows], IGNORED)
        read = torch.cat([torch.full_like(labels[:, :1], self.start_id), labels[:, :-1]], dim=1)
        return {
            **inputs(rows, self.pad_id),
            "labels": labels,
            "decoder_input_ids": read.masked_fill(read == IGNORED, self.pad_id),
        }
