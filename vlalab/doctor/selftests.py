"""An environment's own self-test as results: the one that its image's build runs (images/common/selftest.py)."""

from __future__ import annotations

import json
import subprocess

from vlalab.doctor.types import FAIL, SKIP, Case, Check, Finding, Result, fail, ok
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths

LIMIT_S = 560.0


def run(name: str, case: Case) -> list[Result]:
    """Returns what an environment's self-test found, check by check, in its image where that is built, else here."""
    command, where = _command(name, case)
    if not command:
        return [
            _result(
                name,
                "self-test",
                Finding(SKIP, "neither its image nor its environment is of this lock", f"./lab env {name}"),
            )
        ]
    try:
        # Standard input is closed: an import that asks a question fails instead of waiting.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            cwd=case.root,
            env=_variables(name, case),
        )
        found = json.loads(done.stdout[done.stdout.index("{") :])["checks"]
    except subprocess.TimeoutExpired:
        return [_result(name, "self-test", fail(f"not done within {LIMIT_S:.0f} s ({where})"))]
    except (ValueError, KeyError):
        words = done.stderr.strip().splitlines() or ["it says nothing"]
        return [
            _result(
                name, "self-test", fail(f"it ended with code {done.returncode}: {words[-1]}", fix=f"./lab env {name}")
            )
        ]
    return [_result(name, part, _finding(name, one), one["seconds"]) for part, one in found.items()]


def _command(name: str, case: Case) -> tuple[list[str], str]:
    script = f"images/{name}/selftest.py"
    image = {} if docker.available() else images.found([name])
    if name in image and image[name].fits():
        inside = [
            "run",
            "--rm",
            "--read-only",
            "--tmpfs",
            "/tmp:exec",
            images.reference(name),
            "python",
            script,
            "--json",
        ]
        return docker.command(inside), "in its image"
    env = venvs.named(name, case.root)
    return ([str(env.python), script, "--json"], "here") if env.is_ready() else ([], "")


def _variables(name: str, case: Case) -> dict[str, str]:
    return {**case.machine.variables, **venvs.named(name, case.root).variables(), "PYTHONPATH": paths.python_path()}


def _finding(name: str, told: dict) -> Finding:
    lines = str(told["found"]).strip().splitlines() or [""]
    return ok(lines[-1]) if told["ok"] else fail(lines[-1], fix=f"./lab env {name}", facts={"words": lines})


def _result(name: str, part: str, finding: Finding, seconds: float = 0.0) -> Result:
    id = f"{name}:{part.replace(' ', '-')}"
    about = f"Part of images/{name}/selftest.py."
    return Result(
        Check(id, f"{name} {part}", about, FAIL, f"./lab env {name}", lambda case: finding, name), finding, seconds
    )
