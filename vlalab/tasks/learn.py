"""Tasks of the course: train its models, and use what was trained."""

from __future__ import annotations

import shlex
import sys
import zipfile
from pathlib import Path

from vlalab.commands import course, learning, lifecycle, programs
from vlalab.description import datasets, manifests, runs, service_settings
from vlalab.host.console import LabError, unknown
from vlalab.tasks.flags import DEVICE, DRY_RUN, GPU, NO_CHECK, RUNTIME, Flag, finish, flags_of, task, word, words
from vlalab.tasks.serve import FOLDER_NAME, MODELS, print_addresses
from vlalab.tasks.values import Checked, Existing, Like, Number, OneOf, Ranges, Several

PYTHON = "python"  # a corpus in one language: nothing to translate
CORPORA = ("default", "opus_books", "lemon-mint", "reverse", PYTHON)  # by name; anything else may be a file


def _trained(lab: str) -> Flag:
    values = Checked(lambda label, text: runs.model(label, text, lab), "NAME")
    return Flag("name", "run that was trained", values, otherwise="the one trained last")


DATA = ("digits", "sprites", "mnist")
SIZES = tuple(course.settings("transformer")["size"].choices)
MINIVLA_SIZES = tuple(course.settings("minivla")["size"].choices)
PAIR = Like(r"[a-z]{2,}-[a-z]{2,}", "two languages, as in en-it", "en-it")
PRELOAD = Like(r"\d+", "latest, none, or an epoch such as 7", "WHICH", ("latest", "none"))
OF_SOME_LABS = ("corpus", "pair", "size", "data", "context")  # flags that not every lab has
HAVE_FLAGS = ("corpus", "pair", "size", "data", "context", "epochs", "name", "preload", "device")
EPOCH = Flag(
    "epoch",
    "weights after that epoch, the first being 0; several translate one after the other",
    Like(r"\d+(,\d+)*", "epochs such as 0,10,29", "N,N"),
    otherwise="the newest",
)
TRAINED = {name: model for name, model in MODELS.items() if model.trainer}
ONLY_DIFFUSION = word("lab", "diffusion", OneOf(("diffusion",)))


@task(
    "train a model",
    word("lab", ", ".join(course.LABS), OneOf(course.LABS)),
    Flag("epochs", "how many in all", Number("[1, inf)")),
    Flag("name", "of the run", FOLDER_NAME, otherwise="made of what is trained on"),
    Flag(
        "corpus",
        f"{', '.join(CORPORA[:-1])}, or a .tsv or .jsonl file; of bert and gpt also {PYTHON} (its reference) "
        "or a .txt file",
        Existing(CORPORA, "datasets"),
        otherwise="default",
    ),
    Flag("pair", "source and target language, as in en-it", PAIR, otherwise="the corpus's first pair"),
    Flag("size", "tiny, small, base (the paper's) or course (its recipe)", OneOf(SIZES), otherwise="small"),
    Flag(
        "data",
        "digits, sprites, mnist, a folder with the course's .npy files or MNIST's; of minivla and vit: a data set's "
        "name",
        Existing(DATA, "datasets"),
        otherwise="digits",
    ),
    Flag("context", "tell the network the class of a picture", default=False),
    Flag("preload", "latest (go on from the newest weights), an epoch's number, or none", PRELOAD, otherwise="latest"),
    Flag("set", "further settings, listed below", Several(shown="NAME=VALUE,…"), default=()),
    Flag("gpus", "processes, one per GPU", Number("[1, inf)"), default=1),
    DEVICE,
    GPU,
    RUNTIME,
    DRY_RUN,
    NO_CHECK,
    more=lambda: {f"train {lab} --set takes:": course.rows(lab, HAVE_FLAGS) for lab in course.LABS},
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
    _refuse_the_other_labs_flags(lab, trainers)
    if gpus > 1 and lab in ("diffusion", *course.PRACTICE):
        raise LabError(f"train {lab} runs on one GPU, {gpus} were asked for; leave --gpus out")
    flags = [*flags_of(trainers), *course.flags(lab, set)]
    _refuse_what_minivla_lacks(lab, trainers)
    _run_on(gpus, course.SERVICE, course.module(lab, "train"), flags, runtime, dry_run, gpu)


@task(
    "demos to a policy",
    word("suite", manifests.suites_in_words(), OneOf(tuple(manifests.suites()))),
    Flag("minutes", "for demonstrations and training together", Number("(0, inf)", float), default=90),
    Flag("size", "of mini-VLA: tiny, small or base", OneOf(MINIVLA_SIZES), default="small"),
    Flag("name", "of recording, data set and model", FOLDER_NAME, otherwise="the suite's"),
    Flag("demonstrations", "how many", Number("[1, inf)"), otherwise="what a third of the minutes gives, 200 at most"),
    Flag("tasks", "which tasks: numbers, ranges or names", Ranges(names=True), otherwise="all"),
    Flag("trials", "episodes per task in the evaluation", Number("[1, 50]"), default=10),
    Flag("set", "further settings of `train minivla`", Several(shown="NAME=VALUE,…"), default=()),
    Flag("workers", "simulator processes", Number("[1, inf)"), otherwise="one per core"),
    GPU,
    RUNTIME,
    DRY_RUN,
    NO_CHECK,
    name="learn",
)
def learn_suite(suite: str, name: str | None, demonstrations: int | None, workers: int | None, gpu: str | None,
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
    gpus: int, service: str, module: str, flags: list[str], runtime: str, dry_run: bool, gpu: str | None
) -> None:
    """Runs a trainer, as several processes of one machine where it has several GPUs."""
    if gpus > 1:
        one_machine = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={gpus}"]
        module, flags = "torch.distributed.run", [*one_machine, "-m", module, *flags]
    devices = programs.several_gpus(service, gpus, gpu)
    finish(programs.run_module(service, module, flags, runtime, dry_run, devices))


def _refuse_what_minivla_lacks(lab: str, given: dict[str, object]) -> None:
    if lab != "minivla":
        return
    if not given["data"] or given["data"] in DATA:
        raise LabError("train minivla needs demonstrations: --data NAME, a data set that `./lab dataset` has made")
    known = course.settings(lab)["size"].choices
    if given["size"] and given["size"] not in known:
        raise LabError(unknown("train minivla --size", given["size"], known))


def _refuse_the_other_labs_flags(lab: str, given: dict[str, object]) -> None:
    own = [name for name in OF_SOME_LABS if name in course.settings(lab)]
    others = flags_of({name: given[name] for name in OF_SOME_LABS if name not in own})
    if lab in ("transformer", "lstm") and given["corpus"] == PYTHON:
        raise LabError(f"--corpus {PYTHON} has one language and train {lab} translates; train gpt or bert read it")
    if others:
        raise LabError(f"train {lab} does not take {others[0]}; its own: {', '.join(f'--{name}' for name in own)}")


def _robot(label: str, text: str) -> str:
    return (Existing(shown="FILE") if text.endswith(".json") else FOLDER_NAME).read(label, text)


@task(
    "fine-tune a policy",
    word("model", " or ".join(TRAINED), OneOf(tuple(TRAINED))),
    Flag("dataset", "its name under datasets/ on the volume, or a path", Checked(datasets.dataset, "NAME")),
    Flag(
        "base",
        "the checkpoint to begin with",
        Existing(folder="checkpoints", shown="NAME"),
        otherwise="the published one, else the tiny one",
    ),
    Flag("embodiment", "a robot that is known, or a JSON file", Checked(_robot, "NAME"), otherwise="new_embodiment"),
    Flag("name", "of the result, a folder under checkpoints/", FOLDER_NAME, otherwise="made of model and data set"),
    Flag("max-steps", "how many in all", Number("[1, inf)"), otherwise="10000"),
    Flag("batch-size", "samples per step and GPU", Number("[1, inf)"), otherwise="32"),
    Flag("learning-rate", "the highest", Number("(0, 1)", float), otherwise="0.0001"),
    Flag("no-tune-diffusion-model", "train only what lies around the diffusion transformer", default=False),
    Flag("lora-rank", "above 0: low-rank adapters in the head's attention instead", Number("[0, inf)"), otherwise="0"),
    Flag(
        "lora-alpha",
        "what the adapters add is scaled by alpha / rank",
        Number("(0, inf)", float),
        otherwise="the rank; a run that goes on keeps its own",
    ),
    Flag("lora-dropout", "of the adapters' input", Number("[0, 1)", float), otherwise="0.1"),
    Flag("save-steps", "a state to go on from is saved so often", Number("[1, inf)"), otherwise="1000"),
    Flag("keep", "how many of these states stay", Number("[1, inf)"), otherwise="2"),
    Flag(
        "frames-gb",
        "memory for films that were decoded once; 0: none, -1: half of what is free",
        Number("[-1, inf)", float),
        otherwise="-1",
    ),
    Flag("resume", "refuse to begin anew; the same command goes on in any case", default=False),
    Flag("force", "train although it is not expected to fit into memory", default=False),
    Flag("gpus", "processes, one per GPU", Number("[1, inf)"), default=1),
    DEVICE,
    GPU,
    RUNTIME,
    DRY_RUN,
    NO_CHECK,
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
    flags = flags_of({"dataset": dataset, **trainers})
    _run_on(gpus, model, MODELS[model].trainer, flags, runtime, dry_run, gpu)


@task(
    "translate a sentence",
    word("sentence", "what to translate"),
    _trained("transformer"),
    EPOCH,
    Flag("beam", "translations kept at every step; 1 is greedy search", Number("[1, inf)"), otherwise="4"),
    Flag("pictures", "draw where each layer and head looks", default=False),
    DEVICE,
    GPU,
    RUNTIME,
    DRY_RUN,
)
def translate(sentence: str, gpu: str | None, runtime: str, dry_run: bool, **translators: object) -> None:
    """Translate a sentence with a Transformer that was trained here.

    ./lab translate "The door is open."
    ./lab translate "The door is open." --epoch 0,10,19     what it knew then
    """
    runs.require_epochs("transformer", translators["name"], translators["epoch"])
    flags = [*flags_of(translators), "--", sentence]
    module = course.module("transformer", "translate")
    finish(programs.run_module(course.SERVICE, module, flags, runtime, dry_run, gpu))


@task(
    "make pictures",
    ONLY_DIFFUSION,
    _trained("diffusion"),
    EPOCH.but(help="weights after that epoch, the first being 0; several are put side by side"),
    Flag("context", "a class, a mix as in hero:1,food:0.6, or all", otherwise="all where the run has a context"),
    Flag("count", "how many pictures", Number("[1, inf)"), otherwise="32"),
    Flag(
        "sampler",
        "ddim, ddpm, or incorrect (adds no noise back: for the lesson)",
        OneOf(("ddim", "ddpm", "incorrect")),
        otherwise="ddim",
    ),
    Flag("steps", "of ddim, 1 to 500", Number("[1, 500]"), otherwise="20"),
    Flag("eta", "of ddim: share of fresh noise, 0 to 1", Number("[0, 1]", float), otherwise="0"),
    Flag("clip", "of ddim: keep what it predicts in a picture's range", default=False),
    Flag(
        "spacing",
        "of ddim's steps: 1 is even, 1.5 puts more of them near the clean picture",
        Number("(0, inf)", float),
        otherwise="1",
    ),
    Flag(
        "order",
        "of ddim: 2 goes by where its predictions are heading; as good as ddpm with --eta 1",
        OneOf(("1", "2")),
        otherwise="1",
    ),
    Flag("guidance", "above 1: follow the context more closely", Number(kind=float), otherwise="1"),
    Flag("seed", "the same seed gives the same pictures", Number(), otherwise="0"),
    Flag("compare", "ddpm, ddim and the incorrect sampler side by side", default=False),
    DEVICE,
    GPU,
    RUNTIME,
    DRY_RUN,
)
def sample(lab: str, gpu: str | None, runtime: str, dry_run: bool, **samplers: object) -> None:
    """Make pictures with a diffusion model that was trained here: a grid, and the way there as an animation.

    ./lab sample diffusion --sampler ddim --steps 20 --context hero
    """
    _run_diffusion("sample", samplers, runtime, dry_run, gpu)


@task(
    "measure those pictures",
    ONLY_DIFFUSION,
    _trained("diffusion"),
    Flag("count", "pictures of each sampler", Number("[1, inf)"), otherwise="500"),
    Flag("steps", "of ddim", Number("[1, 500]"), otherwise="20"),
    DEVICE,
    GPU,
    RUNTIME,
    DRY_RUN,
)
def score(lab: str, gpu: str | None, runtime: str, dry_run: bool, **scorers: object) -> None:
    """Measure a diffusion model's pictures: of the class asked for? as varied as the real ones?

    ./lab score diffusion --count 200
    """
    _run_diffusion("score", scorers, runtime, dry_run, gpu)


def _run_diffusion(program: str, given: dict[str, object], runtime: str, dry_run: bool, gpu: str | None) -> None:
    runs.require_epochs("diffusion", given["name"], given.get("epoch"))
    module = course.module("diffusion", program)
    finish(programs.run_module(course.SERVICE, module, flags_of(given), runtime, dry_run, gpu))


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
    words("exercise", "its name, listed below, and perhaps a file; none: list all, with how far you are",
          Checked(_exercise, "EXERCISE [FILE]"), default=None),
    Flag("all", "a folder with a folder of such files for each student: a table of them", Existing(shown="FOLDER")),
    RUNTIME,
    DRY_RUN,
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
    flags = flags_of({"folder": str(course.exercises_folder()), "name": name, "file": file and str(file), "all": all})
    finish(programs.run_module(course.SERVICE, "lessons.exercises.check", flags, runtime, dry_run))


@task(
    "the course's own files",
    word("action", "import", OneOf(("import",))),
    word("path", "a folder or a zip archive with weights, tokenizers, arrays, curves", Existing(shown="PATH")),
    Flag("name", "what is set up is called so, and then what it is", FOLDER_NAME, default="course"),
    RUNTIME,
    DRY_RUN,
    name="course",
)  # fmt: skip
def course_files(action: str, path: str, name: str, runtime: str, dry_run: bool) -> None:
    """Bring the course's own files: told by their content, set up beside what is here, the originals left alone.

    ./lab course import Downloads/course
    ./lab course import weights.zip --name spring
    """
    if not Path(path).is_dir() and not zipfile.is_zipfile(path):
        raise LabError(f"path '{path}' is no folder and no zip archive; expected where the course's files lie")
    finish(programs.run_module(course.SERVICE, course.IMPORTER, [path, f"--name={name}"], runtime, dry_run))


NOTEBOOKS = manifests.notebooks()


@task(
    "open notebooks",
    word("env", "whose notebooks, and the environment that they run in", OneOf(tuple(NOTEBOOKS))),
    Flag("fresh", "bring fresh copies; what was changed stays beside them as NAME.before-N", default=False),
    GPU,
    RUNTIME,
    DRY_RUN,
)
def notebook(env: str, fresh: bool, gpu: str | None, runtime: str, dry_run: bool) -> None:
    """Start JupyterLab in an environment, with the notebooks of the course that belong there.

    ./lab notebook ws_mdl              Transformer and diffusion
    ./lab notebook libero --fresh      the notebooks as they were; your own stay beside them
    """
    service = NOTEBOOKS[env]
    if fresh and (code := programs.run_module(service, "vla_notebooks.home", [env, "--fresh"], runtime, dry_run)):
        finish(code)
    given = service_settings.for_services([service], None, None, gpu)
    print_addresses(lifecycle.up([service], runtime, given, dry_run))


@task("show training curves", RUNTIME)
def tensorboard(runtime: str) -> None:
    """Show the training curves in a browser: starts the service of that name.

    ./lab tensorboard
    """
    print_addresses(lifecycle.up(["tensorboard"], runtime))
