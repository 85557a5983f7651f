"""Tasks of the course: train its models, and use what was trained."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path

from vlalab.commands import course, learning, lifecycle, programs
from vlalab.description import manifests, runs, service_settings
from vlalab.host.console import LabError, unknown
from vlalab.tasks import flags
from vlalab.tasks.flags import (
    DIRECTORY_NAME,
    DRY_RUN,
    GPU,
    NO_CHECK,
    RUNTIME,
    Flag,
    finish,
    flags_of,
    program_flags,
    task,
    word,
    words,
)  # fmt: skip
from vlalab.tasks.serve import print_addresses
from vlalab.tasks.values import Checked, Existing, Number, OneOf, Ranges, Several

OF_SOME_LABS = ("corpus", "pair", "size", "data", "context")  # flags that not every lab has
HAVE_FLAGS = ("epochs", "name", *OF_SOME_LABS, "preload", "device")  # the others are settings of --set
GPUS = Flag("gpus", "processes, one per GPU", Number("[1, inf)"), default=1)
SET = Flag("set", "further settings, listed below", Several(shown="NAME=VALUE,…"), default=())


def _lab_flags() -> list[Flag]:
    return program_flags(*map(course.config, course.labs()), only=HAVE_FLAGS)


def _flags_help() -> dict[str, str]:
    return {one.variable: one.help for one in _lab_flags()}


@task(
    "train a model",
    lambda: [
        word("lab", ", ".join(course.labs()), OneOf(course.labs())),
        *_lab_flags(),
        *(SET, GPUS, GPU, RUNTIME, DRY_RUN, NO_CHECK),
    ],
    more=lambda: {f"train {lab} --set takes:": course.rows(lab, _flags_help()) for lab in course.labs()},
)
def train(
    lab: str, set: list[str], gpus: int, gpu: str | None, runtime: str, dry_run: bool, **trainers: object
) -> None:
    """Train a model of the course; Ctrl-C saves, and the same command goes on.

    ./lab train transformer --epochs 1 --size small
    ./lab train transformer --corpus mine.tsv --pair en-ko --set norm=post,d-model=128
    ./lab train diffusion --data sprites --context --epochs 8
    ./lab train minivla --data goal-oracle --size small
    ./lab train vit --epochs 60                              a practice lab: docs/practice.md
    """
    known = course.settings(lab)
    if others := flags_of({name: trainers[name] for name in OF_SOME_LABS if name not in known}):
        own = ", ".join(f"--{name}" for name in OF_SOME_LABS if name in known)
        raise LabError(f"train {lab} does not take {others[0]}; its own: {own}")
    if lab in ("transformer", "lstm") and trainers["corpus"] == "python":
        raise LabError(f"--corpus python has one language and train {lab} translates; train gpt or bert read it")
    if gpus > 1 and lab in ("diffusion", *course.practice()):
        raise LabError(f"train {lab} runs on one GPU, {gpus} were asked for; leave --gpus out")
    arguments = [*flags_of(trainers), *course.flags(lab, set)]
    if lab == "minivla" and trainers["data"] in (None, *known["data"].keywords):
        raise LabError("train minivla needs demonstrations: --data NAME, a data set that `./lab dataset` has made")
    if trainers["size"] and trainers["size"] not in known["size"].choices:
        raise LabError(unknown(f"train {lab} --size", str(trainers["size"]), map(str, known["size"].choices)))
    _run_on(gpus, course.service(), course.module(lab, "train"), arguments, runtime, dry_run, gpu)


@task(
    "demos to a policy",
    lambda: [
        word("suite", manifests.suites_in_words(), OneOf(tuple(manifests.suites()))),
        Flag("minutes", "for demonstrations and training together", Number("(0, inf)", float), default=90),
        *(
            one.replace(help="of mini-VLA: tiny, small or base", default="small")
            for one in program_flags(course.config("minivla"), only=["size"])
        ),
        Flag("name", "of recording, data set and model", DIRECTORY_NAME, default_help="the suite's"),
        Flag(
            "demonstrations",
            "how many",
            Number("[1, inf)"),
            default_help="what a third of the minutes gives, 200 at most",
        ),
        Flag("tasks", "which tasks: numbers, ranges or names", Ranges(names=True), default_help="all"),
        Flag("trials", "episodes per task in the evaluation", Number("[1, 50]"), default=10),
        SET.replace(help="further settings of `train minivla`"),
        Flag("workers", "simulator processes", Number("[1, inf)"), default_help="one per core"),
        *(GPU, RUNTIME, DRY_RUN, NO_CHECK),
    ],
)
def learn(suite: str, name: str | None, demonstrations: int | None, workers: int | None, gpu: str | None,
          runtime: str, dry_run: bool, set: list[str], **asked: object) -> None:  # fmt: skip
    """Record demonstrations, train mini-VLA on them, evaluate it. Ctrl-C stops; the same command goes on.

    ./lab learn libero_object
    ./lab learn libero_goal --minutes 30 --tasks 0-2 --name three
    """
    count = demonstrations or learning.demonstrations(asked["minutes"], workers or learning.cores())
    plan = learning.Plan(
        suite=suite, name=name or suite, demonstrations=count, settings=learning.settings(set), **asked
    )
    typed = shlex.join(["./lab", *sys.argv[1:]])
    progress = learning.begun(plan, counted=demonstrations is not None)
    finish(learning.run(learning.Learning(progress, workers, gpu, runtime, dry_run, typed)))


def _run_on(
    gpus: int, service: str, module: str, arguments: list[str], runtime: str, dry_run: bool, gpu: str | None
) -> None:
    """Runs a trainer, as several processes of one machine where it has several GPUs."""
    if gpus > 1:
        one_machine = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={gpus}"]
        module, arguments = "torch.distributed.run", [*one_machine, "-m", module, *arguments]
    devices = programs.several_gpus(service, gpus, gpu)
    finish(programs.run_module(service, module, arguments, runtime, dry_run, devices))


@task(
    "fine-tune a policy",
    lambda: [
        flags.model_word("trainer"),
        *program_flags(*flags.places(manifests.models(), "finetune")),
        *(GPUS, GPU, RUNTIME, DRY_RUN, NO_CHECK),
    ],
)
def finetune(
    model: str, dataset: str | None, gpus: int, gpu: str | None, runtime: str, dry_run: bool, **trainers: object
) -> None:
    """Fine-tune a policy on a data set; Ctrl-C saves, and the same command goes on. The result serves at once.

    ./lab finetune gr00t --dataset cups --max-steps 20000
    ./lab finetune gr00t --dataset cups --lora-rank 16 --batch-size 4     fits a card of 24 GB
    """
    if not dataset:
        raise LabError("finetune needs --dataset, a data set's name under datasets/ on the volume, or its path")
    arguments = flags_of({"dataset": dataset, **trainers})
    _run_on(gpus, model, manifests.models()[model].trainer, arguments, runtime, dry_run, gpu)


@task(
    "translate a sentence",
    lambda: [
        word("sentence", "what to translate"),
        *program_flags(course.module("transformer", "config:TranslateCommand")),
        *(GPU, RUNTIME, DRY_RUN),
    ],
)
def translate(sentence: str, gpu: str | None, runtime: str, dry_run: bool, **translators: object) -> None:
    """Translate a sentence with a Transformer that was trained here.

    ./lab translate "The door is open."
    ./lab translate "The door is open." --epoch 0,10,19     what it knew then
    """
    runs.require_epochs("transformer", translators["name"], translators["epoch"])
    arguments = [*flags_of(translators), "--", sentence]
    module = course.module("transformer", "translate")
    finish(programs.run_module(course.service(), module, arguments, runtime, dry_run, gpu))


def _diffusion_flags(options: str) -> list[Flag]:
    lab = word("lab", "diffusion", OneOf(("diffusion",)))
    return [lab, *program_flags(course.module("diffusion", f"config:{options}")), GPU, RUNTIME, DRY_RUN]


@task("make pictures", lambda: _diffusion_flags("SampleRequest"))
def sample(lab: str, gpu: str | None, runtime: str, dry_run: bool, **samplers: object) -> None:
    """Make pictures with a diffusion model that was trained here: a grid, and the way there as an animation.

    ./lab sample diffusion --sampler ddim --steps 20 --context hero
    """
    _run_diffusion("sample", samplers, runtime, dry_run, gpu)


@task("measure those pictures", lambda: _diffusion_flags("ScoreRequest"))
def score(lab: str, gpu: str | None, runtime: str, dry_run: bool, **scorers: object) -> None:
    """Measure a diffusion model's pictures: of the class asked for? as varied as the real ones?

    ./lab score diffusion --count 200
    """
    _run_diffusion("score", scorers, runtime, dry_run, gpu)


def _run_diffusion(program: str, given: dict[str, object], runtime: str, dry_run: bool, gpu: str | None) -> None:
    runs.require_epochs("diffusion", given["name"], given.get("epoch"))
    module = course.module("diffusion", program)
    finish(programs.run_module(course.service(), module, flags_of(given), runtime, dry_run, gpu))


def _exercise(label: str, text: str) -> tuple[str, Path | None]:
    """Returns an exercise and the file that was named after it."""
    name, _, file = text.partition(",")
    if name not in course.exercises():
        raise LabError(unknown(label, name, course.exercises()))
    path = Path(file).expanduser() if file else None
    if path and not path.is_file():
        raise LabError(f"{label} {name}: '{file}' is no file; without one the file in your exercises folder is taken")
    return name, path.absolute() if path else None


@task(
    "check an exercise",
    lambda: [
        words("exercise", "its name, listed below, and perhaps a file; none: list all, with how far you are",
              Checked(_exercise, "EXERCISE [FILE]"), default=None),
        Flag("all", "a folder with a folder of such files for each student: a table of them",
             Existing(shown="FOLDER")),
        *(RUNTIME, DRY_RUN),
    ],
    more=lambda: {"exercises:": course.described_exercises()},
)  # fmt: skip
def check(exercise: tuple[str, Path | None] | None, all: str | None, runtime: str, dry_run: bool) -> None:
    """Check an exercise of the course: what is wrong is said in words. The first time, its file is made.

    ./lab check transformer.attention
    ./lab check transformer.attention mine.py
    ./lab check --all handed-in/
    """
    if exercise and all:
        raise LabError("--all checks a folder of all exercises; leave the exercise's name out")
    name, file = exercise or (None, None)
    given = {"folder": str(course.exercises_folder()), "name": name, "file": file and str(file), "all": all}
    finish(programs.run_module(course.service(), "lessons.exercises.check", flags_of(given), runtime, dry_run))


@task(
    "the course's own files",
    lambda: [
        word("action", "import", OneOf(("import",))),
        word("path", "a folder or a zip archive with weights, tokenizers, arrays, curves", Existing(shown="PATH")),
        Flag("name", "what is set up is called so, and then what it is", DIRECTORY_NAME, default="course"),
        *(RUNTIME, DRY_RUN),
    ],
    name="course",
)
def course_files(action: str, path: str, name: str, runtime: str, dry_run: bool) -> None:
    """Bring the course's own files: told by their content, set up beside what is here, the originals left alone.

    ./lab course import Downloads/course
    ./lab course import weights.zip --name spring
    """
    if not Path(path).is_dir() and not zipfile.is_zipfile(path):
        raise LabError(f"path '{path}' is no folder and no zip archive; expected where the course's files lie")
    finish(programs.run_module(course.service(), course.importer(), [path, f"--name={name}"], runtime, dry_run))


@task(
    "open notebooks",
    lambda: [
        word("env", "whose notebooks, and the environment that they run in", OneOf(tuple(manifests.notebooks()))),
        Flag("fresh", "bring fresh copies; what was changed stays beside them as NAME.before-N", default=False),
        *(GPU, RUNTIME, DRY_RUN),
    ],
)
def notebook(env: str, fresh: bool, gpu: str | None, runtime: str, dry_run: bool) -> None:
    """Start JupyterLab in an environment, with the notebooks of the course that belong there.

    ./lab notebook ws_mdl              Transformer and diffusion
    ./lab notebook libero --fresh      the notebooks as they were; your own stay beside them
    """
    service = manifests.notebooks()[env]
    if fresh and (code := programs.run_module(service, "vla_notebooks.home", [env, "--fresh"], runtime, dry_run)):
        finish(code)
    given = service_settings.for_services([service], None, None, gpu)
    print_addresses(lifecycle.up([service], runtime, given, dry_run))


@task("show training curves", lambda: [RUNTIME])
def tensorboard(runtime: str) -> None:
    """Show the training curves in a browser: starts the service of that name.

    ./lab tensorboard
    """
    print_addresses(lifecycle.up(["tensorboard"], runtime))
