"""Translating with a trained run.

python -m services.ws_mdl.transformer.translate "The door is open." --beam 4 --pictures
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import tyro
from tokenizers import Tokenizer

from services.ws_mdl.transformer import checkpoints, decode
from services.ws_mdl.transformer.config import Config
from services.ws_mdl.transformer.model import Transformer
from services.ws_mdl.transformer.options import TranslateCommand
from services.ws_mdl.transformer.tokenization import load_tokenizer
from services.ws_mdl.transformer.trainer import get_model
from vla_common import endings
from vla_common.volume import Volume, make_folder, shown
from vla_modelkit.training.machine import choose_machine


class Trained(NamedTuple):
    """A model, ready to translate, with all that belongs to it."""

    model: Transformer
    config: Config
    tokenizer_src: Tokenizer
    tokenizer_tgt: Tokenizer
    path: Path


def find_run(volume: Volume, name: str | None) -> Path:
    """Returns the folder of a run with weights, without a name of the one trained last. Raises ValueError."""
    found = {path.parent for path in Config.runs_folder(volume).glob("*/tmodel_*.pt")}
    if not found:
        raise ValueError(f"{Config.runs_folder(volume)} holds no trained run; train one: ./lab train transformer")
    if name is None:
        return max(found, key=lambda folder: max(path.stat().st_mtime for path in folder.glob("tmodel_*.pt")))
    if Config.runs_folder(volume) / name not in found:
        raise ValueError(f"run {name!r} not found; there are {', '.join(sorted(folder.name for folder in found))}")
    return Config.runs_folder(volume) / name


def load_trained(folder: Path, device: str = "auto", epoch: int | None = None) -> Trained:
    """Returns a run's model after an epoch, else its newest.

    Raises ValueError for weights or tokenizers that are not there, damaged, or do not fit.
    """
    machine = choose_machine(device)
    files = checkpoints.files_of(folder)
    found = files.load_latest(machine.device) if epoch is None else files.load_epoch(epoch, machine.device)
    if found is None:
        raise ValueError(f"{folder} holds no weights")
    path, state = found
    if "config" not in state:
        raise ValueError(f"{path} does not say its configuration; `train` with the same settings takes it over first")
    config = Config.of(state["config"])
    source, target = (load_tokenizer(folder / f"tokenizer_{language}.json") for language in config.languages)
    model = get_model(config, source.get_vocab_size(), target.get_vocab_size()).to(machine.device)
    checkpoints.load_into(model, path, state, config.stored(), "put back the tokenizers it was trained with")
    return Trained(model.eval(), config, source, target, path)


def main(command: TranslateCommand) -> None:
    """Prints a line per sentence, of several epochs one each; says on stderr which weights translate."""
    folder = find_run(Volume(), command.name)
    epochs = [int(part) for part in command.epoch.split(",")] if command.epoch else [None]
    for epoch in epochs:
        trained = load_trained(folder, command.device, epoch)
        print(f"{folder.name}, {trained.path.name}, {trained.config.pair}", file=sys.stderr)
        found = decode.translate(
            trained.model, list(command.sentences), trained.tokenizer_src, trained.tokenizer_tgt,
            seq=trained.config.seq, beam=command.beam, penalty=command.penalty,
        )  # fmt: skip
        for text in found:
            print(text if len(epochs) == 1 else f"epoch {epoch:02d}: {text}", flush=True)
    if command.pictures:  # of the last
        draw(trained, command.sentences[0], found[0])


def draw(trained: Trained, source: str, target: str) -> None:
    """Writes a picture for each kind of attention, all layers and heads, and a page to choose them; says where."""
    from services.ws_mdl.transformer import viewers, visualize  # matplotlib, ipywidgets: not needed for words alone
    from vla_notebooks.page import page

    view = visualize.look(trained.model, source, target, trained.tokenizer_src, trained.tokenizer_tgt)
    folder = make_folder(trained.path.parent / "pictures")
    kinds = {
        "encoder": (view.maps.encoder, view.source, view.source),
        "decoder": (view.maps.decoder, view.target, ["[SOS]", *view.target[:-1]]),
        "cross": (view.maps.cross, view.target, view.source),
    }
    for name, (weights, queries, keys) in kinds.items():
        figure = visualize.plot_attention(weights, queries, keys, f"{name}: each row looks at the columns")
        print(shown(visualize.save(figure, folder / f"attention_{name}.png")), file=sys.stderr)
    boxes = {
        "Who looks where": viewers.attention(view),
        "The next word": viewers.next_words(trained, source),
        "The beam's tree": viewers.beam_tree(trained, source),
    }
    path = folder / "looking-in.html"
    path.write_text(page(source, {name: (box, {}) for name, box in boxes.items()}), encoding="utf-8")
    print(shown(path), file=sys.stderr)


if __name__ == "__main__":
    endings.run(
        lambda: main(tyro.cli(TranslateCommand, description=__doc__, config=(tyro.conf.PositionalRequiredArgs,)))
    )
