"""`--fix` runs the findings' commands: safe ones at once, the others after confirmation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

from vlalab.doctor.check import FAIL, WARN, CheckResult
from vlalab.host import paths
from vlalab.host.console import confirm, log_info

# Commands with a placeholder, for the caller's shell, or for Windows.
MANUAL = re.compile(r"\b(?:SERVICE|ENV|MODEL|FILE|CERTIFICATE|SUITE)\b|^(?:unset|wsl\.exe)\b")


def apply(results: Sequence[CheckResult], yes: bool = False) -> list[str]:
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
