"""A small BERT (Devlin et al., 2018) from lab 1's encoder: masked-token and next-text prediction.

Read it from top to bottom: the model, the texts, the run. Shapes stand at the end of the line: batch examples of seq
tokens, each a vector of d_model numbers.

    ./lab train bert --corpus default
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import text, training
from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.practice.settings import Bert as Config
from services.ws_mdl.practice.text import Ids
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.dataset import pad_rows, padding_mask
from services.ws_mdl.transformer.model import InputEmbeddings, LayerNormalization
from services.ws_mdl.transformer.tokenization import SPECIAL
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine

IGNORED = -100  # label of a token that is not a target: cross_entropy's ignore_index
MASKED, REPLACED = 0.8, 0.1  # shares of the target tokens; the rest stays unchanged
EXTRA_TOKENS = ("[CLS]", "[SEP]", "[MASK]")  # special tokens besides lab 1's


class BERT(nn.Module):
    """Token, position and segment embeddings, lab 1's encoder, and two heads: masked tokens and next text.

    The token head shares its weights with the embedding, after a transform layer.
    """

    def __init__(
        self, vocab_size: int, seq: int, pad: int, d_model: int = 96, N: int = 2, h: int = 4, d_ff: int = 384,
        dropout: float = 0.1, positions: str = "learned",
    ) -> None:  # fmt: skip
        super().__init__()
        self.pad = pad
        self.embed = InputEmbeddings(d_model, vocab_size)
        self.segments = nn.Embedding(2, d_model)  # first or second text
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.encoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        self.transform = nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), LayerNormalization(d_model))
        self.word_bias = nn.Parameter(torch.zeros(vocab_size))
        self.pooler = nn.Sequential(nn.Linear(d_model, d_model), nn.Tanh())
        self.follows = nn.Linear(d_model, 2)
        initialize(self)

    def encode(self, ids: Tensor, segments: Tensor) -> Tensor:
        """Encode tokens to [batch, seq, d_model] with bidirectional attention; ids, segments int64 [batch, seq]."""
        x = self.positions(self.embed(ids) + self.segments(segments))
        return self.encoder(x, padding_mask(ids, self.pad))  # no causal mask

    def word_scores(self, x: Tensor) -> Tensor:
        """Return the scores of the words [..., vocabulary] for vectors [..., d_model]."""
        return F.linear(self.transform(x), self.embed.embedding.weight, self.word_bias)

    def next_text(self, x: Tensor) -> Tensor:
        """Return the scores [batch, 2] of "B is from elsewhere" and "B follows A", from [CLS]'s vector alone."""
        return self.follows(self.pooler(x[:, 0]))

    def forward(self, ids: Tensor, segments: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of the words [batch, seq, vocabulary], and those of `next_text` [batch, 2]."""
        x = self.encode(ids, segments)
        return self.word_scores(x), self.next_text(x)


def mask_tokens(
    ids: Tensor, maskable: Tensor, mask: int, vocabulary: Tensor, fraction: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ids int64 [batch, seq] with masked tokens, and labels: the token at targets, else IGNORED.

    maskable: bool, true at words; a share `fraction` of them are targets. mask: the id of [MASK]. vocabulary: ids of
    random replacements. Some targets stay visible: trained on [MASK] only, a network would learn nothing about words.
    """
    selected = (torch.rand(ids.shape, generator=generator) < fraction) & maskable
    fate = torch.rand(ids.shape, generator=generator)
    other = vocabulary[torch.randint(len(vocabulary), ids.shape, generator=generator)]
    hidden = torch.where(selected & (fate < MASKED), mask, ids)
    hidden = torch.where(selected & (fate >= MASKED) & (fate < MASKED + REPLACED), other, hidden)
    return hidden, torch.where(selected, ids, IGNORED)


def loss_of(model: BERT, ids: Tensor, segments: Tensor, labels: Tensor, follows: Tensor) -> Tensor:
    """Return the sum of the mean cross-entropies of masked tokens and of the next text, in nats."""
    x = model.encode(ids, segments)
    masked = labels != IGNORED
    masked_loss = F.cross_entropy(model.word_scores(x[masked]).float(), labels[masked])  # project targets only
    return masked_loss + F.cross_entropy(model.next_text(x).float(), follows)


# --- pairs of texts, [CLS] A [SEP] B [SEP]: B is what follows A in half of them, else from elsewhere ----------


class Examples(NamedTuple):
    """Some pairs, masked: int64 [batch, seq] each."""

    ids: Tensor
    segments: Tensor
    labels: Tensor
    follows: Tensor  # int64 [batch], 1 where B follows A


@dataclass(frozen=True)
class SentencePairs:
    """Blocks of texts from which pairs are sampled; `val` has the held-out blocks."""

    blocks: list[Ids]
    tokenizer: Tokenizer
    seq: int
    mask_fraction: float
    val: SentencePairs | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def starts(self) -> list[tuple[int, int]]:
        """Positions (block, text) at which a pair can start: another text follows."""
        return [(number, start) for number, block in enumerate(self.blocks) for start in range(len(block) - 1)]

    @cached_property
    def word_ids(self) -> Tensor:
        """The ids of all words, int64 [n]. Special tokens are neither masked nor used as replacements."""
        special = {self.id(token) for token in (*SPECIAL, *EXTRA_TOKENS)}
        return torch.tensor([number for number in range(self.tokenizer.get_vocab_size()) if number not in special])

    def id(self, token: str) -> int:
        """Return the id of a special token."""
        return self.tokenizer.token_to_id(token)

    def examples(self, index: Tensor, generator: torch.Generator) -> Examples:
        """Return examples `index`; B and the mask are sampled at each call."""
        follows = torch.randint(2, (len(index),), generator=generator)
        pairs = [self.pair(at, bool(is_next), generator) for at, is_next in zip(index.tolist(), follows, strict=True)]
        ids = pad_rows([first + second for first, second in pairs], self.id("[PAD]"))
        segments = pad_rows([[0] * len(first) + [1] * len(second) for first, second in pairs], 0)
        maskable = torch.isin(ids, self.word_ids)
        hidden, labels = mask_tokens(ids, maskable, self.id("[MASK]"), self.word_ids, self.mask_fraction, generator)
        return Examples(hidden, segments, labels, follows)

    def pair(self, number: int, follows: bool, generator: torch.Generator) -> tuple[list[int], list[int]]:
        """Return [CLS] A [SEP], and B [SEP]; A takes half of the rest of its block, so text is left to follow."""
        block, start = self.starts[number]
        end = start + (len(self.blocks[block]) - start) // 2
        other, other_start = block, end
        while not follows and other == block:
            other, other_start = self.starts[int(torch.randint(len(self.starts), (), generator=generator))]
        room = (self.seq - 3) // 2
        a = [token for ids in self.blocks[block][start:end] for token in ids][-room:]
        b = [token for ids in self.blocks[other][other_start:] for token in ids][:room]
        return [self.id("[CLS]"), *a, self.id("[SEP]")], [*b, self.id("[SEP]")]


def load(config: Config, volume: Volume) -> SentencePairs:
    """Load a corpus as pairs of texts. Raises ValueError for a corpus that is too short."""
    corpus = text.load(config, config.tokenizer, config.vocab_size, volume)
    corpus.tokenizer.add_special_tokens(list(EXTRA_TOKENS))
    val = SentencePairs(corpus.val, corpus.tokenizer, config.seq, config.mask_fraction)
    pairs = replace(val, blocks=corpus.train, val=val)
    if any(len({block for block, _ in part.starts}) < 2 for part in (pairs, val)):
        raise ValueError(
            f"corpus {config.corpus!r} is too short; expected at least two blocks of {text.RUN} texts for training "
            "and two held out: use more text, or increase --set held-fraction"
        )
    return pairs


class Training(PracticeRun):
    """A run in progress; its generator samples the data order, B and the masks."""

    config: Config
    data: SentencePairs
    unit = "pairs"

    @property
    def summary(self) -> str:
        return f"{len(self.data)} pairs of texts, {len(self.data.word_ids)} words, {len(self.val.ids)} pairs held out"

    @cached_property
    def val(self) -> Examples:
        """An example for each held-out position, always the same, on the device."""
        val = self.data.val
        examples = val.examples(torch.arange(len(val)), torch.Generator().manual_seed(0))
        return Examples(*(tensor.to(self.machine.device) for tensor in examples))

    def loss(self, index: Tensor) -> Tensor:
        examples = self.data.examples(index, self.generator)
        return loss_of(self.nn_model, *(tensor.to(self.machine.device) for tensor in examples))

    def measure(self) -> Figures:
        return figures_of(self.averaged, self.val, self.data)

    def show(self, directory: Path, curves: Curves) -> str:
        lines = filled(self.averaged, self.data.tokenizer, Examples(*(tensor[:5] for tensor in self.val)))
        curves.writer.add_text("masked", "\n\n".join(lines), self.global_step)
        return "\n".join(["masked [prediction → token]:", *lines])

    def digest(self) -> str:
        return training.digest_of(repr(self.data.blocks), self.data.tokenizer.to_str())


@torch.inference_mode()
def figures_of(model: BERT, val: Examples, data: SentencePairs, batch: int = 64) -> Figures:
    """Return the accuracies on masked tokens and next texts, and that of predicting the most frequent word."""
    counts = Counter(token for block in data.blocks for ids in block for token in ids)
    frequent = max(data.word_ids.tolist(), key=counts.__getitem__)
    guesses, expected, right_pairs = [], [], 0
    for ids, segments, labels, follows in zip(*(tensor.split(batch) for tensor in val), strict=True):
        x, masked = model.encode(ids, segments), labels != IGNORED
        guesses.append(model.word_scores(x[masked]).argmax(dim=-1))
        expected.append(labels[masked])
        right_pairs += int((model.next_text(x).argmax(dim=-1) == follows).sum())
    words = torch.cat(expected)
    return {
        "masked_percent": 100 * int((torch.cat(guesses) == words).sum()) / max(1, len(words)),
        "most_frequent_word_percent": 100 * int((words == frequent).sum()) / max(1, len(words)),
        "next_text_percent": 100 * right_pairs / len(val.ids),
    }


@torch.inference_mode()
def filled(model: BERT, tokenizer: Tokenizer, examples: Examples) -> list[str]:
    """Format texts with [prediction → token] at each target."""
    guesses = model(examples.ids, examples.segments)[0].argmax(dim=-1)
    name, lines = tokenizer.id_to_token, []
    for row in zip(examples.ids.tolist(), examples.labels.tolist(), guesses.tolist(), strict=True):
        parts = [
            name(token) if label == IGNORED else f"[{name(guess)} → {name(label)}]"
            for token, label, guess in zip(*row, strict=True)
        ]
        lines.append(" ".join(part for part in parts if part != "[PAD]"))
    return lines


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    vocab_size, pad = data.tokenizer.get_vocab_size(), data.id("[PAD]")
    return new_run(Training, config, machine, data, lambda: BERT(vocab_size, config.seq, pad, **config.size()))


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")
