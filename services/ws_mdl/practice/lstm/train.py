"""Trains a translator of LSTMs: `python -m services.ws_mdl.practice.lstm.train --corpus reverse`.

`--model plain` has no attention, `--model transformer` is lab 1's model, trained in the same way.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import Tensor, nn

from services.ws_mdl.epochs import begin
from services.ws_mdl.practice import training
from services.ws_mdl.practice.lstm import data, measure
from services.ws_mdl.practice.lstm.config import Config
from services.ws_mdl.practice.lstm.model import Seq2Seq
from services.ws_mdl.practice.training import Figures, PracticeRun
from services.ws_mdl.transformer.dataset import Example, make_batch
from services.ws_mdl.transformer.decode import translate
from services.ws_mdl.transformer.loss import TranslationLoss
from services.ws_mdl.transformer.model import build_transformer
from services.ws_mdl.transformer.validation import Sample, as_text, run_validation
from services.ws_mdl.transformer.visualize import plot_attention, save
from vla_common import endings
from vla_common.volume import Volume, shown
from vla_modelkit.training.board import Curves
from vla_modelkit.training.machine import Machine
from vla_modelkit.training.weights import State

LONGEST = 24  # letters of what a run on `reverse` is asked at its end


class Training(PracticeRun):
    """A run in progress."""

    config: Config
    data: data.Sentences
    unit = "sentences"

    @property
    def about(self) -> str:
        count = sum(parameter.numel() for parameter in self.nn_model.parameters())
        return f"{len(self.data):,} sentence pairs, {self.config.model} model of {count / 1e6:.2f} million weights"

    def loss(self, index: Tensor) -> Tensor:
        batch = self.data.batch(index).to(self.machine.device)
        total = TranslationLoss(self.nn_model, self.config.label_smoothing)(*batch)
        return total / batch.real.numel()

    def measure(self) -> Figures:
        found = run_validation(
            TranslationLoss(self.averaged).eval(), self.data.held_loader(), *self.data.tokenizers,
            self.machine, self.config.seq, self.config.val_sentences,
        )  # fmt: skip
        return {"loss": found.loss, "exact_percent": 100 * found.exact, "BLEU_percent": 100 * found.bleu}

    def show(self, folder: Path, curves: Curves) -> str:
        lines = [as_text(self.samples())]
        if isinstance(self.averaged, Seq2Seq) and self.averaged.attention:
            figure = self.attention_figure(*self.data.held.pairs[0])
            curves.writer.add_figure("attention", figure, self.global_step)
            lines.append(f"where it looks: {shown(save(figure, folder / 'attention.png'))}")
        if self.config.corpus == "reverse":
            lengths = range(4, min(LONGEST, self.config.seq - 2) + 1, 2)
            shares = measure.exact_by_length(self.averaged, self.data, self.config.seq, lengths, count=50)
            lines.append(measure.told(shares))
        return "\n".join(lines)

    def own_state(self) -> State:
        return {**super().own_state(), "tokenizers": [tokenizer.to_str() for tokenizer in self.data.tokenizers]}

    def digest(self) -> str:
        return training.digest_of(*(text for pair in self.data.learned.pairs for text in pair))

    def samples(self, count: int = 2) -> list[Sample]:
        """Returns the first held-out sentences with their translations."""
        pairs, config = self.data.held.pairs[:count], self.config
        found = translate(self.averaged, [source for source, _ in pairs], *self.data.tokenizers, seq=config.seq)
        return [Sample(*pair, text) for pair, text in zip(pairs, found, strict=True)]

    @torch.inference_mode()
    def attention_figure(self, source: str, target: str) -> Figure:
        """Returns where each word of the target looks in the source, the true words before it being given."""
        words = [tokenizer.encode(text) for tokenizer, text in zip(self.data.tokenizers, (source, target), strict=True)]
        batch = make_batch([Example(words[0].ids, words[1].ids)], *self.data.specials).to(self.machine.device)
        self.averaged(batch.encoder_input, batch.decoder_input, batch.encoder_mask)
        seen, keys = self.averaged.attention_scores[None].cpu(), ["[SOS]", *words[0].tokens, "[EOS]"]
        return plot_attention(seen, [*words[1].tokens, "[EOS]"], keys, "a row looks at its columns")


def get_model(config: Config, sizes: tuple[int, int]) -> nn.Module:
    """Returns the model that is asked for, with fresh weights."""
    if config.model == "transformer":
        width, wide = config.hidden, 4 * config.hidden
        return build_transformer(*sizes, config.seq, config.seq, width, config.layers, config.h, config.dropout, wide)
    return Seq2Seq(*sizes, config.d_model, config.hidden, config.dropout, config.model == "attention")


def get_training(config: Config, machine: Machine, volume: Volume) -> Training:
    """Returns a run before its first batch."""
    sentences = data.load(config, volume)
    return begin(Training, config, machine, sentences, lambda: get_model(config, sentences.sizes))


def model_from(state: State) -> tuple[nn.Module, Tokenizer, Tokenizer]:
    """Returns the averaged network that a weights file holds, in eval mode, and both languages' tokenizers."""
    tokenizers = [Tokenizer.from_str(text) for text in state["tokenizers"]]
    model = get_model(Config.of(state["config"]), tuple(tokenizer.get_vocab_size() for tokenizer in tokenizers))
    model.load_state_dict(state["averaged_state_dict"])
    return model.eval(), *tokenizers


def main() -> int:
    """Trains by the command line's flags; returns the exit code."""
    return training.main_of(Config, get_training, __doc__, "./lab train lstm --corpus reverse --set model=plain")


if __name__ == "__main__":
    endings.run(main)
