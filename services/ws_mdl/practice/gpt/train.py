"""Trains a small GPT: `python -m services.ws_mdl.practice.gpt.train --corpus default`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.gpt.config import Config
from services.ws_mdl.practice.gpt.data import Streams, load
from services.ws_mdl.practice.gpt.model import GPT, generate, loss_of
from services.ws_mdl.practice.gpt.ngram import KneserNey
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.tokenization import detokenize
from vla_common import endings
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

ORDER = 5  # of the n-gram that is shown beside


class Training(PracticeRun):
    """A run in progress; its generator draws the order and where windows begin."""

    config: Config
    data: Streams
    nn_model: GPT
    unit = "windows"

    @property
    def about(self) -> str:
        words = self.data.tokenizer.get_vocab_size()
        return f"{len(self.data.train)} tokens of {words} kinds, {self.data.held_tokens} held out"

    def loss(self, index: Tensor) -> Tensor:
        return loss_of(self.nn_model, self.data.windows(index, self.generator).to(self.machine.device))

    def measure(self) -> Figures:
        nats = held_out_nats(self.averaged, self.data.held, self.data.seq)
        return figures_of(nats, self.data)

    def show(self, folder: Path, curves: Curves) -> str:
        counted = figures_of(five_gram(self.data).nats(self.data.held), self.data)
        curves.scalars("5-gram, held out", counted, self.global_step)
        samples = sample(self.averaged, self.data.tokenizer, "", self.config, count=4)
        curves.writer.add_text("samples", "\n\n".join(samples), self.global_step)
        return "\n".join([f"a {ORDER}-gram of the same tokens: {training.told(counted)}", "samples:", *samples])

    def own_state(self) -> State:
        return {**super().own_state(), "tokenizer": self.data.tokenizer.to_str()}

    def digest(self) -> str:
        return training.digest_of(self.data.train, self.data.tokenizer.to_str())


def get_model(config: Config, vocab_size: int) -> GPT:
    """Returns the network with fresh weights."""
    size = {name: getattr(config, name) for name in ("seq", "d_model", "N", "h", "d_ff", "dropout", "positions")}
    return GPT(vocab_size, **size)


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    data = load(config, volume)
    return begin(Training, config, machine, data, lambda: get_model(config, data.tokenizer.get_vocab_size()))


def model_from(state: State) -> tuple[GPT, Tokenizer]:
    """Returns the averaged network that a weights file holds, in eval mode, and its tokenizer."""
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    model = get_model(Config.of(state["config"]), tokenizer.get_vocab_size())
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval(), tokenizer


# --- measuring ----------------------------------------------------------------------------------------------


@torch.inference_mode()
def held_out_nats(model: GPT, streams: list[list[int]], seq: int) -> float:
    """Returns what the tokens of streams cost together, but for the first of each; every one is guessed once.

    Windows begin half a window apart, and of each but the first the later half counts: so a token has half a window
    before it, at least, wherever its stream has that many.
    """
    device, total = next(model.parameters()).device, 0.0
    for stream in streams:
        done = 1  # the first is given
        while done < len(stream):
            start = max(0, done - 1 - seq // 2)
            ids = torch.tensor([stream[start : start + seq + 1]], device=device)
            costs = F.cross_entropy(model(ids[:, :-1]).float()[0], ids[0, 1:], reduction="none")
            total += costs[done - start - 1 :].sum().item()
            done = start + ids.shape[1]
    return total


def figures_of(nats: float, data: Streams) -> Figures:
    """Returns what a cost in nats is per token and per character."""
    return {
        "perplexity": math.exp(nats / data.held_tokens),
        "bits_per_character": nats / math.log(2) / data.held_characters,
    }


def five_gram(data: Streams) -> KneserNey:
    """Returns the n-gram of the same text."""
    return KneserNey([data.train.tolist()], data.tokenizer.get_vocab_size(), ORDER)


def sample(model: GPT, tokenizer: Tokenizer, begin: str, config: Config, count: int = 1, most: int = 60) -> list[str]:
    """Returns texts that begin so, drawn as the configuration says; each to its end, of at most `most` tokens."""
    eos = tokenizer.token_to_id("[EOS]")
    ids = torch.tensor([[eos, *tokenizer.encode(begin).ids]] * count, device=next(model.parameters()).device)
    draw = {name: getattr(config, name) for name in ("temperature", "top_k", "top_p")}
    rows = generate(model, ids, most, torch.Generator().manual_seed(config.seed), **draw)[:, 1:].tolist()
    return [detokenize(tokenizer, row[: row.index(eos)] if eos in row else row) for row in rows]


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")


if __name__ == "__main__":
    endings.run(main)
