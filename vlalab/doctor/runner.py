"""Run the checks in parallel, each within its time limit; self-tests of environments; and `--fix`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from vlalab.description import variants
from vlalab.doctor.check import (
    FAIL,
    GROUPS,
    REGISTERED,
    WARN,
    Check,
    CheckResult,
    Context,
    Finding,
    fail,
    ok,
    skip,
    warn,
)  # fmt: skip
from vlalab.doctor.checks import graphics, host, network, nvidia, project, volume  # noqa: F401  they register
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError, confirm, log_info

LATE = "try again when the machine is less busy"
SELFTEST_S = 560.0
# Commands with a placeholder, for the caller's shell, or for Windows.
MANUAL = re.compile(r"\b(?:SERVICE|ENV|MODEL|FILE|CERTIFICATE|SUITE)\b|^(?:unset|wsl\.exe)\b")


def checks() -> list[Check]:
    """Return every check in the order of the table."""
    return sorted(REGISTERED, key=lambda check: GROUPS.index(check.group))


def checks_by_id(ids: Sequence[str]) -> list[Check]:
    """Return the checks with those ids."""
    return [check for check in checks() if check.id in ids]


def run(selected: Sequence[Check], context: Context, limit_s: float = float("inf")) -> list[CheckResult]:
    """Return the result of each check, in their order. limit_s: upper bound on each check's own limit.

    A check that fails or hangs affects no other.
    """
    results: dict[str, CheckResult] = {}

    def run_check(check: Check) -> None:
        started, error = time.monotonic(), ""
        try:
            finding = check.run(context)
        except LabError as lab_error:
            finding, error = warn(lab_error.text, fix=""), lab_error.text
        except TimeoutError as late:
            finding, error = warn(str(late), fix="", hint=LATE), str(late)
        except Exception as bug:  # a bug in a check must not take the others along
            error = f"{type(bug).__name__}: {bug}"
            finding = warn(f"the check itself failed ({error})", fix="", hint="report it with ./lab doctor --json")
        results.setdefault(check.id, CheckResult(check, finding, time.monotonic() - started, error))

    # Daemon threads, since a check that hangs must not keep the process alive.
    threads = [threading.Thread(target=run_check, args=(check,), daemon=True) for check in selected]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for check, thread in zip(selected, threads, strict=True):
        limit = min(max(check.limit_s, check.named_limit_s if context.environments else 0.0), limit_s)
        thread.join(max(0.0, started + limit - time.monotonic()))
        error = f"no answer within {limit:g} s"
        results.setdefault(check.id, CheckResult(check, warn(error, fix="", hint=LATE), limit, error))
    return [results[check.id] for check in selected]


def run_selftest(name: str, context: Context) -> list[CheckResult]:
    """Return the results of an environment's self-test, run in its image where that is built, else locally."""
    env, script = venvs.get(name, context.root), ["images/common/selftest.py", name.partition("-")[0]]

    def result(part: str, finding: Finding, seconds: float = 0.0) -> CheckResult:
        id, meaning = f"{name}:{part.replace(' ', '-')}", f"Part of images/{script[1]}/selftest.py."
        check = Check(
            id, f"{name} {part}", FAIL, f"./lab env {variants.format_flags(name)}", lambda _: finding, meaning, name
        )
        return CheckResult(check, check.run(context), seconds)

    image = None if docker.available() else images.existing([name]).get(name)
    if image and image.fits():
        options = ["--rm", "--read-only", "--tmpfs", "/tmp:exec", images.reference(name)]
        command, location = docker.command(["run", *options, "python", *script, "--json"]), "in its image"
    elif env.is_ready():
        command, location = [str(env.python), *script, "--json"], "locally"
    else:
        return [result("self-test", skip("neither an image nor an environment of this lock exists"))]
    variables = {**context.machine.variables, **env.variables(), "PYTHONPATH": paths.python_path()}
    try:
        # Standard input is closed: an import that asks a question fails instead of waiting.
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=SELFTEST_S, cwd=context.root,
            env=variables,
        )  # fmt: skip
        parts = json.loads(done.stdout[done.stdout.index("{") :])["checks"]
    except subprocess.TimeoutExpired:
        return [result("self-test", fail(f"not finished within {SELFTEST_S:.0f} s ({location})", ""))]
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [result("self-test", fail(f"it ended with code {done.returncode}: {last}"))]
    results = []
    for part, report in parts.items():
        lines = str(report["found"]).strip().splitlines() or [""]
        finding = ok(lines[-1]) if report["ok"] else fail(lines[-1], details={"words": lines})
        results.append(result(part, finding, report["seconds"]))
    return results


def apply_fixes(results: Sequence[CheckResult], yes: bool = False) -> list[str]:
    """Run the fixes and return the ids of the fixed checks. Without a terminal, unsafe ones need `yes`."""
    fixed = []
    for result in results:
        finding, command = result.finding, result.finding.fix
        if finding.verdict not in (WARN, FAIL) or not command or MANUAL.search(command):
            continue
        if not finding.safe and not yes:
            if not sys.stdin.isatty():
                log_info(f"{result.check.id} needs confirmation; run the command, or add --yes: {command}")
                continue
            if not confirm(f"{result.check.title}: {finding.reason}\n  run `{command}`?"):
                continue
        command = command.replace("sudo ", "") if os.geteuid() == 0 else command
        log_info(f"$ {command}")
        if subprocess.run(["/bin/sh", "-c", command], cwd=paths.ROOT).returncode == 0:
            fixed.append(result.check.id)
    return fixed
