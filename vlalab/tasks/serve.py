"""Tasks that serve: services, and the checkpoints that they serve."""

from __future__ import annotations

from dataclasses import replace
from json import dumps

from vlalab.commands import addresses, evaluation, lifecycle, overview, preflight, programs
from vlalab.description import checkpoints, compose, manifests, service_settings
from vlalab.host.borrowed import option
from vlalab.runtimes import steward
from vlalab.runtimes.both import Instance
from vlalab.tasks.flags import Flag, of_models, positional
from vlalab.tasks.task import FlagValues, finish, task


def print_addresses(instances: list[Instance]) -> None:
    """Print a line for each service: its name and where it is."""
    for instance in instances:
        print(addresses.line(instance))


def _up_options() -> list[Flag]:
    options = of_models("up", without=["checkpoint"])()
    return [replace(flag, default_help="") for flag in options]  # the service's own settings hold


def after_up(values: FlagValues) -> str:
    """Return what to open of the first service that a browser shows, else how to use a policy."""
    names = values["names"]
    for name in (steward.PAGE, *manifests.notebooks().values(), "tensorboard"):
        if name in names and (page := addresses.open_page(name)):
            return page
    policies = [name for name in names if name in evaluation.policies()]
    return f"./lab eval libero_goal --policy {policies[0]}" if policies else "./lab status"


@task(
    "start services",
    after_up,
    "gpu runtime dry-run no-check",
    options=_up_options,
    tables=lambda: {"Services": [(name, service.about) for name, service in manifests.services().items()]},
)
def up(
    names: list[str] = positional(help="services to start", metavar="SERVICE"),
    suite: str | None = option(
        None, "serve the checkpoint that was fine-tuned on this suite, with its statistics", kind="published suite"),
    checkpoint: str | None = option(None, "a folder under checkpoints/ on the volume, or a path", kind="checkpoint"),
    restart: bool = option(False, "start anew what is up with other settings than are asked for now"),
    stay: bool = option(False, "one more of a policy, at any free port, in front: it ends with this command"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
    **model_flags: str | None,
) -> None:  # fmt: skip
    """Start services and wait until they are ready.

    ./lab up oracle                                  then: ./lab eval libero_goal
    ./lab up openvla --suite libero_goal --gpu 0     see also: ./lab checkpoint openvla --suite libero_goal
    ./lab up openvla                                 with the only checkpoint there is, for example the tiny one
    ./lab up openvla --suite base --unnorm-key bridge_orig --quant fp4
    ./lab up openvla --stay --gpu 1                  another one beside it, until Ctrl-C
    ./lab up ui                                      the pages and what they ask
    """
    model_flags = {name: value for name, value in model_flags.items() if value}
    lifecycle.check_names(names, also=lifecycle.jobs())
    settings = service_settings.for_services(lifecycle.in_order(names), suite, checkpoint, gpu, model_flags)
    if not dry_run:
        preflight.require_startable(names, settings)
    if stay:
        lifecycle.stay(names, runtime, settings, dry_run)
    else:
        print_addresses(lifecycle.up(names, runtime, settings, dry_run, restart=restart))


@task("stop services", "./lab up {names}", "dry-run")
def down(
    names: list[str] = positional(help="services to stop; default: all that are up", metavar="SERVICE"),
    dry_run: bool = False,
) -> None:
    """Stop services.

    ./lab down                  all of them
    ./lab down oracle
    """
    if not lifecycle.down(names, dry_run) and not dry_run:
        print("nothing is up")


@task("stop and start again", "./lab status", "dry-run")
def restart(
    names: list[str] = positional(help="services; default: all that are up", metavar="SERVICE"), dry_run: bool = False
) -> None:
    """Stop services and start them with the settings they had, on the newest image and lock.

    ./lab restart openvla
    """
    print_addresses(lifecycle.restart(names, dry_run))


@task("what is up, and where", "./lab logs SERVICE")
def status(
    json: bool = option(False, "print one JSON object (docs/doctor.md) instead of the table"),
) -> None:
    """Show what is up in both runtimes: health, image, GPU and memory in use, and where.

    ./lab status
    ./lab status --json
    """
    if json:
        print(dumps(overview.as_json(), indent=1))
    else:
        overview.show()


@task("the end of a log", "./lab status")
def logs(
    name: str = positional(help="service"),
    lines: int = option(50, "how many lines", "[0, inf)"),
    follow: bool = option(False, "go on printing what is added"),
) -> None:
    """Show the end of a service's log.

    ./lab logs oracle --follow
    """
    lifecycle.logs(name, lines, follow)


@task("open a shell", "./lab status", "runtime dry-run")
def shell(
    name: str = positional(help="environment or service"),
    command: str | None = option(None, "run this command line instead, and end"),
    runtime: str = "auto",
    dry_run: bool = False,
) -> None:
    """Open a shell in an environment: its image with a service's restrictions, or its local twin.

    ./lab shell openvla
    ./lab shell libero --command "python -V"
    """
    finish(lifecycle.shell(name, runtime, command, dry_run))


@task(
    "measure a checkpoint",
    "./lab up {model} --checkpoint {checkpoint}",
    "gpu runtime dry-run",
    options=of_models("verify", only=("checkpoint", "modes", "count", "image", "instruction")),
)
def verify(model: str = positional(kind="model", keywords=("verifier",)), **options: object) -> None:
    """Load a checkpoint, ask it for actions, and say what that takes: latency, its parts, memory.

    ./lab verify openvla --checkpoint openvla-tiny
    ./lab verify openvla --modes bf16-sdpa,nf4
    """
    finish(programs.run(model, manifests.models()[model].verifier, [], options))


@task("write ONNX modules", "./lab bench {model}", "runtime dry-run", options=of_models("export"))
def export(
    model: str = positional(kind="model", keywords=("exporter",)),
    checkpoint: str | None = positional(None, "its name; default: the only one on the volume, else what .env names"),
    **options: object,
) -> None:
    """Write a checkpoint's ONNX modules, compare each with torch, and build TensorRT's engines where that is installed.

    ./lab export gr00t
    ./lab export gr00t gr00t-tiny --dtype fp16
    """
    available = checkpoints.available(model)
    checkpoint = checkpoint or compose.environment_variables().get(service_settings.variable(model, "CHECKPOINT"))
    if checkpoint or len(available) != 1:
        get = f"./lab checkpoint {model} --tiny"
        checkpoint = service_settings.existing_checkpoint(checkpoint or "", get)
    arguments = programs.flags_of({"checkpoint": checkpoint or available[0]})
    finish(programs.run(model, manifests.models()[model].exporter, arguments, options))
