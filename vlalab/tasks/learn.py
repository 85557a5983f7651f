"""Course tasks: train its models and use them."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path
from typing import Any, Literal

from vlalab.commands import classes, course, learning, lifecycle, programs
from vlalab.description import manifests, runs, service_settings
from vlalab.host import paths
from vlalab.host.console import LabError, check_choices
from vlalab.host.shared_code import option
from vlalab.tasks.flags import Flag, flags_for, positional, program_flags
from vlalab.tasks.serve import print_addresses
from vlalab.tasks.task import FlagValues, finish, task

OF_SOME_LABS = ("corpus", "pair", "size", "data", "context")  # flags that only some labs have
HAVE_FLAGS = ("epochs", "name", *OF_SOME_LABS, "preload", "device")  # the others are set with --set
GPUS = option(1, "number of processes, one per GPU", "[1, inf)")
RESULTS = {  # lab → the command that uses its model
    "diffusion": "./lab sample diffusion",
    "minivla": "./lab eval libero_object --policy minivla",
    "transformer": './lab translate "The door is open."',
}


def _lab_flags() -> list[Flag]:
    return program_flags(*map(course.config, course.labs()), only=HAVE_FLAGS)


def _settings() -> dict[str, list[tuple[str, str]]]:
    help = {flag.name: flag.summary for flag in _lab_flags()}
    return {f"train {lab} --set NAME=VALUE": course.rows(lab, help) for lab in course.labs()}


def _next(values: FlagValues) -> str:
    return RESULTS.get(str(values["lab"]), "./lab tensorboard")


@task("train a model", _next, "gpu runtime dry-run no-check", _lab_flags, tables=_settings)
def train(
    lab: str = positional(kind="lab"),
    set: list[str] = option((), "further settings, listed below", metavar="NAME=VALUE,…"),
    gpus: int = GPUS,
    **options: object,
) -> None:
    """Train a model of the course. Ctrl-C saves; repeat the command to resume.

    ./lab train transformer --epochs 1 --size small
    ./lab train transformer --corpus mine.tsv --pair en-ko --set norm=post
    ./lab train diffusion --data sprites --context --epochs 8
    ./lab train minivla --data goal-oracle --size small
    ./lab train vit --epochs 60          a practice lab: docs/practice.md
    """
    available, settings = course.settings(lab), course.flags(lab, set)
    if unsupported := programs.flags_of({name: options[name] for name in OF_SOME_LABS if name not in available}):
        supported = ", ".join(f"--{name}" for name in OF_SOME_LABS if name in available)
        raise LabError(f"train {lab} does not accept {unsupported[0]}; it accepts {supported}")
    if lab in ("transformer", "lstm") and options["corpus"] == "python":
        raise LabError(f"train {lab} needs a parallel corpus; --corpus python works with train gpt and train bert")
    if gpus > 1 and lab in ("diffusion", *course.practice()):
        raise LabError(f"train {lab} runs on one GPU, got --gpus {gpus}; remove --gpus")
    if lab == "minivla" and options["data"] in (None, *available["data"].keywords):
        raise LabError("train minivla requires --data NAME, a data set created by ./lab dataset")
    if options["size"]:
        check_choices(f"train {lab} --size", [str(options["size"])], tuple(map(str, available["size"].choices)))
    finish(programs.train(course.service(), course.module(lab, "train"), settings, gpus, options))


@task("demos to policy", "./lab report learn-{suite} --serve", "gpu runtime dry-run no-check")
def learn(
    suite: str = positional(help=manifests.format_suites(), kind="suite"),
    minutes: float = option(90, "time budget for demonstrations and training", "(0, inf)"),
    size: str = option("small", "of mini-VLA: tiny, small or base", kind="one of", keywords=("tiny", "small", "base")),
    name: str | None = option(None, "name of recording, data set and model", kind="directory name",
                              default_help="the suite's"),
    demonstrations: int | None = option(
        None, "number of demonstrations", "[1, inf)", default_help="as fits a third of the minutes, at most 200"),
    tasks: str | None = option(None, "tasks: numbers, ranges or names", kind="tasks", default_help="all"),
    trials: int = option(10, "episodes per task in the evaluation", kind="trials"),
    starts: Literal["wide", "suite"] = option(
        "wide", "of demonstrations: anywhere in reach, if the suite has such a variant; or the suite's own"),
    set: list[str] = option((), "further settings of `train minivla`", metavar="NAME=VALUE,…"),
    workers: int | None = option(None, "simulator processes", "[1, inf)", default_help="one per core"),
    **run_options: Any,
) -> None:  # fmt: skip
    """Record demonstrations, train mini-VLA on them, evaluate it. Ctrl-C stops; repeat the command to resume.

    ./lab learn libero_object
    ./lab learn libero_goal --minutes 30 --tasks 0-2 --name three
    ./lab learn libero_object --starts suite --set pictures=false --name blind
    """
    count = demonstrations or learning.demonstrations(minutes, workers or learning.cores())
    plan = learning.LearningPlan(
        suite, name or suite, minutes, size, tasks, count, trials, learning.settings(set), starts
    )
    progress = learning.load_progress(plan, counted=demonstrations is not None)
    finish(learning.Learning(progress, workers, typed=shlex.join(["./lab", *sys.argv[1:]]), **run_options).run())


@task(
    "fine-tune a policy", "./lab up {model} --checkpoint {name}", "gpu runtime dry-run no-check", flags_for("finetune")
)
def finetune(model: str = positional(kind="model", keywords=("trainer",)), gpus: int = GPUS, **options: object) -> None:
    """Fine-tune a policy on a data set. Ctrl-C saves; repeat the command to resume.

    ./lab finetune gr00t --dataset cups --max-steps 20000
    ./lab finetune gr00t --dataset cups --lora-rank 16 --batch-size 4     fits a 24 GB GPU
    ./lab finetune lerobot --dataset cups-v3.0 --type act
    ./lab finetune openvla --dataset cups --head l1     OpenVLA-OFT
    """
    if not options["dataset"]:
        raise LabError("finetune requires --dataset: a name in datasets/ on the volume, or a path")
    finish(programs.train(model, manifests.models()[model].trainer, [], gpus, options))


@task(
    "translate a sentence", "./lab tensorboard", "gpu runtime dry-run",
    lambda: program_flags(course.module("transformer", "config:TranslateCommand")),
)  # fmt: skip
def translate(sentence: str = positional(help="the text to translate"), **options: object) -> None:
    """Translate a sentence with a trained Transformer.

    ./lab translate "The door is open."
    ./lab translate "The door is open." --epoch 0,10,19     compare epochs
    """
    runs.require("transformer")
    finish(programs.run(course.service(), course.module("transformer", "translate"), ["--", sentence], options))


DIFFUSION = positional(help="diffusion", kind="one of", keywords=("diffusion",))


@task(
    "generate images", "./lab score diffusion", "gpu runtime dry-run",
    lambda: program_flags(course.module("diffusion", "config:SampleRequest")),
)  # fmt: skip
def sample(lab: str = DIFFUSION, **options: object) -> None:
    """Generate images with a trained diffusion model: a grid, and an animation of the sampling.

    ./lab sample diffusion --sampler ddim --steps 20 --context hero
    """
    runs.require(lab)
    finish(programs.run(course.service(), course.module(lab, "sample"), [], options))


@task(
    "score generated images", "./lab sample diffusion --compare", "gpu runtime dry-run",
    lambda: program_flags(course.module("diffusion", "config:ScoreRequest")),
)  # fmt: skip
def score(lab: str = DIFFUSION, **options: object) -> None:
    """Score a diffusion model's images: do they match the requested class, and are they as varied as real ones?

    ./lab score diffusion --count 200
    """
    runs.require(lab)
    finish(programs.run(course.service(), course.module(lab, "score"), [], options))


def _exercises() -> dict[str, list[tuple[str, str]]]:
    kinds = {True: "find the bug", False: "fill the blank"}
    return {"exercises": [(name, kinds[".bug_" in name]) for name in course.exercises()]}


@task("check an exercise", "./lab check", "runtime dry-run", tables=_exercises)
def check(
    exercise: str | None = positional(
        None, "its name, listed below; default: list all with your progress", kind="exercise"),
    file: str | None = positional(
        None, "your file; default: the one in your exercises directory", kind="path", metavar="FILE"),
    all: str | bool | None = option(
        None, "a directory with one directory per student, or the class of ./lab class: print a table of results",
        kind="path", metavar="DIRECTORY", optional_value=True, default_help="the class"),
    csv: str | None = option(None, "with --all: also write the table to this file", metavar="FILE"),
    **options: object,
) -> None:  # fmt: skip
    """Check an exercise of the course and explain mistakes. The first call creates the file to edit.

    ./lab check transformer.attention
    ./lab check transformer.attention mine.py
    ./lab check --all handed-in/ --csv grades.csv
    sudo ./lab check --all     the students of ./lab class
    """
    if exercise and all:
        raise LabError(f"--all checks all exercises; remove {exercise}")
    if csv and not all:
        raise LabError("--csv requires --all")
    csv = csv and str(Path(csv).absolute())
    if all is True:
        finish(classes.admin("grades", csv=csv))
        return
    if file and not Path(file).is_file():
        raise LabError(f"'{file}' is not a file; remove it to check the file in your exercises directory")
    flags = {
        "directory": str(paths.volume() / "notebooks" / "exercises"),
        "name": exercise,
        "file": file,
        "all": all,
        "csv": csv,
    }
    finish(programs.run(course.service(), "lessons.exercises.check", [], {**flags, **options}))


@task("import course files", "./lab runs", "runtime dry-run", name="course")
def course_files(
    action: str = positional(help="import", kind="one of", keywords=("import",)),
    path: str = positional(help="a directory or zip archive with weights, tokenizers, arrays, curves", kind="path"),
    name: str = option("course", "prefix for the names of imported models", kind="directory name"),
    **options: object,
) -> None:
    """Import the course's files, which are recognised by their content. Existing files and originals do not change.

    ./lab course import Downloads/course
    ./lab course import weights.zip --name spring
    """
    if not Path(path).is_dir() and not zipfile.is_zipfile(path):
        raise LabError(f"path '{path}' is not a directory or zip archive; expected the course's files")
    module = f"services.{manifests.directory_of(course.service())}.course_files"
    finish(programs.run(course.service(), module, [path, f"--name={name}"], options))


@task("open notebooks", "./lab status", "gpu runtime dry-run")
def notebook(
    env: str = positional(help="the environment whose notebooks to open", kind="notebooks"),
    fresh: bool = option(False, "restore the original notebooks; changed ones are kept as NAME.before-N"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
) -> None:
    """Start JupyterLab in an environment, with the course's notebooks for it.

    ./lab notebook ws_mdl              Transformer and diffusion
    ./lab notebook libero --fresh      restore the originals; changed copies are kept
    """
    service = manifests.notebooks()[env]
    if fresh:
        finish(programs.run_module(service, "vla_notebooks.home", [env, "--fresh"], runtime, dry_run))
    overrides = service_settings.for_services([service], None, None, gpu)
    print_addresses(lifecycle.up([service], runtime, overrides, dry_run))


@task("show training curves", "./lab status", "runtime")
def tensorboard(runtime: str = "auto") -> None:
    """Start TensorBoard, which shows training curves in a browser.

    ./lab tensorboard
    """
    print_addresses(lifecycle.up(["tensorboard"], runtime))
