"""Sentence pairs as token ids: lab 1's corpora, tokenizers and batches."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader

from services.ws_mdl import corpora
from services.ws_mdl.practice.lstm.config import Config
from services.ws_mdl.transformer.dataset import (
    Batch,
    BucketSampler,
    PairDataset,
    Special,
    get_loader,
    make_batch,
    split_pairs,
)
from services.ws_mdl.transformer.tokenization import train_tokenizer
from vla_common.volume import Volume

BATCH_TOKENS = 2048  # of the batches that are only measured


@dataclass(frozen=True)
class Sentences:
    """What is learned from, what is measured on, and the tokenizers of both languages."""

    learned: PairDataset
    held: PairDataset
    tokenizer_src: Tokenizer
    tokenizer_tgt: Tokenizer

    def __len__(self) -> int:
        return len(self.learned)

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        return self.tokenizer_src, self.tokenizer_tgt

    @property
    def specials(self) -> tuple[Special, Special]:
        return tuple(map(Special.of, self.tokenizers))

    @property
    def sizes(self) -> tuple[int, int]:
        """The source's and the target's number of words."""
        return self.tokenizer_src.get_vocab_size(), self.tokenizer_tgt.get_vocab_size()

    def batch(self, index: Tensor) -> Batch:
        """Returns the pairs of those numbers, padded to the longest."""
        return make_batch([self.learned[i] for i in index.tolist()], *self.specials)

    def held_loader(self) -> DataLoader:
        sampler = BucketSampler(self.held.lengths(), BATCH_TOKENS, shuffle=False)
        return get_loader(self.held, sampler, *self.specials)


def load(config: Config, volume: Volume) -> Sentences:
    """Returns the corpus of a run, with tokenizers made of what is learned from."""
    corpus = corpora.load(config.corpus, config.pair, volume)
    learned, held = split_pairs(corpus.pairs, config.val_fraction)
    tokenizers = [train_tokenizer((pair[side] for pair in learned), "word", config.min_frequency, 0) for side in (0, 1)]
    sets = (PairDataset(pairs, *tokenizers, config.seq) for pairs in (learned, held))
    return Sentences(*sets, *tokenizers)
