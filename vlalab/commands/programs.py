"""Programs that run inside an environment: the benchmarks, bench/NAME.py, and the modules behind other tasks."""

from __future__ import annotations

import ast
import shlex
import sys
from pathlib import Path

from vlalab.description import compose, gpus, manifests, service_settings
from vlalab.environments import venvs
from vlalab.host import gl, paths
from vlalab.host.console import LabError, require_known, say
from vlalab.host.processes import supervise
from vlalab.runtimes import both, local


def benchmarks() -> list[str]:
    """Returns the benchmarks there are."""
    helpers = {"__init__", "common"}
    return sorted(path.stem for path in (paths.ROOT / "bench").glob("*.py") if path.stem not in helpers)


def described_benchmarks() -> list[tuple[str, str]]:
    """Returns each benchmark's name and what it measures."""
    return [(name, (ast.get_docstring(_parsed(name)) or "").partition("\n")[0].rstrip(".:")) for name in benchmarks()]


def _script(name: str) -> Path:
    return paths.ROOT / "bench" / f"{name}.py"


def _parsed(name: str) -> ast.Module:
    """Return a benchmark's syntax tree: it imports its environment's packages, which the host tool does not have."""
    return ast.parse(_script(name).read_text(encoding="utf-8"))


def environment_of(name: str) -> str:
    """Return the environment a benchmark names in its constant ENVIRONMENT ("host" is the host tool's own)."""
    for node in _parsed(name).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENVIRONMENT":
            return str(ast.literal_eval(node.value))
    return manifests.default_environment()


def words_of(options: str) -> list[str]:
    """Returns a program's flags as words, quoted as in a shell. Raises LabError where a quote does not end."""
    try:
        return shlex.split(options)
    except ValueError:
        raise LabError(f"--options {options!r} opens a quote that does not end") from None


def run_benchmark(name: str, flags: list[str]) -> int:
    """Runs a benchmark with its flags; returns its exit code."""
    require_known("benchmark", [name], benchmarks())
    script = _script(name)
    wanted = environment_of(name)
    if wanted == "host":
        return supervise([sys.executable, str(script), *flags], local.service_variables())
    env = venvs.ensure(wanted)
    if manifests.environment(wanted).needs_gl:
        gl.ensure()
    return supervise([str(env.python), str(script), *flags], local.service_variables(env))


def several_gpus(service: str, count: int, gpu: str | None) -> str | None:
    """Returns what --gpu is for `count` processes with a GPU each: as told; else the first, where there are so many.

    Raises LabError where fewer devices were named.
    """
    named = gpu or compose.environment_variables().get(gpus.variable(service))
    if count > 1 and named and named not in ("auto", "all", "none") and len(named.split(",")) < count:
        raise LabError(f"--gpus {count} needs a device for each process; --gpu {named} names {len(named.split(','))}")
    return gpu if count < 2 or named else gpus.first(count)


def run_module(
    service: str,
    module: str,
    arguments: list[str],
    runtime: str = "auto",
    dry_run: bool = False,
    gpu: str | None = "none",
    prefer: str | None = None,
) -> int:
    """Runs `python -m module` as that service would be run, in its environment or image; returns its exit code.

    gpu: what --gpu said, None for nothing. A program that has no use for one says none. prefer: the runtime that `auto`
    is, where it can be used.
    """
    variables = {**paths.of_caller(), **service_settings.merged({}, service_settings.from_flags(service, gpu=gpu))}
    environment = compose.read()[service].environment_name
    chosen, line = both.choose(runtime, [environment], prefer)
    say(line)
    command = ["python", "-m", module, *arguments]
    if not dry_run:
        chosen.prepare([environment])
    return chosen.run(service, command, variables, dry_run=dry_run)
