"""Programs that run in an environment: the benchmarks bench/NAME.py, and the modules behind other tasks."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vlalab.description import compose, gpus, manifests, service_settings
from vlalab.environments import venvs
from vlalab.host import gl, paths
from vlalab.host.console import LabError, log_info
from vlalab.host.processes import supervise
from vlalab.runtimes import interface, local

RUN_OPTIONS = ("runtime", "dry_run", "gpu")  # options of a task that control how its program runs


def benchmarks() -> list[str]:
    """Return the names of the benchmarks."""
    helpers = {"__init__", "common"}
    return sorted(path.stem for path in (paths.ROOT / "bench").glob("*.py") if path.stem not in helpers)


def described_benchmarks() -> list[tuple[str, str]]:
    """Return each benchmark's name and the first line of its docstring."""
    return [(name, (ast.get_docstring(_parsed(name)) or "").partition("\n")[0].rstrip(".:")) for name in benchmarks()]


def _parsed(name: str) -> ast.Module:
    """Return a benchmark's syntax tree; importing it would need its environment's packages."""
    return ast.parse((paths.ROOT / "bench" / f"{name}.py").read_text(encoding="utf-8"))


def run_benchmark(name: str, quick: bool, options: str) -> int:
    """Run a benchmark in the environment of its constant ENVIRONMENT ("host": the host tool's); return its exit code.

    options: further flags of its program, quoted as in a shell. Raise LabError for an unclosed quote.
    """
    try:
        # as a module: the directory of a script is searched for packages, and bench/lerobot.py would be LeRobot's
        arguments = ["-m", f"bench.{name}", *flags_of({"quick": quick}), *shlex.split(options)]
    except ValueError:
        raise LabError(f"--options {options!r} has an unclosed quote") from None
    environment = manifests.default_environment()
    for node in _parsed(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENVIRONMENT":
            environment = str(ast.literal_eval(node.value))
    if environment == "host":
        return supervise([sys.executable, *arguments], local.service_variables())
    env = venvs.ensure(environment)
    if manifests.environment(environment).needs_gl:
        gl.ensure()
    return supervise([str(env.python), *arguments], local.service_variables(env))


def models_with(program: str) -> tuple[str, ...]:
    """Return the models that have a program: getter, trainer, verifier …"""
    return tuple(name for name, model in manifests.models().items() if getattr(model, program))


def asset_getters() -> dict[str, str]:
    """Return job → the module that gets its assets."""
    return {name: benchmark.assets for name, benchmark in manifests.benchmarks().items() if benchmark.assets}


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return those of a task's options that control how its program runs, and the program's flags for the others."""
    run_options = {name: options[name] for name in RUN_OPTIONS if name in options}
    return run_options, tuple(flags_of({name: value for name, value in options.items() if name not in run_options}))


def run(
    service: str, module: str, arguments: Sequence[str], options: Mapping[str, Any], first: Sequence[str] = ()
) -> int:
    """Run a module with a task's options; return the exit code.

    Its command line is `first`, the flags, then `arguments`.
    """
    run_options, flags = split_options(options)
    return run_module(service, module, [*first, *flags, *arguments], **run_options)


def several_gpus(service: str, count: int, gpu: str | None) -> str | None:
    """Return --gpu for `count` processes with one GPU each: as given, else the first `count` if there are enough.

    Raise LabError if it has fewer devices.
    """
    named = gpu or compose.environment_variables().get(gpus.variable(service))
    if count > 1 and named and named not in ("auto", "all", "none") and len(named.split(",")) < count:
        raise LabError(f"--gpus {count} requires {count} devices in --gpu, got {named}")
    return gpu if count < 2 or named else gpus.first(count)


def train(service: str, module: str, arguments: Sequence[str], count: int, options: Mapping[str, Any]) -> int:
    """Run a trainer like `run`, in `count` processes on this machine with one GPU each."""
    options = {**options, "gpu": several_gpus(service, count, options["gpu"])}
    if count < 2:
        return run(service, module, arguments, options)
    launcher = ["--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={count}", "-m", module]
    return run(service, "torch.distributed.run", arguments, options, launcher)


def flags_of(values: Mapping[str, object]) -> list[str]:
    """Return a program's flags: {"max_steps": 5, "resume": True} → --max-steps 5 --resume."""
    flags: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            flags += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return flags


def run_module(
    service: str,
    module: str,
    arguments: Sequence[str],
    runtime: str = "auto",
    dry_run: bool = False,
    gpu: str | None = "none",
    prefer: str | None = None,
) -> int:
    """Run `python -m module` like that service, in its environment or image; return the exit code.

    gpu: the value of --gpu, None if not given, "none" for programs that use no GPU. prefer: the runtime for `auto`, if
    available.
    """
    settings = service_settings.merged({}, service_settings.from_flags(service, gpu=gpu))
    environment = compose.read()[service].environment_name
    selected, line = interface.choose(runtime, [environment], prefer)
    log_info(line)
    if not dry_run:
        selected.prepare([environment])
    command = ["python", "-m", module, *arguments]
    return selected.run(service, command, {**paths.caller_variables(), **settings}, dry_run=dry_run)
