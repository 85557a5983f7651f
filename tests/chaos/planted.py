"""Planted files: what whoever writes to the volume, or hands over a bundle, can make `./lab` do."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults import damage
from tests.chaos.ledger import Ledger
from tests.libero.harness import ENVIRONMENT, ROOT
from vla_common.volume import DIRECTORIES

LAYOUT = (*DIRECTORIES, "notebooks/deep", "tmp")
NAMES = ("oracle.json", "oracle.log", "oracle.settings.json", "settings.json", "ui.json", "a.log", "run.sqlite",
         "run.lock", "x", "config.json")  # fmt: skip
OTHER_USER = 54321  # owner that a volume is prepared for
COMMANDS = (("status",), ("down",), ("runs",), ("logs", "oracle"), ("status",))
LINKS = "planted links and state files: nothing outside the volume is touched, nothing planted is run"
BUNDLES = "damaged bundles: refused in words, or restored whole"
LIMIT_S = 120.0


@dataclass
class Canary:
    """A file and a folder outside the volume: as they were, or somebody followed a link."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self.file, self.ran = self.directory / "canary", self.directory / "ran"
        self.file.write_text("mine")
        self.file.chmod(0o640)
        self.before = self.look()

    def holds(self, path: Path) -> bool:
        """Return whether a path leads here."""
        real = path.resolve()
        return self.directory.resolve() in (real, *real.parents)

    def look(self) -> list[tuple]:
        """Return names, owners, modes and contents."""
        paths = [self.directory, *sorted(self.directory.rglob("*"))]
        attributes = [
            (p.name, p.lstat().st_uid, p.lstat().st_gid, p.lstat().st_mode, p.lstat().st_nlink) for p in paths
        ]
        return [*attributes, self.file.read_text()]


def plant(volume: Path, canary: Canary, draw: random.Random) -> list[str]:
    """Plant a few things on a volume; returns what."""
    description = []
    for _ in range(draw.randrange(1, 5)):
        directory = volume / draw.choice(LAYOUT)
        if canary.holds(directory):  # by a link that was planted before
            continue
        if draw.random() < 0.2 and not os.path.lexists(directory) and directory.parent.is_dir():
            directory.symlink_to(canary.directory)
            description.append(f"link {directory.name}")
            continue
        if draw.random() < 0.5:
            directory = directory / draw.choice((platform.node(), "libero_goal-x", ".", "tensorboard"))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            description.append(_plant_file(directory / draw.choice(NAMES), canary, draw))
        except (FileExistsError, NotADirectoryError):
            continue
    return description


def _plant_file(path: Path, canary: Canary, draw: random.Random) -> str:
    if os.path.lexists(path) or canary.holds(path):
        return "nothing"
    if draw.random() < 0.5:
        path.symlink_to(draw.choice((canary.file, canary.directory, canary.directory / "new")))
        return f"link {path.name}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    state = {
        "name": "oracle", "service": "oracle", "url": "http://127.0.0.1:1", "started": 0, "log_path": str(canary.file),
        "health": ["/bin/sh", "-c", f"touch {canary.ran}"], "command": ["/bin/sh", "-c", f"touch {canary.ran}"],
        "supervisor": {"pid": 1, "start": 1, "boot": boot}, "child": None,
    }  # fmt: skip
    path.write_text(json.dumps(state))
    return f"state {path.name}"


def lab(arguments: tuple[str, ...], launcher: Path, volume: Path, directory: Path) -> subprocess.CompletedProcess:
    """Run `./lab` on that volume, with a state folder of this attack's own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_")}
    variables = {**inherited, "VLALAB_VOLUME": str(volume), "XDG_STATE_HOME": str(directory / "state")}
    return run([str(launcher), *arguments], variables)


def run(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, env=variables, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip


def links(directory: Path, launcher: Path, draw: random.Random, ledger: Ledger) -> None:
    """Plants, calls `./lab` and the preparation of a volume, and looks at the canary."""
    target = Path(tempfile.mkdtemp(prefix="planted-", dir=directory))
    volume, canary = target / "volume", Canary(target / "outside")
    volume.mkdir()
    description = plant(volume, canary, draw)
    arguments = draw.choice(COMMANDS)
    outputs = [lab(arguments, launcher, volume, target)]
    if os.geteuid() == 0:
        command = [sys.executable, "-m", "vla_common.volume", str(OTHER_USER), str(OTHER_USER)]
        outputs.append(run(command, {**ENVIRONMENT, "VLALAB_VOLUME": str(volume)}))
    output = "".join(done.stdout + done.stderr for done in outputs)
    untouched = canary.look() == canary.before
    story = f"{description}, ./lab {' '.join(arguments)}: {'' if untouched else canary.look()} {output[-600:]}"
    ledger.count(LINKS, untouched and "Traceback" not in output, story)
    shutil.rmtree(target)


class Bundles:
    """A small bundle, and what comes of damaged copies of it."""

    def __init__(self, directory: Path, launcher: Path):
        self.directory, self.launcher = directory, launcher
        volume = directory / "bundled"
        self.files = {
            "checkpoints/tiny/weights": random.Random(0).randbytes(200_000),
            "checkpoints/tiny/config.json": b"{}",
        }
        for name, data in self.files.items():
            (volume / name).parent.mkdir(parents=True, exist_ok=True)
            (volume / name).write_bytes(data)
        self.path = directory / "lab.bundle"
        self.made = lab(("bundle", str(self.path), "--checkpoints", "tiny", "--no-host"), launcher, volume, directory)

    def restore_damaged(self, draw: random.Random, ledger: Ledger) -> None:
        """Restore one damaged copy onto an empty volume."""
        target = Path(tempfile.mkdtemp(prefix="bundle-", dir=self.directory))
        copy, volume = target / "lab.bundle", target / "volume"
        shutil.copy(self.path, copy)
        damage(copy, draw)
        done = lab(("restore", str(copy)), self.launcher, volume, target)
        changes = {
            str(p.relative_to(volume)): p.read_bytes() for p in volume.rglob("*") if p.is_file() and not p.is_symlink()
        }
        content = changes == self.files
        passed = (content if done.returncode == 0 else not changes) and "Traceback" not in done.stderr
        ledger.count(BUNDLES, passed, f"exit {done.returncode}, {sorted(changes)}: {done.stderr[-500:]}")
        shutil.rmtree(target)


def attack(directory: Path, launcher: Path, seed: int, until: float, ledger: Ledger) -> None:
    """Plant and damages until that moment."""
    bundles, number = Bundles(directory, launcher), 0
    if bundles.made.returncode:
        ledger.count(BUNDLES, False, bundles.made.stderr[-500:])
    while number == 0 or time.monotonic() < until:
        draw = random.Random(f"{seed}/planted/{number}")
        links(directory, launcher, draw, ledger)
        if not bundles.made.returncode:
            bundles.restore_damaged(draw, ledger)
        number += 1
