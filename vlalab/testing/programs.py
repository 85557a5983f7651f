"""Programs that tests need and no environment has, a browser and an SSH server: by apt where root may install them."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlalab.host import paths
from vlalab.host.console import say

CHROME = "google-chrome-stable_current_amd64.deb"
CHROME_ADDRESS = f"https://dl.google.com/linux/direct/{CHROME}"


@dataclass(frozen=True)
class Program:
    """A package of the distribution; `marker` is what test files have that skip without it."""

    package: str
    marker: str
    find: Callable[[], str | None]


def missing(parts: Sequence[str]) -> dict[str, list[str]]:
    """Return the packages that tests of these parts skip without, each with those parts."""
    from tests import browser, ssh_server

    programs = (
        Program("chromium", "skipif(browser.find()", browser.find),
        Program("openssh-server", "skipif(ssh_server.SSHD", ssh_server.find),
    )
    absent = {one.package: one.marker for one in programs if one.find() is None}
    needed = {package: [part for part in parts if _mentions(part, marker)] for package, marker in absent.items()}
    return {package: users for package, users in needed.items() if users}


def _mentions(part: str, marker: str) -> bool:
    return any(marker in path.read_text() for path in (paths.ROOT / "tests" / part).glob("**/test_*.py"))


def install(parts: Sequence[str]) -> None:
    """Install by apt what tests of these parts skip without, as root on Debian or Ubuntu; report what cannot be had."""
    from tests.docker import packages

    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    if wanted := [package for package in missing(parts) if not _is_snap_only(package)]:
        try:
            packages.install(*wanted)
        except packages.Unavailable as error:
            say(f"{error}; tests that need it are skipped")


def advice(parts: Sequence[str]) -> list[str]:
    """Return what to type so that tests of these parts run that were skipped for want of a program; often nothing."""
    absent = missing(parts)
    if not absent:
        return []
    again = f"./lab test {' '.join(part for part in parts if any(part in users for users in absent.values()))}"
    if not shutil.which("apt-get"):
        names = " and ".join({"chromium": "Chromium or Chrome", "openssh-server": "sshd"}[one] for one in absent)
        return [f"to run the tests that were skipped for want of them, install {names}, then: {again}"]
    sudo = "" if os.geteuid() == 0 else "sudo "
    lines, files, fetch = [], [*absent], ""
    if snap := [one for one in files if _is_snap_only(one)]:
        lines = ["Ubuntu has Chromium as a snap only, which does not run in containers; the tests also take Chrome"]
        files = [one for one in files if one not in snap] + [f"./{CHROME}"]
        fetch = f"curl -fsSLO {CHROME_ADDRESS} && "
    command = f"{fetch}{sudo}apt-get install -y {' '.join(files)} && {again}"
    return [*lines, f"to run the tests that were skipped for want of {' and '.join(absent)}: {command}"]


def _is_snap_only(package: str) -> bool:
    """Return whether apt has a stub alone: Ubuntu's chromium-browser asks for a snap, and there is no chromium."""
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return package == "chromium" and release.get("ID") == "ubuntu"
