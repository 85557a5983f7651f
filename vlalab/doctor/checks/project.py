"""The clone's environments, images and settings."""

from __future__ import annotations

import os
import re
import shlex
import stat

from vlalab.description import variants
from vlalab.description.environment_file import read_dotenv
from vlalab.doctor.check import FAIL, WARN, Context, Finding, check, fail, from_refusal, ok, skip, warn
from vlalab.doctor.checks.docker import ENGINE
from vlalab.engine import images
from vlalab.environments import pythons, venvs
from vlalab.host.console import LabError

SECRETS = re.compile(r"(?m)^\s*(?:export\s+)?\w*(?:TOKEN|PASSWORD|SECRET|INDEX|KEY)\w*\s*=\s*\S")


@check("environments", "environments", FAIL, "./lab env ENV", limit_s=5.0)
def environments(context: Context) -> Finding:
    """An environment of another lock is not the tested one."""
    made = [env for name in context.selected() if os.path.lexists((env := venvs.get(name, context.root)).python)]
    for env in made:
        if context.machine.run(str(env.python), "-I", "-c", "pass").code != 0:
            return fail(
                f"the Python of environment {env.name} does not run", f"./lab env {variants.format_flags(env.name)}"
            )
    for env in made:
        if not env.is_ready():
            return warn(
                f"environment {env.name} was installed from another lock",
                f"./lab env {variants.format_flags(env.name)}",
            )
    for env in (venvs.get(name, context.root) for name in context.environments):
        if env not in made and not any(pythons.find(version) for version in env.versions):
            reason = f"environment {env.name} needs Python {' or '.join(env.versions)}, which is not installed"
            return warn(reason, "", f"uv downloads one if the network allows it; or install it ({env.installation})")
    return ok(", ".join(env.name for env in made)) if made else skip("none is installed yet; the first use installs it")


@check("images", "images", WARN, "./lab build ENV", requires=(ENGINE,))
def built_images(context: Context) -> Finding:
    """A container would run versions that differ from the lock."""
    built = images.existing(list(context.selected()))
    if not built:
        return skip("none is built")
    for name, image in built.items():
        if problem := images.unusable(name, image):
            return from_refusal(WARN, problem.replace("; run: ", "; "))
    return ok(", ".join(f"{name} ({image.age()} old)" for name, image in built.items()))


@check("settings", ".env", FAIL, "chmod 600 .env")
def settings(context: Context) -> Finding:
    """Other users must not be able to read a token."""
    path = context.root / ".env"
    try:
        text, mode = path.read_text(), stat.S_IMODE(path.stat().st_mode)
        variables = read_dotenv(path)
    except FileNotFoundError:
        return skip("no .env: every setting has its default")
    except (OSError, LabError, UnicodeDecodeError) as error:
        return fail(f".env cannot be read: {error}", "", "correct it; .env.example shows how")
    if mode & (stat.S_IRGRP | stat.S_IROTH) and SECRETS.search(text):
        reason = f".env contains a token or password, and its mode {mode:o} lets other users read it"
        return fail(reason, f"chmod 600 {shlex.quote(str(path))}", safe=True)
    return ok(f"{len(variables)} settings in .env, mode {mode:o}")
