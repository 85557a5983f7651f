"""Programs that run inside an environment: the benchmarks, bench/NAME.py, and the modules behind other tasks."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from vlalab import environments, evaluation, gl, local, paths
from vlalab.console import LabError, unknown

DEFAULT_ENVIRONMENT = "libero"


def benchmarks() -> list[str]:
    """Returns the benchmarks there are."""
    helpers = {"__init__", "common"}
    return sorted(path.stem for path in (paths.ROOT / "bench").glob("*.py") if path.stem not in helpers)


def environment_of(script: Path) -> str:
    """Returns the environment a benchmark names in its constant ENVIRONMENT ("host" is the host tool's own)."""
    for node in ast.parse(script.read_text()).body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", "") for t in node.targets] == ["ENVIRONMENT"]:
            return str(ast.literal_eval(node.value))
    return DEFAULT_ENVIRONMENT


def run_benchmark(name: str, flags: list[str]) -> int:
    """Runs a benchmark with its flags; returns its exit code."""
    if name not in benchmarks():
        raise LabError(unknown("benchmark", name, benchmarks()))
    script = paths.ROOT / "bench" / f"{name}.py"
    wanted = environment_of(script)
    if wanted == "host":
        return evaluation.supervise([sys.executable, str(script), *flags], local.service_variables())
    env = environments.ensure(wanted)
    if wanted == "libero":
        gl.ensure()
    return evaluation.supervise([str(env.python), str(script), *flags], local.service_variables(env))


def absolute_if_path(text: str | None, keywords: tuple[str, ...] = ()) -> str | None:
    """Returns a path absolute, since programs run in the repository; a keyword, a name or None stays as it is."""
    if text is None or text in keywords or not ("/" in text or Path(text).is_dir()):
        return text
    return str(Path(text).expanduser().absolute())


def run_module(environment: str, module: str, arguments: list[str]) -> int:
    """Runs `python -m module` inside an environment; returns its exit code."""
    env = environments.ensure(environment)
    return evaluation.supervise([str(env.python), "-m", module, *arguments], local.service_variables(env))
