"""Which of the course's files belong together, and what the labs' files are made of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import torch

from services.ws_mdl.course.kinds import Array, Curves, DiffusionWeights, File, Idx, TokenizerFile, TransformerWeights
from services.ws_mdl.course.setting_up import Part, Piece
from services.ws_mdl.diffusion import config as diffusion
from services.ws_mdl.diffusion.data import DIGITS, mnist_files, sprite_arrays
from services.ws_mdl.diffusion.model import ContextUnet
from services.ws_mdl.diffusion.sprites import CLASSES
from services.ws_mdl.diffusion.train import PREFIX
from services.ws_mdl.transformer import checkpoints
from services.ws_mdl.transformer import config as transformer
from services.ws_mdl.transformer.tokenization import fingerprint, load_tokenizer
from services.ws_mdl.transformer.trainer import get_model
from vla_common.volume import Volume
from vla_modelkit.training.weights import WeightFiles, load_state

CORPORA = {"en-it": "opus_books", "en-ko": "lemon-mint"}  # what the course translates; else the default corpus
HEADS, POOL = 8, 4  # of the course's models: the weights do not say
Refuse = Callable[[File, str], None]  # names a file that cannot be used, and why
Some = TypeVar("Some", bound=File)


def pieces_of(found: Sequence[File], name: str, volume: Volume, refuse: Refuse) -> Iterator[Piece]:
    """Yields what is to be set up of these files, under names that begin with `name`."""
    yield from _translators(found, name, volume, refuse)
    yield from _painters(found, name, volume, refuse)
    yield from _sprites(found, name, volume, refuse)
    yield from _digits(found, name, volume, refuse)
    if curves := _of(Curves, found):
        parts = {_safe(file.name): Part(file) for file in curves}
        folder = volume.path("logs") / "tensorboard" / name
        yield Piece(folder, parts, f"{len(curves)} files of curves", "./lab tensorboard")


def _of(kind: type[Some], found: Sequence[File]) -> list[Some]:
    return [file for file in found if isinstance(file, kind)]


def _safe(name: str) -> str:
    """Returns a path of the same folders, of letters that are safe everywhere."""
    return str(PurePosixPath(*(re.sub(r"[^\w.-]", "_", part) for part in PurePosixPath(name).parts)))


def _by_epoch(files: Sequence[Some], refuse: Refuse) -> dict[int, Some]:
    """Returns the files by epoch, in its order; of two of the same epoch the second is refused."""
    chosen: dict[int, Some] = {}
    for file in sorted(files, key=lambda file: (file.epoch, file.name)):
        other = chosen.setdefault(file.epoch, file)
        if other is not file and other.path.read_bytes() != file.path.read_bytes():
            refuse(file, f"is of epoch {file.epoch}, as {other.name} is; import them one by one, each with a --name")
    return chosen


def _stages(epochs: Sequence[int]) -> str:
    """Returns some epochs to compare: the first, the last, and two between them."""
    last = len(epochs) - 1
    return ",".join(str(epochs[place]) for place in sorted({0, last // 3, 2 * last // 3, last}))


# --- the Transformer ----------------------------------------------------------------------------------------


def _translators(found: Sequence[File], name: str, volume: Volume, refuse: Refuse) -> Iterator[Piece]:
    groups: dict[str, list[TransformerWeights]] = defaultdict(list)
    for file in _of(TransformerWeights, found):
        groups[str(file.shapes)].append(file)
    taken: set[str] = set()
    for files in groups.values():
        pair = _tokenizers_for(files[0], _of(TokenizerFile, found))
        if pair is None:
            sizes = "{source vocabulary} and {target vocabulary}".format_map(files[0].shapes)
            for file in files:
                refuse(file, f"has no tokenizers of {sizes} words beside it; add tokenizer_en.json and its like")
            continue
        run = f"{name}-{pair[0].language}-{pair[1].language}"
        run = next(one for one in (run, *(f"{run}-{n}" for n in range(2, 100))) if one not in taken)
        taken.add(run)
        yield _translator(_by_epoch(files, refuse), pair, run, volume)


def _tokenizers_for(
    file: TransformerWeights, tokenizers: Sequence[TokenizerFile]
) -> tuple[TokenizerFile, TokenizerFile] | None:
    """Returns the source's and the target's tokenizer by their sizes; English is the source where both would do."""
    fits = [
        (source, target)
        for source in tokenizers
        for target in tokenizers
        if source.language != target.language
        and (source.size, target.size) == (file.shapes["source vocabulary"], file.shapes["target vocabulary"])
    ]
    return min(fits, key=lambda pair: pair[0].language != "en", default=None)


def _translator(
    files: dict[int, TransformerWeights], pair: tuple[TokenizerFile, TokenizerFile], run: str, volume: Volume
) -> Piece:
    shapes, languages = next(iter(files.values())).shapes, f"{pair[0].language}-{pair[1].language}"
    config = transformer.get_config(
        "course", name=run, corpus=CORPORA.get(languages, "default"), pair=languages, d_model=shapes["d_model"],
        N=shapes["N"], d_ff=shapes["d_ff"], h=HEADS, norm=shapes["norm"], seq=shapes["position table"],
    )  # fmt: skip
    folder = transformer.Config.runs_folder(volume) / run
    writer = _TranslatorWriter(config, pair)
    parts = {f"tokenizer_{one.language}.json": Part(one) for one in pair}
    for epoch, file in files.items():
        parts[checkpoints.files_of(folder).path(epoch).name] = Part(file, writer.of(file))
    line = f"{run}: a Transformer after {len(files)} epochs ({_some(files)}), d_model {config.d_model}, N {config.N}"
    return Piece(folder, parts, line, f'./lab translate "The door is open." --name {run} --epoch {_stages([*files])}')


def _some(epochs: dict[int, File]) -> str:
    shown = [str(epoch) for epoch in epochs]
    return ", ".join(shown if len(shown) < 5 else [*shown[:2], "…", shown[-1]])


class _TranslatorWriter:
    """Makes the lab's weight files of the course's: the same numbers, with their configuration."""

    def __init__(self, config: transformer.Config, pair: tuple[TokenizerFile, TokenizerFile]) -> None:
        self.config = config
        tokenizers = [load_tokenizer(file.path) for file in pair]
        self.fingerprints = dict(zip(("source", "target"), map(fingerprint, tokenizers), strict=True))
        self.model = get_model(config, *(one.get_vocab_size() for one in tokenizers))

    def of(self, file: TransformerWeights) -> Callable[[Path], None]:
        """Returns what writes the file's state."""

        def write(path: Path) -> None:
            state, config = load_state(file.path), self.config.stored()
            checkpoints.load_into(self.model, Path(file.name), state, config, "it is no model of the course")
            weights, first = self.model.state_dict(), state["epoch"] + 1
            own = {"model_state_dict": weights, "config": config, "tokenizers": self.fingerprints, "first_epoch": first}
            checkpoints.files_of(path.parent).save(path, {**state, **own})

        return write


# --- diffusion ----------------------------------------------------------------------------------------------


def _painters(found: Sequence[File], name: str, volume: Volume, refuse: Refuse) -> Iterator[Piece]:
    groups: dict[str, list[DiffusionWeights]] = defaultdict(list)
    for file in _of(DiffusionWeights, found):
        groups[file.run].append(file)
    for group, files in groups.items():
        run, chosen = f"{name}-{group}", _by_epoch(files, refuse)
        context = "context" in group
        folder = diffusion.Config.runs_folder(volume) / run
        parts = {
            WeightFiles(folder, PREFIX).path(epoch).name: Part(file, _painter(file, run, name, context))
            for epoch, file in chosen.items()
        }
        line = f"{run}: a noise predictor after {len(parts)} epochs ({_some(chosen)}), context {context}"
        yield Piece(folder, parts, line, f"./lab sample diffusion --name {run} --epoch {_stages([*chosen])}")


def _painter(file: DiffusionWeights, run: str, name: str, context: bool) -> Callable[[Path], None]:
    """Returns what writes the file's weights as a state of the lab, trained on the pictures that come with `name`."""
    data = f"{name}-{'mnist' if file.channels == 1 else 'sprites'}"
    config = diffusion.Config(
        name=run, data=data, context=context, n_feat=file.n_feat, ema=0.0, precision="fp32", keep=0
    )
    known = {len(DIGITS): DIGITS, len(CLASSES): CLASSES}
    classes = known.get(file.classes, [str(number) for number in range(file.classes)])

    def write(path: Path) -> None:
        nn_model = ContextUnet(file.channels, file.n_feat, file.classes, file.height, POOL)
        nn_model.load_course_weights(load_state(file.path))
        weights = nn_model.state_dict()
        state = {
            "model_state_dict": weights, "averaged_state_dict": weights, "epoch": file.epoch + 1, "global_step": 0,
            "config": config.stored(), "classes": list(classes), "channels": file.channels,
            "height": file.height, "pool": POOL,
        }  # fmt: skip
        torch.save(state, path)

    return write


# --- data ---------------------------------------------------------------------------------------------------


def _sprites(found: Sequence[File], name: str, volume: Volume, refuse: Refuse) -> Iterator[Piece]:
    arrays = _of(Array, found)
    pictures = [array for array in arrays if len(array.shape) == 4]
    labels = [array for array in arrays if len(array.shape) == 2]
    if len(pictures) != 1 or len(labels) != 1:
        for array in arrays:
            refuse(array, f"is one of {len(pictures)} arrays of pictures and {len(labels)} of labels; expected a pair")
        return
    try:
        sprite_arrays(pictures[0].path, labels[0].path)
    except ValueError as error:
        text = str(error).replace(str(pictures[0].path), "it").replace(str(labels[0].path), labels[0].name)
        refuse(pictures[0], f"and {labels[0].name} do not fit: {text}")
        return
    run = f"{name}-sprites"
    told = "" if "label" in labels[0].stem else "labels_"  # by its name it is told from the pictures later
    parts = {f"{pictures[0].stem}.npy": Part(pictures[0]), f"{told}{labels[0].stem}.npy": Part(labels[0])}
    line = f"{run}: {pictures[0].shape[0]:,} pictures of {pictures[0].shape[1]} × {pictures[0].shape[2]}"
    yield Piece(volume.path("datasets") / run, parts, line, f"./lab train diffusion --data {run} --context")


def _digits(found: Sequence[File], name: str, volume: Volume, refuse: Refuse) -> Iterator[Piece]:
    files = {PurePosixPath(file.name).name.removesuffix(".gz"): file for file in _of(Idx, found)}
    if not files:
        return
    run, pair = f"{name}-mnist", ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    if not set(pair) <= set(files):
        for file in files.values():
            refuse(file, f"is not enough: {' and '.join(pair)} are needed")
        return
    try:
        count = len(mnist_files(*(files[one].path for one in pair)).x)
    except ValueError as error:
        refuse(files[pair[0]], f"and its labels do not fit: {error}")
        return
    parts = {PurePosixPath(file.name).name: Part(file) for file in files.values()}
    yield Piece(
        volume.path("datasets") / run, parts, f"{run}: {count:,} pictures", f"./lab train diffusion --data {run}"
    )
