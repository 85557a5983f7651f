"""Import the course's own files: `python -m services.ws_mdl.course_files DIRECTORY|ZIP --name course`.

Files are recognised by content; names only provide an epoch, a language or a run's name. Weights are loaded without
executing code. The originals are not changed, and existing files are not overwritten.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import tyro

from services.ws_mdl.diffusion import config as diffusion
from services.ws_mdl.diffusion.data import DIGITS, sprite_arrays
from services.ws_mdl.diffusion.model import ContextUnet
from services.ws_mdl.diffusion.sprites import CLASSES
from services.ws_mdl.diffusion.train import PREFIX
from services.ws_mdl.transformer import config as transformer
from services.ws_mdl.transformer.model import describe, get_model, load_into
from services.ws_mdl.transformer.tokenization import fingerprint, load_tokenizer
from vla_common import entrypoint
from vla_common.volume import Volume, display_path, replace_directory, require_space
from vla_modelkit.checkpoint import file_hash
from vla_modelkit.training.weights import IMPORTED, DamagedFileError, WeightFiles, load_state

LAST_EPOCH = 31  # of the course's 32; a file named "trained" has it
HEADS, POOL = 8, 4  # of the course's models; not stored in the weights
LANGUAGES = {"english": "en", "korean": "ko", "italian": "it", "kr": "ko"}  # in the names of the course's files
CORPORA = {"en-it": "opus_books", "en-ko": "lemon-mint"}  # the course's corpora; others use the default
EXPECTED = re.compile(r"\.(pt|pth|npy)$|(^|/)tokenizer_[^/]*\.json$|(^|/)events\.out\.tfevents")


class CourseFile(NamedTuple):
    """A recognised file. name: its path in the directory or archive; path: its location on disk.

    group: equal for files of one model; a tokenizer's language. details: shapes of a Transformer, sizes of a U-Net,
    words of a tokenizer, or the shape of an array.
    """

    name: str
    path: Path
    kind: str  # transformer, diffusion, tokenizer, array or curves
    group: str = ""
    epoch: int = 0
    details: Any = None


class Target(NamedTuple):
    """A directory to create. files: name → source; write: converts a source (None: copy). next: a command to type."""

    directory: Path
    files: Mapping[str, CourseFile]
    line: str
    next: str
    write: Callable[[CourseFile, Path], object] | None = None


Reject = Callable[[CourseFile, str], None]  # called with an unusable file and the reason

# --- recognition --------------------------------------------------------------------------------------------


@contextmanager
def source_files(path: Path, scratch: Path) -> Iterator[dict[str, Path]]:
    """Yield name → path of the regular files in a directory or zip archive, without links and hidden files.

    An archive is unpacked under `scratch` until the block ends. Raises ValueError for other paths.
    """
    if path.is_dir():
        yield _visible(path)
        return
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not a directory or zip archive; expected the directory of the course's files")
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(prefix=".import-", dir=scratch) as directory:
        if any(name.endswith("/data.pkl") for name in archive.namelist()):  # torch.save writes a zip archive too
            raise ValueError(f"{path} is a weights file; expected its directory, which also has the tokenizers")
        require_space(directory, sum(member.file_size for member in archive.infolist()))
        try:
            archive.extractall(directory)  # keeps every member inside the directory and makes no links
        except (zipfile.BadZipFile, EOFError, RuntimeError, OSError) as error:
            raise ValueError(f"{path} cannot be unpacked ({error}); copy it again") from error
        yield _visible(Path(directory))


def _visible(directory: Path) -> dict[str, Path]:
    paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = {path.relative_to(directory): path for path in paths}
    return {str(n): path for n, path in names.items() if not any(p.startswith((".", "__MACOSX")) for p in n.parts)}


def recognise(name: str, path: Path) -> CourseFile | None:
    """Recognise a file; None if it is not the course's. Raises ValueError for a damaged or unsafe one."""
    with path.open("rb") as file:
        head = file.read(64)
    try:
        if head[:4] == b"PK\3\4" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if not any(member.endswith("data.pkl") for member in archive.namelist()):
                    return None  # torch.save did not write it
        if head[:4] == b"PK\3\4" or head[:2] == b"\x80\2":
            return _weights(name, path)
        if head[:6] == b"\x93NUMPY":
            return _array(name, path)
        if b"brain.Event:" in head:
            return CourseFile(name, path, "curves")
        if name.endswith(".json") and (tokenizer := _tokenizer(name, path)):
            return tokenizer
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(str(error).replace(str(path), "it")) from error
    if EXPECTED.search(name):
        raise ValueError(f"has unexpected content for its name (it begins with {head[:8]!r})")
    return None


def _weights(name: str, path: Path) -> CourseFile:
    try:
        state = load_state(path)
    except DamagedFileError as error:
        is_pickle = "eights only" in str(error)  # torch's message for a pickle with code
        raise ValueError("contains code and was not loaded" if is_pickle else str(error)) from error
    try:
        if "init_conv.conv1.0.weight" in state:
            n_feat, channels = state["init_conv.conv1.0.weight"].shape[:2]
            classes, height = state["contextembed1.model.0.weight"].shape[1], 4 * state["up0.0.weight"].shape[2]
            sizes = {"channels": channels, "n_feat": n_feat, "classes": classes, "height": height}
            stem = PurePosixPath(name).stem
            number = re.search(r"_(\d+)$", stem)
            run = re.sub(r"[^a-z0-9.]+", "-", re.sub(r"_(\d+|trained)$", "", stem).lower()).strip("-") or "model"
            return CourseFile(name, path, "diffusion", run, int(number[1]) if number else LAST_EPOCH, sizes)
        missing = {"model_state_dict", "optimizer_state_dict", "epoch", "global_step"} - set(state)
        if missing:
            raise ValueError(f"lacks {', '.join(sorted(missing))}: it is not the course's Transformer or U-Net")
        shapes = describe(state["model_state_dict"])
    except (KeyError, IndexError, AttributeError, TypeError) as error:
        raise ValueError(f"is not a weights file of the course's models (it lacks {error})") from error
    if not isinstance(state["epoch"], int) or not 0 <= state["epoch"] < 10_000:
        raise ValueError(f"has epoch {state['epoch']!r}; expected a number from 0")
    return CourseFile(name, path, "transformer", str(shapes), state["epoch"], shapes)


def _tokenizer(name: str, path: Path) -> CourseFile | None:
    try:
        if "vocab" not in json.loads(path.read_bytes())["model"]:
            return None
    except (ValueError, KeyError, TypeError):
        return None
    language = PurePosixPath(name).stem.lower().removeprefix("tokenizer_")
    language = LANGUAGES.get(language, language)
    if not re.fullmatch(r"[a-z]{2,}", language):
        raise ValueError("has no language in its name; expected for example tokenizer_en.json")
    return CourseFile(name, path, "tokenizer", language, details=load_tokenizer(path).get_vocab_size())


def _array(name: str, path: Path) -> CourseFile:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"is not an array of numbers ({error})") from error
    images = values.ndim == 4 and values.shape[1] == values.shape[2] and values.shape[3] in (1, 3)
    if not (images and values.dtype == np.uint8) and values.ndim != 2:
        raise ValueError(f"holds {values.dtype} {list(values.shape)}; expected uint8 [n, h, h, 3] or one-hot [n, 5]")
    return CourseFile(name, path, "array", details=values.shape)


# --- targets ------------------------------------------------------------------------------------------------


def targets(sources: Sequence[CourseFile], name: str, volume: Volume, reject: Reject) -> list[Target]:
    """Return the directories to create from the files; their names begin with `name`."""
    groups: dict[tuple[str, str], list[CourseFile]] = defaultdict(list)
    for source in sources:
        groups[source.kind, source.group if source.kind in ("transformer", "diffusion") else ""].append(source)
    made: list[Target] = []
    for (kind, group), files in groups.items():
        if kind == "transformer":
            tokenizers = groups.get(("tokenizer", ""), [])
            made += _transformer(_by_epoch(files, reject), tokenizers, name, volume, reject)
        elif kind == "diffusion":
            made.append(_diffusion(_by_epoch(files, reject), group, name, volume))
        elif kind == "array":
            made += _sprites(files, name, volume, reject)
        elif kind == "curves":
            copies = {re.sub(r"[^\w./-]", "_", file.name): file for file in files}
            directory = volume.path("logs") / "tensorboard" / name
            made.append(Target(directory, copies, f"{len(files)} files of curves", "./lab tensorboard"))
    return made


def _by_epoch(files: Sequence[CourseFile], reject: Reject) -> dict[int, CourseFile]:
    """Return the files by epoch, sorted; reject a second file of the same epoch."""
    by_epoch: dict[int, CourseFile] = {}
    for file in sorted(files, key=lambda file: (file.epoch, file.name)):
        other = by_epoch.setdefault(file.epoch, file)
        if other is not file and other.path.read_bytes() != file.path.read_bytes():
            reject(file, f"has epoch {file.epoch}, like {other.name}; import each with its own --name")
    return by_epoch


def _compared(files: Mapping[int, CourseFile]) -> str:
    """Return the first, middle and last epoch, to compare them."""
    epochs = list(files)
    return ",".join(map(str, dict.fromkeys((epochs[0], epochs[len(epochs) // 2], epochs[-1]))))


def _transformer(
    files: dict[int, CourseFile], tokenizers: Sequence[CourseFile], name: str, volume: Volume, reject: Reject
) -> list[Target]:
    """Return a run of the files and two tokenizers of matching size; English is the preferred source."""
    shapes = next(iter(files.values())).details
    sizes = (shapes["source vocabulary"], shapes["target vocabulary"])
    fitting = [(a, b) for a in tokenizers for b in tokenizers if a.group != b.group and (a.details, b.details) == sizes]
    if not fitting:
        for file in files.values():
            reject(file, f"has no tokenizers with {sizes[0]} and {sizes[1]} words next to it; add tokenizer_en.json …")
        return []
    pair = min(fitting, key=lambda pair: pair[0].group != "en")
    languages = f"{pair[0].group}-{pair[1].group}"
    run = f"{name}-{languages}"
    config = transformer.get_config(
        "course", name=run, corpus=CORPORA.get(languages, "default"), pair=languages, d_model=shapes["d_model"],
        N=shapes["N"], d_ff=shapes["d_ff"], h=HEADS, norm=shapes["norm"], seq=shapes["position table"],
    )  # fmt: skip
    fingerprints = {
        side: fingerprint(load_tokenizer(t.path)) for side, t in zip(("source", "target"), pair, strict=True)
    }
    model, stored = get_model(config, *sizes), config.stored()

    def write(file: CourseFile, path: Path) -> None:
        if file.kind == "tokenizer":
            shutil.copyfile(file.path, path)
            return
        state = load_state(file.path)
        load_into(model, Path(file.name), state, stored, "it is not a model of the course")
        weights = {"model_state_dict": model.state_dict(), "first_epoch": state["epoch"] + 1}
        converted = {**state, **weights, "config": stored, "tokenizers": fingerprints}
        WeightFiles(path.parent, transformer.PREFIX).save(path, converted)

    directory = transformer.Config.runs_directory(volume) / run
    weights = {WeightFiles(directory, transformer.PREFIX).path(epoch).name: file for epoch, file in files.items()}
    parts = {f"tokenizer_{file.group}.json": file for file in pair} | weights
    line = f"{run}: a Transformer, d_model {config.d_model}, N {config.N}, {len(files)} epochs"
    command = f'./lab translate "The door is open." --name {run} --epoch {_compared(files)}'
    return [Target(directory, parts, line, command, write)]


def _diffusion(files: dict[int, CourseFile], group: str, name: str, volume: Volume) -> Target:
    run, sizes = f"{name}-{group}", next(iter(files.values())).details
    data = f"{name}-sprites" if sizes["channels"] == 3 else "mnist"
    config = diffusion.Config(
        name=run, data=data, context="context" in group, n_feat=sizes["n_feat"], ema=0.0, precision="fp32", keep=0
    )
    named = {len(DIGITS): DIGITS, len(CLASSES): CLASSES}
    classes = named.get(sizes["classes"], [str(number) for number in range(sizes["classes"])])

    def write(file: CourseFile, path: Path) -> None:
        nn_model = ContextUnet(sizes["channels"], sizes["n_feat"], sizes["classes"], sizes["height"], POOL)
        nn_model.load_course_weights(load_state(file.path))
        weights = nn_model.state_dict()
        state = {
            "model_state_dict": weights, "averaged_state_dict": weights, "epoch": file.epoch + 1, "global_step": 0,
            "config": config.stored(), "classes": list(classes), "channels": sizes["channels"],
            "height": sizes["height"], "pool": POOL,
        }  # fmt: skip
        torch.save(state, path)

    directory = diffusion.Config.runs_directory(volume) / run
    parts = {WeightFiles(directory, PREFIX).path(epoch).name: file for epoch, file in files.items()}
    line = f"{run}: a noise predictor, context {config.context}, {len(files)} epochs"
    return Target(directory, parts, line, f"./lab sample diffusion --name {run} --epoch {_compared(files)}", write)


def _sprites(arrays: Sequence[CourseFile], name: str, volume: Volume, reject: Reject) -> list[Target]:
    images, labels = ([array for array in arrays if len(array.details) == axes] for axes in (4, 2))
    if len(images) != 1 or len(labels) != 1:
        for array in arrays:
            reject(array, f"is one of {len(images)} arrays of images and {len(labels)} of labels; expected one of each")
        return []
    (image,), (label,) = images, labels
    try:
        sprite_arrays(image.path, label.path)
    except ValueError as error:
        text = str(error).replace(str(image.path), "it").replace(str(label.path), label.name)
        reject(image, f"and {label.name} do not fit: {text}")
        return []
    run, (count, height) = f"{name}-sprites", image.details[:2]
    stem = PurePosixPath(label.name).stem
    stem = stem if "label" in stem else f"labels_{stem}"  # the loader distinguishes it from the images by name
    parts = {f"{PurePosixPath(image.name).stem}.npy": image, f"{stem}.npy": label}
    line = f"{run}: {count:,} images of {height} × {height}"
    return [Target(volume.path("datasets") / run, parts, line, f"./lab train diffusion --data {run} --context")]


def write_target(target: Target) -> None:
    """Create a target's directory atomically, with a list of its sources. Repeating an import changes nothing.

    Raises ValueError if the directory exists with other files.
    """
    listed = {name: {"from": file.name, "sha256": file_hash(file.path)} for name, file in target.files.items()}

    def fill(draft: Path) -> None:
        for name, source in target.files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            target.write(source, draft / name) if target.write else shutil.copyfile(source.path, draft / name)
        (draft / IMPORTED).write_text(json.dumps(listed, indent=1), encoding="utf-8")

    exists = target.directory.exists()
    if not exists:
        replace_directory(target.directory, fill)
    else:
        record = target.directory / IMPORTED
        earlier = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
        if {n: f["sha256"] for n, f in earlier.items()} != {n: f["sha256"] for n, f in listed.items()}:
            raise ValueError(f"{display_path(target.directory)} already exists with other files; use another --name")
    print(f"{target.line}\n  {'already imported: ' if exists else ''}{display_path(target.directory)}", flush=True)


# --- the command --------------------------------------------------------------------------------------------


def import_files(path: Path, name: str, volume: Volume) -> list[str]:
    """Import the course's files in a directory or archive; return a message for each file that failed.

    Raises ValueError if there are none.
    """
    problems: list[str] = []
    sources: list[CourseFile] = []
    ignored: Counter[str] = Counter()
    commands = []
    with source_files(path, volume.datasets) as files:
        for file_name, file in files.items():
            try:
                if source := recognise(file_name, file):
                    sources.append(source)
                else:
                    ignored[PurePosixPath(file_name).suffix or "no suffix"] += 1
            except ValueError as error:
                problems.append(f"{file_name} {error}")
        require_space(volume.root, sum(source.path.stat().st_size for source in sources))
        for target in targets(sources, name, volume, lambda file, reason: problems.append(f"{file.name} {reason}")):
            try:
                write_target(target)
                commands.append(target.next)
            except ValueError as error:
                problems.append(f"{', '.join(source.name for source in target.files.values())}: {error}")
    if ignored:
        kinds = ", ".join(f"{suffix} {count}" for suffix, count in ignored.most_common(6))
        print(f"not imported: {ignored.total()} files of other kinds ({kinds})")
    if not commands and not problems:
        raise ValueError(f"{path} has none of the course's files: weights, tokenizers, .npy or event files")
    print("\n".join(["next:", *(f"  {command}" for command in commands)]) if commands else "nothing was imported")
    return problems


@dataclass
class ImportCommand:
    """Import the course's own files."""

    path: Annotated[Path, tyro.conf.Positional]
    name: str = "course"  # prefix of the names of runs and data sets

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.-]+", self.name):
            raise ValueError(f"--name {self.name!r} is not a directory name; use letters, digits, '-', '_' and '.'")


def main() -> int:
    """Import the files; return 1 if one failed."""
    command = tyro.cli(ImportCommand, prog="course import", description=__doc__)
    problems = import_files(command.path, command.name, Volume())
    for problem in problems:
        print(f"not imported: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    entrypoint.run(main)
