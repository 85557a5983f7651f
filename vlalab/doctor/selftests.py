"""The self-test of an environment, which its image's build runs too (images/common/selftest.py), as results."""

from __future__ import annotations

import json
import subprocess

from vlalab.description import variants
from vlalab.doctor.check import FAIL, Check, CheckResult, Context, Finding, fail, ok, skip
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths

LIMIT_S = 560.0


def run(name: str, context: Context) -> list[CheckResult]:
    """Return the results of an environment's self-test, run in its image where that is built, else locally."""
    env, script = venvs.get(name, context.root), f"images/{name.partition('-')[0]}/selftest.py"

    def result(part: str, finding: Finding, seconds: float = 0.0) -> CheckResult:
        id, meaning = f"{name}:{part.replace(' ', '-')}", f"Part of {script}."
        check = Check(
            id, f"{name} {part}", FAIL, f"./lab env {variants.format_flags(name)}", lambda _: finding, meaning, name
        )
        return CheckResult(check, check.run(context), seconds)

    image = None if docker.available() else images.existing([name]).get(name)
    if image and image.fits():
        options = ["--rm", "--read-only", "--tmpfs", "/tmp:exec", images.reference(name)]
        command, location = docker.command(["run", *options, "python", script, "--json"]), "in its image"
    elif env.is_ready():
        command, location = [str(env.python), script, "--json"], "locally"
    else:
        return [result("self-test", skip("neither an image nor an environment of this lock exists"))]
    variables = {**context.machine.variables, **env.variables(), "PYTHONPATH": paths.python_path()}
    try:
        # Standard input is closed: an import that asks a question fails instead of waiting.
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S, cwd=context.root,
            env=variables,
        )  # fmt: skip
        parts = json.loads(done.stdout[done.stdout.index("{") :])["checks"]
    except subprocess.TimeoutExpired:
        return [result("self-test", fail(f"not finished within {LIMIT_S:.0f} s ({location})", ""))]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [result("self-test", fail(f"it ended with code {done.returncode}: {last}"))]
    results = []
    for part, report in parts.items():
        lines = str(report["found"]).strip().splitlines() or [""]
        finding = ok(lines[-1]) if report["ok"] else fail(lines[-1], details={"words": lines})
        results.append(result(part, finding, report["seconds"]))
    return results
