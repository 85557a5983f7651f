"""Tasks for services and the checkpoints that they serve."""

from __future__ import annotations

from dataclasses import replace

from vlalab.commands import addresses, evaluation, lifecycle, overview, programs, sharing
from vlalab.description import checkpoints, compose, manifests, service_settings
from vlalab.host.shared_code import option
from vlalab.runtimes.interface import Instance
from vlalab.tasks.flags import Flag, flags_for, positional
from vlalab.tasks.task import FlagValues, finish, task


def print_addresses(instances: list[Instance]) -> None:
    """Print each service's name and address."""
    for instance in instances:
        print(addresses.line(instance))


def _up_options() -> list[Flag]:
    return [replace(flag, default_help="") for flag in flags_for("up", without=["checkpoint"])()]  # the service's apply


def _next(values: FlagValues) -> str:
    policies = [name for name in values["names"] if name in evaluation.policies()]
    return f"./lab eval libero_goal --policy {policies[0]}" if policies else "./lab status"


@task(
    "start services", _next, "gpu runtime variant dry-run no-check", _up_options,
    tables=lambda: {"Services": [(name, service.about) for name, service in manifests.services().items()]},
)  # fmt: skip
def up(
    names: list[str] = positional(help="services to start", metavar="SERVICE"),
    suite: str | None = option(
        None, "serve the checkpoint fine-tuned on this suite, with its statistics", kind="published suite"),
    checkpoint: str | None = option(None, "a directory in checkpoints/ on the volume, or a path", kind="checkpoint"),
    restart: bool = option(False, "restart services whose settings differ from the requested ones"),
    variant: str | None = None,
    foreground: bool = option(False, "run one more instance of a policy in the foreground, on any free port"),
    share: bool = option(False, "let phones log in to the pages by a QR code; they listen on the network"),
    gpu: str | None = None,
    runtime: str = "auto",
    dry_run: bool = False,
    **model_flags: str | None,
) -> None:  # fmt: skip
    """Start services and wait until they are ready.

    ./lab up oracle                                  then: ./lab eval libero_goal
    ./lab up openvla --suite libero_goal --gpu 0     see also: ./lab checkpoint openvla --suite libero_goal
    ./lab up openvla                                 serve the only checkpoint on the volume
    ./lab up openvla --suite base --unnorm-key bridge_orig --quant fp4
    ./lab up openvla --foreground --gpu 1            a second instance, until Ctrl-C
    ./lab up ui                                      the web pages and the services they need
    ./lab up ui --share                              and a QR code for phones
    """
    token = sharing.require_shareable(names) if share else ""
    model_flags = {name: value for name, value in model_flags.items() if value}
    lifecycle.check_names(names, also=lifecycle.jobs())
    settings = service_settings.for_services(lifecycle.in_order(names), suite, checkpoint, gpu, model_flags, variant)
    if not dry_run:
        lifecycle.require_startable(names, settings)
    if foreground:
        lifecycle.run_in_foreground(names, runtime, settings, dry_run)
    else:
        started = lifecycle.up(names, runtime, settings, dry_run, restart=restart)
        print_addresses(started)
        for page in (instance for instance in started if share and instance.service == compose.PAGE):
            sharing.share(page, runtime, token)


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
        print("no services are running")


@task("restart services", "./lab status", "dry-run")
def restart(
    names: list[str] = positional(help="services; default: all that are up", metavar="SERVICE"), dry_run: bool = False
) -> None:
    """Restart services with their settings, on the newest image and lock.

    ./lab restart openvla
    """
    print_addresses(lifecycle.restart(names, dry_run))


@task("show services", "./lab logs SERVICE")
def status(json: bool = option(False, "print one JSON object (docs/doctor.md) instead of the table")) -> None:
    """Show all services in both runtimes: health, image, GPU and memory use, address.

    ./lab status
    ./lab status --json
    """
    overview.show(json)


@task("show a service's log", "./lab status")
def logs(
    name: str = positional(help="service"),
    lines: int = option(50, "number of lines", "[0, inf)"),
    follow: bool = option(False, "keep printing new lines"),
) -> None:
    """Show the end of a service's log.

    ./lab logs oracle --follow
    """
    lifecycle.logs(name, lines, follow)


@task("open a shell", "./lab status", "runtime dry-run")
def shell(
    name: str = positional(help="environment or service"),
    command: str | None = option(None, "run this command line and exit"),
    runtime: str = "auto",
    dry_run: bool = False,
) -> None:
    """Open a shell in an environment: in its container, restricted like a service, or in its local environment.

    ./lab shell openvla
    ./lab shell libero --command "python -V"
    """
    finish(lifecycle.shell(name, runtime, command, dry_run))


@task(
    "measure a checkpoint", "./lab up {model} --checkpoint {checkpoint}", "gpu runtime dry-run",
    flags_for("verify", only=("checkpoint", "modes", "count", "image", "instruction")),
)  # fmt: skip
def verify(model: str = positional(kind="model", keywords=("verifier",)), **options: object) -> None:
    """Load a checkpoint, query actions, and report latency, its breakdown, and memory.

    ./lab verify openvla --checkpoint openvla-tiny
    ./lab verify openvla --modes bf16-sdpa,nf4
    """
    finish(programs.run(model, manifests.models()[model].verifier, [], options))


@task("export to ONNX", "./lab bench {model}", "runtime dry-run", flags_for("export"))
def export(
    model: str = positional(kind="model", keywords=("exporter",)),
    checkpoint: str | None = positional(None, "its name; default: the only one on the volume, else that in .env"),
    **options: object,
) -> None:
    """Export a checkpoint to ONNX, compare each module with PyTorch, and write the commands for TensorRT.

    ./lab export gr00t
    ./lab export gr00t gr00t-tiny --dtype fp16
    """
    available = checkpoints.available(model)
    checkpoint = checkpoint or compose.environment_variables().get(service_settings.variable(model, "CHECKPOINT"))
    if checkpoint or len(available) != 1:
        checkpoint = service_settings.existing_checkpoint(checkpoint or "", f"./lab checkpoint {model} --tiny")
    options["checkpoint"] = checkpoint or available[0]
    finish(programs.run(model, manifests.models()[model].exporter, [], options))
