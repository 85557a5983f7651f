"""Programs that tests need and no environment has: a browser, an SSH server and nginx, installed by apt as root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from vlalab.host import paths
from vlalab.host.console import say

CHROME = "google-chrome-stable_current_amd64.deb"
CHROME_ADDRESS = f"https://dl.google.com/linux/direct/{CHROME}"


def missing(parts: Sequence[str]) -> dict[str, list[str]]:
    """Return the missing packages, each with those of the parts whose test files skip without it."""
    from tests import browser, ssh_server

    programs = (
        ("chromium", "skipif(browser.find()", browser.find),
        ("openssh-server", "skipif(ssh_server.SSHD", ssh_server.find),
        ("nginx", "skipif(NGINX", lambda: shutil.which("nginx")),
    )
    users = {
        package: [
            part for part in parts
            if any(marker in path.read_text() for path in (paths.ROOT / "tests" / part).glob("**/test_*.py"))
        ]
        for package, marker, find in programs if find() is None
    }  # fmt: skip
    return {package: names for package, names in users.items() if names}


def install(parts: Sequence[str]) -> None:
    """Install by apt, as root on Debian or Ubuntu, what tests of these parts skip without."""
    from tests.docker import packages

    if os.geteuid() == 0 and shutil.which("apt-get") and (names := missing(parts)):
        try:
            packages.install(*names)
        except packages.Unavailable as error:
            say(f"{error}; tests that need it are skipped")


def advice(parts: Sequence[str]) -> list[str]:
    """Return the command that installs missing programs and runs the skipped tests, as a list of lines; often empty."""
    absent = missing(parts)
    if not absent:
        return []
    again = "./lab test " + " ".join(part for part in parts if any(part in users for users in absent.values()))
    sudo = "" if os.geteuid() == 0 else "sudo "
    lines = [f"to run the skipped tests: {sudo}apt-get install -y {' '.join(absent)} && {again}"]
    if "chromium" in absent:
        lines.append(
            "where Chromium is only a snap, which does not run in containers (Ubuntu), install Chrome: "
            f"curl -fsSLO {CHROME_ADDRESS} && {sudo}apt-get install -y ./{CHROME}"
        )
    return lines
