"""Skip-gram with negative sampling (Mikolov et al., 2013): words with similar contexts get similar vectors.

No layers, no order, no attention: a table of center words, a table of context words, and a dot product. It learns how
much more often two words occur together than by chance (Levy & Goldberg, 2014). Unlike in masked pre-training, a word
has the same vector in every context.

    python -m services.ws_mdl.practice.skipgram --corpus default
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
from vla_common import entrypoint
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine
from vla_modelkit.training.weights import State

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

    middle int64 [batch]; near [batch, neighbours], padding where there is none; negatives [batch, negatives]: each real
    neighbour is told from all of them.
    """
    real = context != model.pad  # (batch, neighbours)
    of_neighbours = F.logsigmoid(model(middle, context)).where(real, 0.0).sum(dim=1)
    of_negatives = F.logsigmoid(-model(middle, negatives)).sum(dim=1) * real.sum(dim=1)
    return -(of_neighbours + of_negatives).sum() / real.sum().clamp(min=1)


@torch.inference_mode()
def word_scores(model: SkipGram, context: Tensor, counts: Tensor, trust: float) -> Tensor:
    """Return scores [n, vocabulary] of the center word for context words [n, neighbours].

    By Bayes' rule, neighbours taken as independent: log p(word) + Σ log p(neighbour | word), of which the products are
    what a word adds. trust: what they count; below 1, since neighbours are not independent.
    """
    around = model.beside(context).masked_fill((context == model.pad).unsqueeze(-1), 0.0).sum(dim=1)  # (n, d_model)
    return counts.log() + trust * around @ model.middle.weight.T


def nearest(vectors: Tensor, word: int, among: Tensor, count: int = 5) -> list[int]:
    """Return the words of `among` int64 [n] by cosine similarity to a word, the nearest first."""
    unit = F.normalize(vectors, dim=-1)
    likeness = (unit[among] @ unit[word]).masked_fill(among == word, -2.0)
    return among[likeness.topk(min(count, len(among) - 1)).indices].tolist()


# --- words with their neighbours ----------------------------------------------------------------------------


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
    def special(self) -> Tensor:
        """The ids of special tokens, [UNK] too."""
        return torch.tensor([self.tokenizer.token_to_id(token) for token in SPECIAL])

    @cached_property
    def guess_counts(self) -> Tensor:
        """Counts as a prior for predictions: practically 0 for special tokens."""
        return self.counts.index_fill(0, self.special, 1e-9)

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
    corpus = text.load(config.corpus, config.pair, "word", 0, config.held_fraction, volume)
    pad = corpus.tokenizer.token_to_id("[PAD]")
    streams = (padded(blocks, pad, config.window) for blocks in (corpus.train, corpus.val))
    return WordStream(*streams, corpus.tokenizer, pad, config.window, config.rare)


# --- run ----------------------------------------------------------------------------------------------------


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
        data, model = self.data, self.averaged
        positions = (data.guess_counts[data.val] >= 0.1).nonzero().squeeze(1)  # no padding, no unknown word
        targets, context = data.val[positions], neighbours(data.val, positions, data.window)
        right = top1_accuracy(model, context, targets, data.guess_counts, trust_of(model, data))
        common = (targets == data.guess_counts.argmax()).double().mean().item()
        return {"correct_from_neighbours_percent": 100 * right, "most_frequent_word_percent": 100 * common}

    def show(self, directory: Path, curves: Curves) -> str:
        return "\n".join(["nearest words:", *neighbours_of(self.averaged.middle.weight, self.data)])

    def extra_state(self) -> State:
        return {**super().extra_state(), "tokenizer": self.data.tokenizer.to_str()}

    def digest(self) -> str:
        return training.digest_of(self.data.train, self.data.tokenizer.to_str())


def trust_of(model: SkipGram, data: WordStream) -> float:
    """Return the `trust` for `word_scores` with the best training accuracy."""
    positions = data.positions[:: max(1, len(data) // 4000)]
    context = neighbours(data.train, positions, data.window)
    trusts = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
    return max(trusts, key=lambda trust: top1_accuracy(model, context, data.train[positions], data.guess_counts, trust))


def top1_accuracy(model: SkipGram, context: Tensor, targets: Tensor, counts: Tensor, trust: float) -> float:
    """Return the accuracy (0 to 1) of predicting words [n] from context words [n, 2 · window]."""
    device, right = model.middle.weight.device, 0
    for rows, expected in zip(context.to(device).split(512), targets.to(device).split(512), strict=True):
        right += int((word_scores(model, rows, counts.to(device), trust).argmax(dim=1) == expected).sum())
    return right / max(1, len(targets))


def neighbours_of(
    vectors: Tensor, data: WordStream, words: tuple[str, ...] = EXAMPLE_WORDS, count: int = 5
) -> list[str]:
    """Format the nearest words of each known word."""
    name = data.tokenizer.id_to_token
    among = (data.counts >= 5).index_fill(0, data.special, False).nonzero().squeeze(1)  # at least five occurrences
    ids = [number for word in words if (number := data.tokenizer.token_to_id(word)) is not None]
    vectors = vectors.detach().cpu()
    return [f"{name(word)}: {', '.join(map(name, nearest(vectors, word, among, count)))}" for word in ids]


def get_model(config: Config, tokenizer: Tokenizer) -> SkipGram:
    """Return the tables with fresh weights."""
    return SkipGram(tokenizer.get_vocab_size(), config.d_model, tokenizer.token_to_id("[PAD]"))


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    return new_run(Training, config, machine, data, lambda: get_model(config, data.tokenizer))


def model_from(state: State) -> tuple[SkipGram, Tokenizer]:
    """Return the averaged tables of a weights file, in eval mode, and their tokenizer."""
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    return training.averaged(get_model(Config.of(state["config"]), tokenizer), state), tokenizer


def main() -> int:
    """Train; return the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab train bert: the same words by masked pre-training")


if __name__ == "__main__":
    entrypoint.run(main)
