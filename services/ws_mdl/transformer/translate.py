"""Translate with a trained run.

python -m services.ws_mdl.transformer.translate "The door is open." --beam 4 --pictures
"""

from __future__ import annotations

import sys

import tyro

from services.ws_mdl.transformer import decode
from services.ws_mdl.transformer.config import TranslateCommand
from services.ws_mdl.transformer.decode import TrainedTransformer, find_run, load_trained
from vla_common import entrypoint
from vla_common.volume import Volume, display_path, make_directory


def main(command: TranslateCommand) -> None:
    """Print a translation per sentence and epoch; print the weights file on stderr."""
    directory = find_run(Volume(), command.name)
    epochs = [int(part) for part in command.epoch.split(",")] if command.epoch else [None]
    for epoch in epochs:
        trained = load_trained(directory, command.device, epoch)
        print(f"{directory.name}, {trained.path.name}, {trained.config.pair}", file=sys.stderr)
        translations = decode.translate(
            trained.model, list(command.sentences), trained.tokenizer_src, trained.tokenizer_tgt,
            seq=trained.config.seq, beam=command.beam, penalty=command.penalty,
        )  # fmt: skip
        for text in translations:
            print(text if len(epochs) == 1 else f"epoch {epoch:02d}: {text}", flush=True)
    if command.pictures:  # of the last
        draw(trained, command.sentences[0], translations[0])


def draw(trained: TrainedTransformer, source: str, target: str) -> None:
    """Save an image of each kind of attention for all layers and heads, and an interactive page; print the paths."""
    from services.ws_mdl.transformer import viewers, visualize  # matplotlib and ipywidgets, for this only
    from vla_notebooks.viewer import page

    view = visualize.look(trained.model, source, target, trained.tokenizer_src, trained.tokenizer_tgt)
    directory = make_directory(trained.path.parent / "pictures")
    for name, (weights, queries, keys) in view.kinds().items():
        figure = visualize.plot_attention(weights, queries, keys, f"{name}: each row attends to the columns")
        print(display_path(visualize.save(figure, directory / f"attention_{name}.png")), file=sys.stderr)
    boxes = {
        "Who looks where": viewers.attention(view),
        "The next word": viewers.next_token(trained, source),
        "The beam's tree": viewers.beam_tree(trained, source),
    }
    path = directory / "looking-in.html"
    path.write_text(page(source, {name: (box, {}) for name, box in boxes.items()}), encoding="utf-8")
    print(display_path(path), file=sys.stderr)


if __name__ == "__main__":
    entrypoint.run(
        lambda: main(tyro.cli(TranslateCommand, description=__doc__, config=(tyro.conf.PositionalRequiredArgs,)))
    )
