"""From sentence pairs to batches of token ids, sorted by length to minimize padding."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

Pairs = Sequence[tuple[str, str]]


class Example(NamedTuple):
    """A sentence pair as token ids, without [SOS] and [EOS]."""

    src: list[int]
    tgt: list[int]


class Special(NamedTuple):
    """The ids of the special tokens in one tokenizer."""

    pad: int
    sos: int
    eos: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Special:
        return cls(*(tokenizer.token_to_id(token) for token in ("[PAD]", "[SOS]", "[EOS]")))


def split_pairs(pairs: Pairs, val_fraction: float, seed: int = 0) -> tuple[Pairs, Pairs]:
    """Return (training, validation) pairs. No source sentence is in both, even with several translations."""
    sources = sorted({source for source, _ in pairs})
    if len(sources) < 2:
        raise ValueError(f"{len(sources)} different source sentences; expected at least 2, for training and validation")
    count = min(max(round(val_fraction * len(sources)), 1), len(sources) - 1)
    val_sources = set(random.Random(seed).sample(sources, count))
    return [p for p in pairs if p[0] not in val_sources], [p for p in pairs if p[0] in val_sources]


class PairDataset(Dataset):
    """Sentence pairs as token ids, encoded once. `skipped` and `cut` count those with more than `seq` tokens.

    too_long: "skip" omits such pairs, "cut" truncates them. Raises ValueError if no pair is left.
    """

    def __init__(
        self, pairs: Pairs, tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer, seq: int, too_long: str = "skip"
    ) -> None:
        self.pairs: list[tuple[str, str]] = []
        self.examples: list[Example] = []
        self.skipped = self.cut = 0
        sources = tokenizer_src.encode_batch([source for source, _ in pairs])
        targets = tokenizer_tgt.encode_batch([target for _, target in pairs])
        for pair, source, target in zip(pairs, sources, targets, strict=True):
            fits = len(source.ids) <= seq - 2 and len(target.ids) <= seq - 1  # [SOS] and [EOS]; the target has one
            if not fits and too_long == "skip":
                self.skipped += 1
                continue
            self.cut += not fits
            self.pairs.append(pair)
            self.examples.append(Example(source.ids[: seq - 2], target.ids[: seq - 1]))
        if not self.examples:
            raise ValueError(f"all {len(pairs)} sentence pairs have more than seq = {seq} tokens; use --set seq=N")

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.examples[index]

    def lengths(self) -> list[tuple[int, int]]:
        """Return (source, target) lengths as the model sees them, special tokens included."""
        return [(len(src) + 2, len(tgt) + 1) for src, tgt in self.examples]


def causal_mask(size: int) -> Tensor:
    """Return bool [1, size, size]: token i attends to itself and to earlier tokens."""
    return torch.ones(1, size, size, dtype=torch.bool).tril()


def padding_mask(ids: Tensor, pad: int) -> Tensor:
    """Return bool [batch, 1, 1, seq]: queries attend to tokens that are not padding."""
    return (ids != pad)[:, None, None, :]


class Batch(NamedTuple):
    """A batch of sentence pairs, each side padded to its longest sentence."""

    encoder_input: Tensor  # int64 (batch, src seq): [SOS] source [EOS] [PAD] …
    decoder_input: Tensor  # int64 (batch, tgt seq): [SOS] target [PAD] …
    label: Tensor  # int64 (batch, tgt seq): target [EOS] [PAD] …
    encoder_mask: Tensor  # bool (batch, 1, 1, src seq)
    decoder_mask: Tensor  # bool (1, tgt seq, tgt seq)
    real: Tensor  # int64, indices of the real tokens in the flattened label; computed before the batch goes to a GPU

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to a device; from pinned memory the copy does not block."""
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in self))


def pad_rows(rows: Sequence[list[int]], pad: int, width: int | None = None) -> Tensor:
    """Pad rows to int64 [rows, width]; default width: the longest row."""
    width = width or max(len(row) for row in rows)
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows])


def make_batch(examples: Sequence[Example], src: Special, tgt: Special, width: int | None = None) -> Batch:
    """Return a batch of examples, padded to `width` tokens or to the longest.

    The decoder's mask ignores padding: it comes last, so no real token attends to it.
    """
    encoder_input = pad_rows([[src.sos, *e.src, src.eos] for e in examples], src.pad, width)
    decoder_input = pad_rows([[tgt.sos, *e.tgt] for e in examples], tgt.pad, width)
    label = pad_rows([[*e.tgt, tgt.eos] for e in examples], tgt.pad, width)
    masks = padding_mask(encoder_input, src.pad), causal_mask(decoder_input.shape[1])
    return Batch(encoder_input, decoder_input, label, *masks, (label != tgt.pad).flatten().nonzero().squeeze(1))


class TranslationDataset(PairDataset):
    """The course's data set: rows {"translation": {language: sentence}}, each example a dict padded to seq_len."""

    def __init__(
        self, ds: Iterable[dict[str, Any]], tokenizer_src: Tokenizer, tokenizer_tgt: Tokenizer,
        src_lang: str, tgt_lang: str, seq_len: int,
    ) -> None:  # fmt: skip
        pairs = [(row["translation"][src_lang], row["translation"][tgt_lang]) for row in ds]
        super().__init__(pairs, tokenizer_src, tokenizer_tgt, seq_len)
        self.seq_len = seq_len
        self.special = Special.of(tokenizer_src), Special.of(tokenizer_tgt)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return encoder_input, decoder_input and label, int64 [seq_len]; encoder_mask, bool [1, 1, seq_len];
        decoder_mask, bool [1, seq_len, seq_len]; src_text and tgt_text.
        """
        batch = make_batch([self.examples[index]], *self.special, self.seq_len)
        src_text, tgt_text = self.pairs[index]
        return {
            "encoder_input": batch.encoder_input[0],
            "decoder_input": batch.decoder_input[0],
            "encoder_mask": batch.encoder_mask[0],
            "decoder_mask": padding_mask(batch.decoder_input, self.special[1].pad)[0] & batch.decoder_mask,
            "label": batch.label[0],
            "src_text": src_text,
            "tgt_text": tgt_text,
        }


BilingualDataset = TranslationDataset


class BucketSampler(Sampler[list[int]]):
    """Batches of examples of similar length, with at most `batch_tokens` padded tokens per side.

    The order depends on seed and epoch only, so a run resumes at the next batch (`set_position`). With several
    processes each takes every world-th batch, and all have the same number.
    """

    # Batches' worth of examples that are sorted together: similar lengths, but different batches in each epoch
    POOL = 50

    def __init__(
        self, lengths: list[tuple[int, int]], batch_tokens: int, *, shuffle: bool, seed: int = 0,
        rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        self.lengths, self.batch_tokens, self.shuffle = lengths, batch_tokens, shuffle
        self.seed, self.rank, self.world = seed, rank, world
        self.set_position(0)

    def set_position(self, epoch: int, done: int = 0) -> None:
        """Set the epoch and the number of its finished batches."""
        batches = self._batches(epoch)
        usable = len(batches) - len(batches) % self.world if self.world > 1 else len(batches)
        self.batches = batches[self.rank : usable : self.world]
        self.done = done

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.batches[self.done :]

    def _batches(self, epoch: int) -> list[list[int]]:
        order, generator = list(range(len(self.lengths))), random.Random(f"{self.seed} {epoch}")
        pool = max(1, len(order))
        if self.shuffle:
            generator.shuffle(order)
            mean = sum(max(pair) for pair in self.lengths) / len(self.lengths)
            pool = max(1, round(self.POOL * self.batch_tokens / mean))
        batches: list[list[int]] = []
        for start in range(0, len(order), pool):
            batch: list[int] = []
            longest = 0
            for index in sorted(order[start : start + pool], key=lambda index: self.lengths[index][::-1]):
                longest = max(longest, *self.lengths[index])
                if batch and longest * (len(batch) + 1) > self.batch_tokens:
                    batches.append(batch)
                    batch, longest = [], max(self.lengths[index])
                batch.append(index)
            batches.append(batch)
        if self.shuffle:
            generator.shuffle(batches)
        return batches


class CountSampler(BucketSampler):
    """Batches of `size` examples in random order, regardless of length, as in the course."""

    def __init__(self, lengths: list[tuple[int, int]], size: int, *, seed: int = 0, rank: int = 0, world: int = 1):
        self.size = size
        super().__init__(lengths, 0, shuffle=True, seed=seed, rank=rank, world=world)

    def _batches(self, epoch: int) -> list[list[int]]:
        order = list(range(len(self.lengths)))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        return [order[start : start + self.size] for start in range(0, len(order), self.size)]


def get_loader(
    dataset: PairDataset, sampler: BucketSampler, src: Special, tgt: Special, width: int | None = None
) -> DataLoader:
    """Return a DataLoader of `Batch`es, made by `make_batch`, in pinned memory if there is a GPU."""
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=lambda examples: make_batch(examples, src, tgt, width),
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # its own, else each epoch would use the global generator
    )
