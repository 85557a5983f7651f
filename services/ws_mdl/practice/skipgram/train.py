"""Trains vectors of words: `python -m services.ws_mdl.practice.skipgram.train --corpus default`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.skipgram import measure
from services.ws_mdl.practice.skipgram.config import Config
from services.ws_mdl.practice.skipgram.data import Words, load, neighbours
from services.ws_mdl.practice.skipgram.model import SkipGram, loss_of, nearest
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.tokenization import SPECIAL
from vla_common import endings
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

SHOWN = ("light", "temperature", "failed", "minutes", "password", "on")  # words whose neighbours are shown
FREQUENT = 5  # times a word must have been seen to be shown


class Training(PracticeRun):
    """A run in progress; its generator draws the order, what is left out, and words that stand nowhere near."""

    config: Config
    data: Words
    nn_model: SkipGram
    unit = "words"

    @property
    def about(self) -> str:
        return f"{len(self.data)} words of {self.data.tokenizer.get_vocab_size()} kinds"

    def loss(self, index: Tensor) -> Tensor:
        middle, near = self.data.examples(index, self.generator)
        likely = self.data.counts**0.75  # between the words' own shares and all alike: the paper's
        drawn = torch.multinomial(likely, len(index) * self.config.negatives, True, generator=self.generator)
        device = self.machine.device
        return loss_of(self.nn_model, middle.to(device), near.to(device), drawn.view(len(index), -1).to(device))

    @torch.inference_mode()
    def measure(self) -> Figures:
        data, model = self.data, self.averaged
        places = (data.asked[data.held] >= 0.1).nonzero().squeeze(1)  # no padding, no unknown word
        words, near = data.held[places], neighbours(data.held, places, data.window)
        right = measure.told_right(model, near, words, data.asked, measure.trust_of(model, data))
        common = (words == data.asked.argmax()).double().mean().item()
        return {"told_by_neighbours_percent": 100 * right, "most_frequent_word_percent": 100 * common}

    def show(self, folder: Path, curves: Curves) -> str:
        return "\n".join(["nearest words:", *neighbours_of(self.averaged.middle.weight, self.data)])

    def own_state(self) -> State:
        return {**super().own_state(), "tokenizer": self.data.tokenizer.to_str()}

    def digest(self) -> str:
        return training.digest_of(self.data.train, self.data.tokenizer.to_str())


def neighbours_of(vectors: Tensor, data: Words, words: tuple[str, ...] = SHOWN, count: int = 5) -> list[str]:
    """Returns a line for each of the words that the corpus has: those whose vectors are nearest to its own."""
    name, special = data.tokenizer.id_to_token, [data.tokenizer.token_to_id(token) for token in SPECIAL]
    among = (data.counts >= FREQUENT).nonzero().squeeze(1)
    among = among[~torch.isin(among, torch.tensor(special))]
    known = [one for word in words if (one := data.tokenizer.token_to_id(word)) is not None]
    vectors = vectors.detach().cpu()
    return [f"{name(one)}: {', '.join(map(name, nearest(vectors, one, among, count)))}" for one in known]


def get_model(config: Config, tokenizer: Tokenizer) -> SkipGram:
    """Returns the tables with fresh numbers."""
    return SkipGram(tokenizer.get_vocab_size(), config.d_model, tokenizer.token_to_id("[PAD]"))


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    data = load(config, volume)
    return begin(Training, config, machine, data, lambda: get_model(config, data.tokenizer))


def model_from(state: State) -> tuple[SkipGram, Tokenizer]:
    """Returns the averaged tables that a weights file holds, in eval mode, and their tokenizer."""
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    model = get_model(Config.of(state["config"]), tokenizer)
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval(), tokenizer


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab train bert: the same words by masked pre-training")


if __name__ == "__main__":
    endings.run(main)
