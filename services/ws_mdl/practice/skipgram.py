"""Skip-gram with negative sampling (Mikolov et al., 2013): words with similar contexts get similar vectors.

No layers, no order, no attention: a table of center words, a table of context words, and a dot product. It learns how
much more often two words occur together than by chance (Levy & Goldberg, 2014). Unlike in masked pre-training, a word
has the same vector in every context.

    ./lab train skipgram --corpus default
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import text, training
from services.ws_mdl.practice.settings import Skipgram as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.tokenization import SPECIAL
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine

EXAMPLE_WORDS = ("light", "temperature", "failed", "minutes", "password", "on")  # words for the list of nearest words


class SkipGram(nn.Module):
    """Two vectors per word: as the center word, and as a context word."""

    def __init__(self, vocab_size: int, d_model: int, pad: int) -> None:
        super().__init__()
        self.pad = pad
        self.middle = nn.Embedding(vocab_size, d_model)
        self.beside = nn.Embedding(vocab_size, d_model)
        nn.init.uniform_(self.middle.weight, -0.5 / d_model, 0.5 / d_model)
        nn.init.zeros_(self.beside.weight)

    def forward(self, middle: Tensor, context: Tensor) -> Tensor:
        """Return scores [batch, words] of context words [batch, words] for center words [batch]."""
        return (self.beside(context) @ self.middle(middle).unsqueeze(-1)).squeeze(-1)


def loss_of(model: SkipGram, middle: Tensor, context: Tensor, negatives: Tensor) -> Tensor:
    """Return the mean loss in nats of distinguishing context words from random words.

    middle int64 [batch]; context [batch, neighbours], padding where there is none; negatives [batch, negatives].
    """
    real = context != model.pad  # (batch, neighbours)
    of_neighbours = F.logsigmoid(model(middle, context)).where(real, 0.0).sum(dim=1)
    of_negatives = F.logsigmoid(-model(middle, negatives)).sum(dim=1) * real.sum(dim=1)
    return -(of_neighbours + of_negatives).sum() / real.sum().clamp(min=1)


def nearest(vectors: Tensor, word: int, among: Tensor, count: int = 5) -> list[int]:
    """Return the words of `among` int64 [n] by cosine similarity to a word, the nearest first."""
    unit = F.normalize(vectors, dim=-1)
    likeness = (unit[among] @ unit[word]).masked_fill(among == word, -2.0)
    return among[likeness.topk(min(count, len(among) - 1)).indices].tolist()


@dataclass(frozen=True)
class WordStream:
    """A corpus as a stream of words. Its length is the number of training words."""

    train: Tensor  # int64 [steps]: texts with `window` times padding before, between and behind them
    val: Tensor  # the same of held-out texts
    tokenizer: Tokenizer
    pad: int
    window: int
    rare: float

    def __len__(self) -> int:
        return len(self.positions)

    @cached_property
    def positions(self) -> Tensor:
        """The positions of the words in `train`, int64 [words]."""
        return (self.train != self.pad).nonzero().squeeze(1)

    @cached_property
    def counts(self) -> Tensor:
        """The training count of each token, float [vocabulary], at least 0.1."""
        counts = torch.bincount(self.train[self.positions], minlength=self.tokenizer.get_vocab_size())
        return counts.float().clamp(min=0.1)

    @cached_property
    def keep_probability(self) -> Tensor:
        """The probability of keeping each token: √(rare / share), at most 1 (Mikolov et al., 2013)."""
        return (self.rare / (self.counts / self.counts.sum())).sqrt().clamp(max=1)

    def examples(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return words [batch] and their neighbours [batch, 2 · window], padding where there is none.

        The subsampling of frequent words and the window size are sampled at each call.
        """
        positions = self.positions[index]
        middle, context = self.train[positions], neighbours(self.train, positions, self.window)
        reach = torch.randint(1, self.window + 1, (len(index), 1), generator=generator)
        taken = offsets(self.window).abs() <= reach
        taken &= torch.rand(context.shape, generator=generator) < self.keep_probability[context]
        taken &= torch.rand(len(index), 1, generator=generator) < self.keep_probability[middle, None]
        return middle, context.where(taken, self.pad)


def offsets(window: int) -> Tensor:
    """Return the offsets of context words, int64 [2 · window], as in -2, -1, 1, 2."""
    return torch.tensor([*range(-window, 0), *range(1, window + 1)])


def neighbours(stream: Tensor, positions: Tensor, window: int) -> Tensor:
    """Return the tokens around positions, int64 [positions, 2 · window]."""
    return stream[positions[:, None] + offsets(window)]


def padded(blocks: list[text.Ids], pad: int, window: int) -> Tensor:
    """Concatenate texts with `window` padding tokens before, between and after them."""
    row = [pad] * window
    for ids in (ids for block in blocks for ids in block):
        row += [*ids, *[pad] * window]
    return torch.tensor(row)


def load(config: Config, volume: Volume) -> WordStream:
    """Load a corpus as words, with the same tokens and held-out texts as `train bert`."""
    corpus = text.load(config, "word", 0, volume)
    pad = corpus.tokenizer.token_to_id("[PAD]")
    streams = (padded(blocks, pad, config.window) for blocks in (corpus.train, corpus.val))
    return WordStream(*streams, corpus.tokenizer, pad, config.window, config.rare)


class Training(PracticeRun):
    """A run in progress; its generator samples data order, subsampling, windows and negatives."""

    config: Config
    data: WordStream
    unit = "words"

    @property
    def summary(self) -> str:
        return f"{len(self.data)} words, vocabulary of {self.data.tokenizer.get_vocab_size()}"

    def loss(self, index: Tensor) -> Tensor:
        middle, context = self.data.examples(index, self.generator)
        likely = self.data.counts**0.75  # the paper's exponent
        negatives = torch.multinomial(likely, len(index) * self.config.negatives, True, generator=self.generator)
        batch = middle, context, negatives.view(len(index), -1)
        return loss_of(self.nn_model, *(tensor.to(self.machine.device) for tensor in batch))

    @torch.inference_mode()
    def measure(self) -> Figures:
        """Return the loss on the held-out words: every word, the full window, always the same negatives."""
        data = self.data
        positions, generator = (data.val != data.pad).nonzero().squeeze(1), torch.Generator().manual_seed(0)
        context = neighbours(data.val, positions, data.window)
        negatives = torch.multinomial(data.counts**0.75, context.numel(), True, generator=generator).view_as(context)
        batch = (tensor.to(self.machine.device) for tensor in (data.val[positions], context, negatives))
        return {"loss": loss_of(self.averaged, *batch).item()}

    def show(self, directory: Path, curves: Curves) -> str:
        return "\n".join(["nearest words:", *neighbours_of(self.averaged.middle.weight, self.data)])

    def digest(self) -> str:
        return training.digest_of(self.data.train, self.data.tokenizer.to_str())


def neighbours_of(
    vectors: Tensor, data: WordStream, words: tuple[str, ...] = EXAMPLE_WORDS, count: int = 5
) -> list[str]:
    """Format the nearest words of each known word, of those that occur at least five times."""
    name = data.tokenizer.id_to_token
    special = torch.tensor([data.tokenizer.token_to_id(token) for token in SPECIAL])
    among, vectors = (data.counts.index_fill(0, special, 0) >= 5).nonzero().squeeze(1), vectors.detach().cpu()
    ids = [number for word in words if (number := data.tokenizer.token_to_id(word)) is not None]
    return [f"{name(word)}: {', '.join(map(name, nearest(vectors, word, among, count)))}" for word in ids]


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    vocab_size = data.tokenizer.get_vocab_size()
    return new_run(Training, config, machine, data, lambda: SkipGram(vocab_size, config.d_model, data.pad))


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab train bert: the same words by masked pre-training")
