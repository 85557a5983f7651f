"""`--fix`: types the commands that the findings name; safe ones at once, the others after a yes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

from vlalab.doctor.types import FAIL, WARN, Result
from vlalab.host import paths
from vlalab.host.console import agreed, say

PLACEHOLDER = re.compile(r"\b(?:SERVICE|ENV|MODEL|FILE|CERTIFICATE|PLACE|FOLDER|SUITE)\b")


def mend(results: Sequence[Result], yes: bool = False) -> list[str]:
    """Returns the ids of what was mended. What is not safe is asked for; on a pipe it is done with `yes` alone."""
    done = []
    for one in results:
        command = one.finding.fix
        if one.finding.verdict not in (WARN, FAIL) or not command or not _can_run(command):
            continue
        if (
            one.finding.safe
            or yes
            or (sys.stdin.isatty() and agreed(f"{one.check.title}: {one.finding.why}\n  run `{command}`?"))
        ):
            done += [one.check.id] if _run(command) else []
        elif not sys.stdin.isatty():
            say(f"{one.check.id} is not mended without a yes: {command} (--yes)")
    return done


def _can_run(command: str) -> bool:
    """Returns whether it is a whole command: no place for a name in it, and nothing of the caller's shell."""
    return not PLACEHOLDER.search(command) and shlex.split(command)[0] not in (
        "unset",
        "ulimit",
        "top",
        "ss",
        "wsl.exe",
    )


def _run(command: str) -> bool:
    plain = command.replace("sudo ", "") if os.geteuid() == 0 else command
    say(f"$ {plain}")
    return subprocess.run(["/bin/sh", "-c", plain], cwd=paths.ROOT).returncode == 0
