"""Trains a small BERT: `python -m services.ws_mdl.practice.bert.train --corpus default`.

A run can be stopped at any time and goes on with the same command, bit for bit as if it had not been stopped.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.bert.config import Config
from services.ws_mdl.practice.bert.data import Examples, Pairs, load, most_frequent
from services.ws_mdl.practice.bert.model import BERT, NOT_ASKED, loss_of
from services.ws_mdl.practice.training import Figures, PracticeRun
from vla_common import endings
from vla_common.volume import Volume
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

SHOWN = 5  # masked texts, filled in


class Training(PracticeRun):
    """A run in progress; its generator draws the order, what B is and what is masked."""

    config: Config
    data: Pairs
    nn_model: BERT
    unit = "pairs"

    @property
    def about(self) -> str:
        return f"{len(self.data)} pairs of texts, {len(self.data.words)} words, {len(self.held.ids)} pairs held out"

    @cached_property
    def held(self) -> Examples:
        """What is measured on."""
        return self.data.held_out().to(self.machine.device)

    def loss(self, index: Tensor) -> Tensor:
        return loss_of(self.nn_model, *self.data.examples(index, self.generator).to(self.machine.device))

    def measure(self) -> Figures:
        return figures_of(self.averaged, self.held, most_frequent(self.data))

    def show(self, folder: Path, curves: Curves) -> str:
        lines = filled(self.averaged, self.data.tokenizer, Examples(*(one[:SHOWN] for one in self.held)))
        curves.writer.add_text("masked", "\n\n".join(lines), self.global_step)
        return "\n".join(["masked [what it says → what it was]:", *lines])

    def own_state(self) -> State:
        return {**super().own_state(), "tokenizer": self.data.tokenizer.to_str()}

    def digest(self) -> str:
        return training.digest_of(repr(self.data.train.blocks), self.data.tokenizer.to_str())


def get_model(config: Config, tokenizer: Tokenizer) -> BERT:
    """Returns the network with fresh weights."""
    size = {name: getattr(config, name) for name in ("seq", "d_model", "N", "h", "d_ff", "dropout", "positions")}
    return BERT(tokenizer.get_vocab_size(), pad=tokenizer.token_to_id("[PAD]"), **size)


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    data = load(config, volume)
    return begin(Training, config, machine, data, lambda: get_model(config, data.tokenizer))


def model_from(state: State) -> tuple[BERT, Tokenizer]:
    """Returns the averaged network that a weights file holds, in eval mode, and its tokenizer."""
    tokenizer = Tokenizer.from_str(state["tokenizer"])
    model = get_model(Config.of(state["config"]), tokenizer)
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval(), tokenizer


# --- measuring ----------------------------------------------------------------------------------------------


@torch.inference_mode()
def figures_of(model: BERT, held: Examples, frequent: int, batch: int = 64) -> Figures:
    """Returns how many masked words and followers are told right; beside it, always saying the word `frequent`."""
    right = commonest = asked = told = 0
    for ids, segments, labels, follows in zip(*(one.split(batch) for one in held), strict=True):
        x = model.encode(ids, segments)
        wanted = labels[labels != NOT_ASKED]
        right += int((model.words(x[labels != NOT_ASKED]).argmax(dim=-1) == wanted).sum())
        commonest += int((wanted == frequent).sum())
        asked += len(wanted)
        told += int((model.next_text(x).argmax(dim=-1) == follows).sum())
    return {
        "masked_percent": 100 * right / max(1, asked),
        "most_frequent_word_percent": 100 * commonest / max(1, asked),
        "next_text_percent": 100 * told / len(held.ids),
    }


@torch.inference_mode()
def filled(model: BERT, tokenizer: Tokenizer, examples: Examples) -> list[str]:
    """Returns the texts with what the network says at each word that is asked for, and what the word was."""
    said = model(examples.ids, examples.segments)[0].argmax(dim=-1).tolist()
    lines = []
    for ids, labels, words in zip(examples.ids.tolist(), examples.labels.tolist(), said, strict=True):
        name = tokenizer.id_to_token
        parts = (
            name(here) if label == NOT_ASKED else f"[{name(word)} → {name(label)}]"
            for here, label, word in zip(ids, labels, words, strict=True)
        )
        lines.append(" ".join(part for part in parts if part != "[PAD]"))
    return lines


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab notebook ws_mdl, and there Practice_Attention")


if __name__ == "__main__":
    endings.run(main)
