"""Tasks that serve: services, and the checkpoints that they serve."""

from __future__ import annotations

from json import dumps

from vlalab.commands import addresses, foreground, lifecycle, overview, preflight, programs
from vlalab.description import checkpoints, compose, manifests, service_settings
from vlalab.host.console import LabError
from vlalab.runtimes.both import Instance
from vlalab.tasks.flags import (
    CHECKPOINT,
    DRY_RUN,
    GPU,
    NO_CHECK,
    RUNTIME,
    Flag,
    finish,
    flags_of,
    model_word,
    places,
    program_flags,
    task,
    word,
    words,
)  # fmt: skip
from vlalab.tasks.values import Checked, Number, OneOf, Several

NAMES = Several(shown="SERVICE …")
VERIFIED = ("checkpoint", "modes", "count", "image", "instruction")  # flags; the other options follow from modes


def print_addresses(instances: list[Instance]) -> None:
    """Prints a line for each service: its name and where it is."""
    for found in instances:
        print(addresses.line(found))


@task(
    "start services",
    lambda: [
        words("names", "services to start", NAMES),
        Flag("suite", "serve the checkpoint that was fine-tuned on this suite, with its statistics",
             OneOf(manifests.published_suites())),
        Flag("checkpoint", "a folder under checkpoints/ on the volume, or a path", CHECKPOINT),
        Flag("restart", "start anew what is up with other settings than are asked for now", default=False),
        Flag("stay", "one more of a policy, at any free port, in front: it ends with this command", default=False),
        GPU,
        *(one.replace(default_help="") for one in program_flags(*places(manifests.models(), "up"))
          if one.name != "checkpoint"),
        *(RUNTIME, DRY_RUN, NO_CHECK),
    ],
    more=lambda: {"Services:": [(name, one.about) for name, one in manifests.services().items()]},
)  # fmt: skip
def up(
    names: list[str],
    suite: str | None,
    checkpoint: str | None,
    restart: bool,
    stay: bool,
    gpu: str | None,
    runtime: str,
    dry_run: bool,
    **own: str | None,
) -> None:
    """Start services and wait until they are ready.

    ./lab up oracle                                  then: ./lab eval libero_goal
    ./lab up openvla --suite libero_goal --gpu 0     see also: ./lab checkpoint openvla --suite libero_goal
    ./lab up openvla                                 with the only checkpoint there is, for example the tiny one
    ./lab up openvla --suite base --unnorm-key bridge_orig --quant fp4
    ./lab up openvla --stay --gpu 1                  another one beside it, until Ctrl-C
    ./lab up ui                                      the pages and what they ask; openvla too, if it has a checkpoint
    """
    lifecycle.check_names(names, also=lifecycle.jobs())
    own = {name: value for name, value in own.items() if value}
    given = service_settings.for_services(lifecycle.in_order(names), suite, checkpoint, gpu, own)
    if not dry_run:
        preflight.refuse(names, given)
    if stay:
        foreground.up(names, runtime, given, dry_run)
        return
    print_addresses(lifecycle.up(names, runtime, given, dry_run, restart=restart))


@task("stop services", lambda: [words("names", "services to stop; default: all that are up", NAMES), DRY_RUN])
def down(names: list[str], dry_run: bool) -> None:
    """Stop services.

    ./lab down                  all of them
    ./lab down oracle
    """
    if not lifecycle.down(names, dry_run) and not dry_run:
        print("nothing is up")


@task("stop and start again", lambda: [words("names", "services; default: all that are up", NAMES), DRY_RUN])
def restart(names: list[str], dry_run: bool) -> None:
    """Stop services and start them with the settings they had, on the newest image and lock.

    ./lab restart openvla
    """
    print_addresses(lifecycle.restart(names, dry_run))


@task(
    "what is up, and where",
    lambda: [Flag("json", "print one JSON object (docs/doctor.md) instead of the table", default=False)],
)
def status(json: bool) -> None:
    """Show what is up in both runtimes: health, image, GPU and memory in use, and where.

    ./lab status
    ./lab status --json
    """
    if json:
        print(dumps(overview.as_json(), indent=1))
    else:
        overview.show()


@task(
    "the end of a log",
    lambda: [
        word("name", "service"),
        Flag("lines", "how many lines", Number("[0, inf)"), default=50),
        Flag("follow", "go on printing what is added", default=False),
    ],
)
def logs(name: str, lines: int, follow: bool) -> None:
    """Show the end of a service's log.

    ./lab logs oracle --follow
    """
    lifecycle.logs(name, lines, follow)


@task(
    "open a shell",
    lambda: [
        word("name", "environment or service"),
        Flag("command", "run this command line instead, and end"),
        *(RUNTIME, DRY_RUN),
    ],
)
def shell(name: str, command: str | None, runtime: str, dry_run: bool) -> None:
    """Open a shell in an environment: its image with a service's restrictions, or its local twin.

    ./lab shell openvla
    ./lab shell libero --command "python -V"
    """
    finish(lifecycle.shell(name, runtime, command, dry_run))


@task(
    "measure a checkpoint",
    lambda: [
        model_word("verifier"),
        *program_flags(*places(manifests.models(), "verify"), only=VERIFIED),
        *(GPU, RUNTIME, DRY_RUN),
    ],
)
def verify(model: str, gpu: str | None, runtime: str, dry_run: bool, **verifiers: object) -> None:
    """Load a checkpoint, ask it for actions, and say what that takes: latency, its parts, memory.

    ./lab verify openvla --checkpoint openvla-tiny
    ./lab verify openvla --checkpoint openvla-7b-finetuned-libero-goal --modes bf16-sdpa,nf4
    """
    finish(programs.run_module(model, manifests.models()[model].verifier, flags_of(verifiers), runtime, dry_run, gpu))


def _exported(label: str, text: str) -> tuple[str, str | None]:
    """Returns a model, and the checkpoint that was named after it or is the only one on the volume."""
    model, _, named = text.partition(",")
    model_word("exporter").values.read("model", model)
    there = checkpoints.there(model)
    variable = service_settings.variable(model, "CHECKPOINT")
    if named or len(there) != 1 or compose.environment_variables().get(variable):
        named = named or compose.environment_variables().get(variable) or ""
        return model, service_settings.existing_checkpoint(named, f"./lab checkpoint {model} --tiny")
    return model, there[0]


@task(
    "write ONNX modules",
    lambda: [
        words("model", f"{model_word('exporter').help}, and perhaps a checkpoint; without: the only one on the volume, "
              "else what .env names", Checked(_exported, "MODEL [CHECKPOINT]"), default=None),
        *program_flags(*places(manifests.models(), "export")),
        *(RUNTIME, DRY_RUN),
    ],
)  # fmt: skip
def export(model: tuple[str, str | None], runtime: str, dry_run: bool, **exporters: object) -> None:
    """Write a checkpoint's ONNX modules, compare each with torch, and build TensorRT's engines where that is installed.

    ./lab export gr00t
    ./lab export gr00t gr00t-tiny --dtype fp16
    """
    if not model:
        raise LabError(f"export needs a model: {model_word('exporter').help}. See: ./lab export --help")
    name, checkpoint = model
    flags = flags_of({"checkpoint": checkpoint, **exporters})
    finish(programs.run_module(name, manifests.models()[name].exporter, flags, runtime, dry_run))
