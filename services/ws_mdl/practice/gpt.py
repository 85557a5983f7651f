"""A small GPT (Radford et al., 2018) from lab 1's blocks: causal self-attention and next-token prediction.

Read it from top to bottom: the model, sampling, the text, the run. Shapes stand at the end of the line: batch texts of
seq tokens, each a vector of d_model numbers.

    ./lab train gpt --corpus default
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.ws_mdl.epochs import new_run
from services.ws_mdl.practice import text, training
from services.ws_mdl.practice.blocks import build_positions, build_stack, initialize
from services.ws_mdl.practice.ngram import KneserNey
from services.ws_mdl.practice.settings import Gpt as Config
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.dataset import causal_mask
from services.ws_mdl.transformer.model import InputEmbeddings
from services.ws_mdl.transformer.tokenization import detokenize
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import TrainingMachine

ORDER = 5  # of the n-gram baseline


class GPT(nn.Module):
    """Embedding, positions, a stack of blocks with a causal mask, and scores for the next token.

    The output layer shares its weights with the embedding.
    """

    def __init__(
        self, vocab_size: int, seq: int, d_model: int = 96, N: int = 3, h: int = 4, d_ff: int = 384,
        dropout: float = 0.1, positions: str = "rotary",
    ) -> None:  # fmt: skip
        super().__init__()
        self.seq = seq
        self.embed = InputEmbeddings(d_model, vocab_size)
        self.positions = build_positions(positions, d_model, seq, dropout)
        self.decoder = build_stack(d_model, N, h, d_ff, dropout, seq, positions=positions)
        initialize(self)

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores [batch, seq, vocabulary] of the token after each of the tokens int64 [batch, seq]."""
        mask = causal_mask(ids.shape[1]).to(ids.device)  # (1, seq, seq)
        x = self.decoder(self.positions(self.embed(ids)), mask)  # (batch, seq, d_model)
        return F.linear(x, self.embed.embedding.weight)


def next_probabilities(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Return the distribution of the next token, float [batch, vocabulary], for logits of that shape.

    temperature: below 1 prefers the likely, 0 takes the likeliest alone. top_k: only the k likeliest (0: all). top_p:
    only the likeliest that together have this probability (Holtzman et al., 2019), at least one.
    """
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature {temperature}, top_k {top_k}, top_p {top_p}; expected >= 0, >= 0, in (0, 1]")
    if temperature == 0:
        return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).float()
    likely, order = (logits.float() / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    if top_k:
        likely[:, top_k:] = 0
        likely = likely / likely.sum(dim=-1, keepdim=True)
    before = likely.cumsum(dim=-1) - likely  # of those that are likelier: the one that crosses top_p still counts
    likely = likely.masked_fill(before >= top_p, 0)
    likely = likely / likely.sum(dim=-1, keepdim=True)
    return torch.zeros_like(likely).scatter(-1, order, likely)


@torch.inference_mode()
def generate(model: GPT, ids: Tensor, count: int, generator: torch.Generator, **sampling: Any) -> Tensor:
    """Append `count` tokens to texts int64 [batch, seq]. sampling: arguments of `next_probabilities`."""
    for _ in range(count):
        logits = model(ids[:, -model.seq :])[:, -1]
        likely = next_probabilities(logits, **sampling).cpu()
        ids = torch.cat([ids, torch.multinomial(likely, 1, generator=generator).to(ids.device)], dim=1)
    return ids


def sample(
    model: GPT, tokenizer: Tokenizer, prompt: str, config: Config, count: int = 1, max_tokens: int = 60
) -> list[str]:
    """Sample `count` continuations of the prompt, each to [EOS] or max_tokens, including the prompt."""
    eos = tokenizer.token_to_id("[EOS]")
    ids = torch.tensor([[eos, *tokenizer.encode(prompt).ids]] * count, device=next(model.parameters()).device)
    sampling = {"temperature": config.temperature, "top_k": config.top_k, "top_p": config.top_p}
    rows = generate(model, ids, max_tokens, torch.Generator().manual_seed(config.seed), **sampling)[:, 1:].tolist()
    return [detokenize(tokenizer, row[: row.index(eos)] if eos in row else row) for row in rows]


@dataclass(frozen=True)
class Streams:
    """The corpus as one training stream, and one stream per held-out block."""

    train: Tensor  # int64 [tokens]
    val: list[list[int]]  # each starts with an [EOS] that is not predicted
    tokenizer: Tokenizer
    val_characters: int
    seq: int

    def __len__(self) -> int:
        return (len(self.train) - 1) // self.seq

    def windows(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return windows int64 [batch, seq + 1], each shifted randomly from its regular start."""
        shift = torch.randint(self.seq, (len(index),), generator=generator)
        starts = (index * self.seq + shift).clamp(max=len(self.train) - self.seq - 1)
        return self.train[starts[:, None] + torch.arange(self.seq + 1)]

    @cached_property
    def eos(self) -> int:
        return self.tokenizer.token_to_id("[EOS]")

    @cached_property
    def val_tokens(self) -> int:
        return sum(len(stream) - 1 for stream in self.val)


def load(config: Config, volume: Volume) -> Streams:
    """Load a corpus as streams. Raises ValueError if it is shorter than a window."""
    corpus = text.load(config, config.tokenizer, config.vocab_size, volume)
    eos = corpus.tokenizer.token_to_id("[EOS]")
    train = [token for block in corpus.train for token in stream_of(block, eos)[1:]]
    if len(train) <= config.seq:
        raise ValueError(f"corpus {config.corpus!r} has {len(train)} tokens; expected more than seq = {config.seq}")
    val = [stream_of(block, eos) for block in corpus.val]
    return Streams(torch.tensor(train), val, corpus.tokenizer, corpus.val_characters, config.seq)


def stream_of(block: text.Ids, eos: int) -> list[int]:
    """Return [EOS], then every text followed by [EOS]."""
    return [eos, *(token for ids in block for token in (*ids, eos))]


class Training(PracticeRun):
    """A run in progress; its generator samples the data order and the windows' starts."""

    config: Config
    data: Streams
    unit = "windows"

    @property
    def summary(self) -> str:
        vocabulary = self.data.tokenizer.get_vocab_size()
        return f"{len(self.data.train)} training and {self.data.val_tokens} held-out tokens, vocabulary of {vocabulary}"

    def loss(self, index: Tensor) -> Tensor:
        ids = self.data.windows(index, self.generator).to(self.machine.device)
        return F.cross_entropy(self.nn_model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())

    def measure(self) -> Figures:
        return figures_of(val_nats(self.averaged, self.data.val, self.data.seq), self.data)

    def show(self, directory: Path, curves: Curves) -> str:
        counted = figures_of(five_gram(self.data).nats(self.data.val), self.data)
        curves.scalars("5-gram, held out", counted, self.global_step)
        samples = sample(self.averaged, self.data.tokenizer, "", self.config, count=4)
        curves.writer.add_text("samples", "\n\n".join(samples), self.global_step)
        line = f"a {ORDER}-gram of the same tokens: {training.format_figures(counted)}"
        return "\n".join([line, "samples:", *samples])

    def digest(self) -> str:
        return training.digest_of(self.data.train, self.data.tokenizer.to_str())


@torch.inference_mode()
def val_nats(model: GPT, streams: list[list[int]], seq: int) -> float:
    """Return the total negative log-likelihood of streams in nats, without the first token of each.

    Windows overlap by half; after the first one only second halves count, so each token has enough context.
    """
    device, total = next(model.parameters()).device, 0.0
    for stream in streams:
        done = 1  # the first token is not predicted
        while done < len(stream):
            start = max(0, done - 1 - seq // 2)
            ids = torch.tensor([stream[start : start + seq + 1]], device=device)
            costs = F.cross_entropy(model(ids[:, :-1]).float()[0], ids[0, 1:], reduction="none")
            total += costs[done - start - 1 :].sum().item()
            done = start + ids.shape[1]
    return total


def figures_of(nats: float, data: Streams) -> Figures:
    """Convert nats to perplexity per token and bits per character."""
    perplexity, bits = math.exp(nats / data.val_tokens), nats / math.log(2)
    return {"perplexity": perplexity, "bits_per_character": bits / data.val_characters}


def five_gram(data: Streams) -> KneserNey:
    """Return the n-gram of the same text."""
    return KneserNey([data.train.tolist()], data.tokenizer.get_vocab_size(), ORDER)


def get_training(config: Config, machine: TrainingMachine, volume: Volume) -> Training:
    """Return a run before its first batch."""
    data = load(config, volume)
    vocab_size = data.tokenizer.get_vocab_size()
    return new_run(Training, config, machine, data, lambda: GPT(vocab_size, config.seq, **config.size()))


if __name__ == "__main__":
    training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")
