"""Tasks of the course: train its models, and use what was trained."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path

from vlalab.commands import addresses, course, learning, lifecycle, programs
from vlalab.description import manifests, runs, service_settings
from vlalab.host.borrowed import option
from vlalab.host.console import LabError, unknown
from vlalab.tasks.flags import Flag, of_models, positional, program_flags
from vlalab.tasks.serve import print_addresses
from vlalab.tasks.task import FlagValues, finish, task

OF_SOME_LABS = ("corpus", "pair", "size", "data", "context")  # flags that not every lab has
HAVE_FLAGS = ("epochs", "name", *OF_SOME_LABS, "preload", "device")  # the others are settings of --set
GPUS = option(1, "processes, one per GPU", "[1, inf)")


def _lab_flags() -> list[Flag]:
    return program_flags(*map(course.config, course.labs()), only=HAVE_FLAGS)


def _settings() -> dict[str, list[tuple[str, str]]]:
    help = {flag.name: flag.summary for flag in _lab_flags()}
    return {f"train {lab} --set takes": course.rows(lab, help) for lab in course.labs()}


def _after_training(values: FlagValues) -> str:
    lab = values["lab"]
    if lab == "minivla":
        return "./lab eval libero_object --policy minivla"
    use = {"diffusion": "./lab sample diffusion", "transformer": './lab translate "The door is open."'}
    return use.get(str(lab), "./lab tensorboard")


@task("train a model", _after_training, "gpu runtime dry-run no-check", options=_lab_flags, tables=_settings)
def train(
    lab: str = positional(kind="lab"),
    set: list[str] = option((), "further settings, listed below", metavar="NAME=VALUE,…"),
    gpus: int = GPUS,
    **options: object,
) -> None:
    """Train a model of the course; Ctrl-C saves, and the same command goes on.

    ./lab train transformer --epochs 1 --size small
    ./lab train transformer --corpus mine.tsv --pair en-ko --set norm=post
    ./lab train diffusion --data sprites --context --epochs 8
    ./lab train minivla --data goal-oracle --size small
    ./lab train vit --epochs 60          a practice lab: docs/practice.md
    """
    available, settings = course.settings(lab), course.flags(lab, set)
    if unsupported := programs.flags_of({name: options[name] for name in OF_SOME_LABS if name not in available}):
        supported = ", ".join(f"--{name}" for name in OF_SOME_LABS if name in available)
        raise LabError(f"train {lab} does not take {unsupported[0]}; its own: {supported}")
    if lab in ("transformer", "lstm") and options["corpus"] == "python":
        raise LabError(f"--corpus python has one language and train {lab} translates; train gpt or bert read it")
    if gpus > 1 and lab in ("diffusion", *course.practice()):
        raise LabError(f"train {lab} runs on one GPU, {gpus} were asked for; leave --gpus out")
    if lab == "minivla" and options["data"] in (None, *available["data"].keywords):
        raise LabError("train minivla needs demonstrations: --data NAME, a data set that `./lab dataset` has made")
    if options["size"] and options["size"] not in available["size"].choices:
        raise LabError(unknown(f"train {lab} --size", str(options["size"]), map(str, available["size"].choices)))
    finish(programs.train(course.service(), course.module(lab, "train"), settings, gpus, options))


@task("demos to a policy", "./lab report learn-{suite} --serve", "gpu runtime dry-run no-check")
def learn(
    suite: str = positional(help=manifests.format_suites(), kind="suite"),
    minutes: float = option(90, "for demonstrations and training together", "(0, inf)"),
    size: str = option("small", "of mini-VLA: tiny, small or base", kind="one of", keywords=("tiny", "small", "base")),
    name: str | None = option(None, "of recording, data set and model", kind="directory name",
                              default_help="the suite's"),
    demonstrations: int | None = option(
        None, "how many", "[1, inf)", default_help="what a third of the minutes gives, 200 at most"),
    tasks: str | None = option(None, "which tasks: numbers, ranges or names", kind="tasks", default_help="all"),
    trials: int = option(10, "episodes per task in the evaluation", kind="trials"),
    set: list[str] = option((), "further settings of `train minivla`", metavar="NAME=VALUE,…"),
    workers: int | None = option(None, "simulator processes", "[1, inf)", default_help="one per core"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
) -> None:  # fmt: skip
    """Record demonstrations, train mini-VLA on them, evaluate it. Ctrl-C stops; the same command goes on.

    ./lab learn libero_object
    ./lab learn libero_goal --minutes 30 --tasks 0-2 --name three
    """
    count = demonstrations or learning.demonstrations(minutes, workers or learning.cores())
    plan = learning.LearningPlan(suite, name or suite, minutes, size, tasks, count, trials, learning.settings(set))
    typed = shlex.join(["./lab", *sys.argv[1:]])
    progress = learning.load_progress(plan, counted=demonstrations is not None)
    finish(learning.Learning(progress, workers, gpu, runtime, dry_run, typed).run())


@task(
    "fine-tune a policy",
    "./lab up {model} --checkpoint {name}",
    "gpu runtime dry-run no-check",
    options=of_models("finetune"),
)
def finetune(model: str = positional(kind="model", keywords=("trainer",)), gpus: int = GPUS, **options: object) -> None:
    """Fine-tune a policy on a data set; Ctrl-C saves, and the same command goes on. The result serves at once.

    ./lab finetune gr00t --dataset cups --max-steps 20000
    ./lab finetune gr00t --dataset cups --lora-rank 16 --batch-size 4     fits a card of 24 GB
    """
    if not options["dataset"]:
        raise LabError("finetune needs --dataset, a data set's name under datasets/ on the volume, or its path")
    finish(programs.train(model, manifests.models()[model].trainer, [], gpus, options))


@task(
    "translate a sentence",
    "./lab tensorboard",
    "gpu runtime dry-run",
    options=lambda: program_flags(course.module("transformer", "config:TranslateCommand")),
)
def translate(sentence: str = positional(help="what to translate"), **options: object) -> None:
    """Translate a sentence with a Transformer that was trained here.

    ./lab translate "The door is open."
    ./lab translate "The door is open." --epoch 0,10,19     what it knew then
    """
    runs.require_epochs("transformer", options["name"], options["epoch"])
    finish(programs.run(course.service(), course.module("transformer", "translate"), ["--", sentence], options))


DIFFUSION = positional(help="diffusion", kind="one of", keywords=("diffusion",))


@task(
    "make pictures",
    "./lab score diffusion",
    "gpu runtime dry-run",
    options=lambda: program_flags(course.module("diffusion", "config:SampleRequest")),
)
def sample(lab: str = DIFFUSION, **options: object) -> None:
    """Make pictures with a diffusion model that was trained here: a grid, and the way there as an animation.

    ./lab sample diffusion --sampler ddim --steps 20 --context hero
    """
    runs.require_epochs(lab, options["name"], options["epoch"])
    finish(programs.run(course.service(), course.module(lab, "sample"), [], options))


@task(
    "measure those pictures",
    "./lab sample diffusion --compare",
    "gpu runtime dry-run",
    options=lambda: program_flags(course.module("diffusion", "config:ScoreRequest")),
)
def score(lab: str = DIFFUSION, **options: object) -> None:
    """Measure a diffusion model's pictures: of the class asked for? as varied as the real ones?

    ./lab score diffusion --count 200
    """
    runs.require_epochs(lab, options["name"], None)
    finish(programs.run(course.service(), course.module(lab, "score"), [], options))


def _exercises() -> dict[str, list[tuple[str, str]]]:
    kinds = {True: "find the bug", False: "fill the blank"}
    return {"exercises": [(name, kinds[".bug_" in name]) for name in course.exercises()]}


@task("check an exercise", "./lab check", "runtime dry-run", tables=_exercises)
def check(
    exercise: str | None = positional(None, "its name, listed below; none: list all, with how far you are", kind="exercise"),
    file: str | None = positional(None, "yours; default: the one in your exercises folder", kind="path", metavar="FILE"),
    all: str | None = option(
        None, "a folder with a folder of such files for each student: a table of them", kind="path", metavar="FOLDER"),
    **options: object,
) -> None:  # fmt: skip
    """Check an exercise of the course: what is wrong is said in words. The first time, its file is made.

    ./lab check transformer.attention
    ./lab check transformer.attention mine.py
    ./lab check --all handed-in/
    """
    if exercise and all:
        raise LabError("--all checks a folder of all exercises; leave the exercise's name out")
    if file and not Path(file).is_file():
        raise LabError(f"file '{file}' is not a file; without one the file in your exercises folder is taken")
    flags = {"directory": str(course.exercises_directory()), "name": exercise, "file": file, "all": all}
    finish(programs.run(course.service(), "lessons.exercises.check", [], {**flags, **options}))


@task("the course's own files", "./lab runs", "runtime dry-run", name="course")
def course_files(
    action: str = positional(help="import", kind="one of", keywords=("import",)),
    path: str = positional(help="a folder or a zip archive with weights, tokenizers, arrays, curves", kind="path"),
    name: str = option("course", "what is set up is called so, and then what it is", kind="directory name"),
    **options: object,
) -> None:
    """Bring the course's own files: told by their content, set up beside what is here, the originals left alone.

    ./lab course import Downloads/course
    ./lab course import weights.zip --name spring
    """
    if not Path(path).is_dir() and not zipfile.is_zipfile(path):
        raise LabError(f"path '{path}' is no folder and no zip archive; expected where the course's files lie")
    module = f"services.{manifests.directory_of(course.service())}.course_files"
    finish(programs.run(course.service(), module, [path, f"--name={name}"], options))


def _after_notebook(values: FlagValues) -> str:
    return addresses.open_page(manifests.notebooks().get(str(values["env"]), "")) or "./lab status"


@task("open notebooks", _after_notebook, "gpu runtime dry-run")
def notebook(
    env: str = positional(help="whose notebooks, and the environment that they run in", kind="notebooks"),
    fresh: bool = option(False, "bring fresh copies; what was changed stays beside them as NAME.before-N"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
) -> None:
    """Start JupyterLab in an environment, with the notebooks of the course that belong there.

    ./lab notebook ws_mdl              Transformer and diffusion
    ./lab notebook libero --fresh      the notebooks as they were; your own stay beside them
    """
    service = manifests.notebooks()[env]
    if fresh:
        finish(programs.run_module(service, "vla_notebooks.home", [env, "--fresh"], runtime, dry_run))
    overrides = service_settings.for_services([service], None, None, gpu)
    print_addresses(lifecycle.up([service], runtime, overrides, dry_run))


@task("show training curves", lambda _: addresses.open_page("tensorboard") or "./lab status", "runtime")
def tensorboard(runtime: str = "auto") -> None:
    """Show the training curves in a browser: starts the service of that name.

    ./lab tensorboard
    """
    print_addresses(lifecycle.up(["tensorboard"], runtime))
