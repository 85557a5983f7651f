"""A small BERT (Devlin et al., 2018) from lab 1's encoder: masked-token and next-text prediction.

Read it from top to bottom: the model, the texts, the run. Shapes stand at the end of the line: batch examples of seq
tokens, each a vector of d_model numbers.

    python -m services.ws_mdl.practice.bert --corpus default
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
from vla_common import entrypoint
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State

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
    """Return ids with masked tokens, and labels: the token at targets, else IGNORED.

    ids int64 [batch, seq]. maskable: bool, true at words. mask: the id of [MASK]. vocabulary: ids int64 [n] of random
    replacements. Of the targets, a share `fraction` of the words, 80 % become [MASK], 10 % a random word and 10 % stay:
    a network that is trained on [MASK] only would learn nothing about visible words.
    """
    selected = (torch.rand(ids.shape, generator=generator) < fraction) & maskable
    fate = torch.rand(ids.shape, generator=generator)
    other = vocabulary[torch.randint(len(vocabulary), ids.shape, generator=generator)]
    hidden = torch.where(selected & (fate < MASKED), mask, ids)
    hidden = torch.where(selected & (fate >= MASKED) & (fate < MASKED + REPLACED), other, hidden)
    return hidden, torch.where(selected, ids, IGNORED)


def loss_of(model: BERT, ids: Tensor, segments: Tensor, labels: Tensor, follows: Tensor) -> Tensor:
    """Return the sum of the mean cross-entropies of masked tokens and of the next text, in nats.

    ids, segments, labels: int64 [batch, seq], see `mask_tokens`. follows: int64 [batch], 1 where B follows A.
    """
    x = model.encode(ids, segments)
    masked = labels != IGNORED
    masked_loss = F.cross_entropy(model.word_scores(x[masked]).float(), labels[masked])  # project targets only
    return masked_loss + F.cross_entropy(model.next_text(x).float(), follows)


# --- pairs of texts, [CLS] A [SEP] B [SEP]: B is what follows A in half of them, else from elsewhere ----------


class Examples(NamedTuple):
    """Some pairs, masked: int64 [batch, seq] each, and follows int64 [batch], 1 where B follows A."""

    ids: Tensor
    segments: Tensor
    labels: Tensor
    follows: Tensor


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

    @cached_property
    def frequent_word(self) -> int:
        """The most frequent word."""
        counts = Counter(token for block in self.blocks for ids in block for token in ids)
        return max(self.word_ids.tolist(), key=counts.__getitem__)

    def id(self, token: str) -> int:
        """Return the id of a special token."""
        return self.tokenizer.token_to_id(token)

    def val_examples(self) -> Examples:
        """Return an example for each held-out position; deterministic."""
        return self.val.examples(torch.arange(len(self.val)), torch.Generator().manual_seed(0))

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
    corpus = text.load(config.corpus, config.pair, config.tokenizer, config.vocab_size, config.held_fraction, volume)
    corpus.tokenizer.add_special_tokens(list(EXTRA_TOKENS))
    val = SentencePairs(corpus.val, corpus.tokenizer, config.seq, config.mask_fraction)
    pairs = replace(val, blocks=corpus.train, val=val)
    if any(len({block for block, _ in part.starts}) < 2 for part in (pairs, val)):
        raise ValueError(
            f"corpus {config.corpus!r} is too short; expected at least two blocks of {text.RUN} texts for training "
            "and two held out: use more text, or increase --set held-fraction"
        )
    return pairs


# --- run ----------------------------------------------------------------------------------------------------


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
        """The held-out examples, on the device."""
        return Examples(*(tensor.to(self.machine.device) for tensor in self.data.val_examples()))

    def loss(self, index: Tensor) -> Tensor:
        examples = self.data.examples(index, self.generator)
        return loss_of(self.nn_model, *(tensor.to(self.machine.device) for tensor in examples))

    def measure(self) -> Figures:
        return figures_of(self.averaged, self.val, self.data.frequent_word)

    def show(self, directory: Path, curves: Curves) -> str:
        lines = filled(self.averaged, self.data.tokenizer, Examples(*(tensor[:5] for tensor in self.val)))
        curves.writer.add_text("masked", "\n\n".join(lines), self.global_step)
        return "\n".join(["masked [prediction → token]:", *lines])

    def extra_state(self) -> State:
        return {**super().extra_state(), "tokenizer": self.data.tokenizer.to_str()}

    def digest(self) -> str:
        return training.digest_of(repr(self.data.blocks), self.data.tokenizer.to_str())


@torch.inference_mode()
def figures_of(model: BERT, val: Examples, frequent: int, batch: int = 64) -> Figures:
    """Return the accuracies on masked tokens and next texts, and that of always predicting the token `frequent`."""
    right = frequent_right = total = followers_right = 0
    for ids, segments, labels, follows in zip(*(tensor.split(batch) for tensor in val), strict=True):
        x = model.encode(ids, segments)
        expected = labels[labels != IGNORED]
        right += int((model.word_scores(x[labels != IGNORED]).argmax(dim=-1) == expected).sum())
        frequent_right += int((expected == frequent).sum())
        total += len(expected)
        followers_right += int((model.next_text(x).argmax(dim=-1) == follows).sum())
    return {
        "masked_percent": 100 * right / max(1, total),
        "most_frequent_word_percent": 100 * frequent_right / max(1, total),
        "next_text_percent": 100 * followers_right / len(val.ids),
    }


@torch.inference_mode()
def filled(model: BERT, tokenizer: Tokenizer, examples: Examples) -> list[str]:
    """Format texts with [prediction → token] at each target."""
    guesses = model(examples.ids, examples.segments)[0].argmax(dim=-1).tolist()
    name, lines = tokenizer.id_to_token, []
    for ids, labels, guess_ids in zip(examples.ids.tolist(), examples.labels.tolist(), guesses, strict=True):
        parts = [
            name(token) if label == IGNORED else f"[{name(word)} → {name(label)}]"
            for token, label, word in zip(ids, labels, guess_ids, strict=True)
        ]
        lines.append(" ".join(part for part in parts if part != "[PAD]"))
    return lines


def get_model(config: Config, tokenizer: Tokenizer) -> BERT:
    """Return the network with fresh weights."""
    return BERT(tokenizer.get_vocab_size(), config.seq, tokenizer.token_to_id("[PAD]"), **config.size())


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    return new_run(Training, config, machine, data, lambda: get_model(config, data.tokenizer))


def model_from(state: State) -> tuple[BERT, Tokenizer]:
    """Return the averaged network of a weights file, in eval mode, and its tokenizer."""
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    return training.averaged(get_model(Config.of(state["config"]), tokenizer), state), tokenizer


def main() -> int:
    """Train; return the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")


if __name__ == "__main__":
    entrypoint.run(main)
