"""Programs for tests that no environment has: a browser, an SSH server and nginx. Root installs them with apt."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from vlalab.host import paths
from vlalab.host.console import log_info

MARKERS = {  # package → the marker of tests that are skipped without it
    "chromium": "skipif(browser.find()",
    "openssh-server": "skipif(ssh_server.SSHD",
    "nginx": "skipif(NGINX",
}
CHROME = "google-chrome-stable_current_amd64.deb"


def missing(parts: Sequence[str]) -> dict[str, list[str]]:
    """Return the missing packages: package → the parts whose tests are skipped without it."""
    from tests import browser, ssh_server

    installed = {"chromium": browser.find(), "openssh-server": ssh_server.find(), "nginx": shutil.which("nginx")}
    texts = {part: [path.read_text() for path in (paths.ROOT / "tests" / part).glob("**/test_*.py")] for part in parts}
    users = {
        package: [part for part in parts if any(marker in text for text in texts[part])]
        for package, marker in MARKERS.items()
        if installed[package] is None
    }
    return {package: names for package, names in users.items() if names}


def install(parts: Sequence[str]) -> None:
    """Install the missing packages of these parts with apt, as root on Debian or Ubuntu."""
    from tests.docker import packages

    if os.geteuid() == 0 and shutil.which("apt-get") and (names := missing(parts)):
        try:
            packages.install(*names)
        except packages.Unavailable as error:
            log_info(f"{error}; tests that need it are skipped")


def advice(parts: Sequence[str]) -> list[str]:
    """Return the command that installs missing programs and runs the skipped tests, as lines; empty if none."""
    packages = missing(parts)
    if not packages:
        return []
    sudo = "" if os.geteuid() == 0 else "sudo "
    skipped_parts = " ".join(part for part in parts if any(part in users for users in packages.values()))
    lines = [f"to run the skipped tests: {sudo}apt-get install -y {' '.join(packages)} && ./lab test {skipped_parts}"]
    if "chromium" in packages:
        lines.append(
            "where Chromium is only a snap, which does not run in containers (Ubuntu), install Chrome: curl -fsSLO "
            f"https://dl.google.com/linux/direct/{CHROME} && {sudo}apt-get install -y ./{CHROME}"
        )
    return lines
