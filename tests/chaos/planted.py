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
NAMES = (
    "oracle.json",
    "oracle.log",
    "oracle.settings.json",
    "settings.json",
    "ui.json",
    "a.log",
    "run.sqlite",
    "run.lock",
    "x",
    "config.json",
)
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
        """Returns whether a path leads here."""
        real = path.resolve()
        return self.directory.resolve() in (real, *real.parents)

    def look(self) -> list[tuple]:
        """Returns names, owners, modes and contents."""
        places = [self.directory, *sorted(self.directory.rglob("*"))]
        facts = [(p.name, p.lstat().st_uid, p.lstat().st_gid, p.lstat().st_mode, p.lstat().st_nlink) for p in places]
        return [*facts, self.file.read_text()]


def plant(volume: Path, canary: Canary, draw: random.Random) -> list[str]:
    """Plants a few things on a volume; returns what."""
    told = []
    for _ in range(draw.randrange(1, 5)):
        directory = volume / draw.choice(LAYOUT)
        if canary.holds(directory):  # by a link that was planted before
            continue
        if draw.random() < 0.2 and not os.path.lexists(directory) and directory.parent.is_dir():
            directory.symlink_to(canary.directory)
            told.append(f"link {directory.name}")
            continue
        if draw.random() < 0.5:
            directory = directory / draw.choice((platform.node(), "libero_goal-x", ".", "tensorboard"))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            told.append(_plant_one(directory / draw.choice(NAMES), canary, draw))
        except (FileExistsError, NotADirectoryError):
            continue
    return told


def _plant_one(path: Path, canary: Canary, draw: random.Random) -> str:
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


def lab(words: tuple[str, ...], launcher: Path, volume: Path, place: Path) -> subprocess.CompletedProcess:
    """Runs `./lab` on that volume, with a state folder of this attack's own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("VLALAB_")}
    variables = {**kept, "VLALAB_VOLUME": str(volume), "XDG_STATE_HOME": str(place / "state")}
    return subprocess.run(
        [str(launcher), *words],
        env=variables,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def links(place: Path, launcher: Path, draw: random.Random, ledger: Ledger) -> None:
    """Plants, calls `./lab` and the preparation of a volume, and looks at the canary."""
    here = Path(tempfile.mkdtemp(prefix="planted-", dir=place))
    volume, canary = here / "volume", Canary(here / "outside")
    volume.mkdir()
    told = plant(volume, canary, draw)
    words = draw.choice(COMMANDS)
    outputs = [lab(words, launcher, volume, here)]
    if os.geteuid() == 0:
        command = [sys.executable, "-m", "vla_common.volume", str(OTHER_USER), str(OTHER_USER)]
        outputs.append(
            subprocess.run(
                command,
                env={**ENVIRONMENT, "VLALAB_VOLUME": str(volume)},
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        )
    said = "".join(done.stdout + done.stderr for done in outputs)
    untouched = canary.look() == canary.before
    story = f"{told}, ./lab {' '.join(words)}: {'' if untouched else canary.look()} {said[-600:]}"
    ledger.count(LINKS, untouched and "Traceback" not in said, story)
    shutil.rmtree(here)


class Bundles:
    """A small bundle, and what comes of damaged copies of it."""

    def __init__(self, place: Path, launcher: Path):
        self.place, self.launcher = place, launcher
        volume = place / "bundled"
        self.files = {
            "checkpoints/tiny/weights": random.Random(0).randbytes(200_000),
            "checkpoints/tiny/config.json": b"{}",
        }
        for name, data in self.files.items():
            (volume / name).parent.mkdir(parents=True, exist_ok=True)
            (volume / name).write_bytes(data)
        self.path = place / "lab.bundle"
        self.made = lab(("bundle", str(self.path), "--checkpoints", "tiny", "--no-host"), launcher, volume, place)

    def one(self, draw: random.Random, ledger: Ledger) -> None:
        """Restores one damaged copy onto an empty volume."""
        here = Path(tempfile.mkdtemp(prefix="bundle-", dir=self.place))
        copy, volume = here / "lab.bundle", here / "volume"
        shutil.copy(self.path, copy)
        damage(copy, draw)
        done = lab(("restore", str(copy)), self.launcher, volume, here)
        found = {
            str(p.relative_to(volume)): p.read_bytes() for p in volume.rglob("*") if p.is_file() and not p.is_symlink()
        }
        whole = found == self.files
        held = (whole if done.returncode == 0 else not found) and "Traceback" not in done.stderr
        ledger.count(BUNDLES, held, f"exit {done.returncode}, {sorted(found)}: {done.stderr[-500:]}")
        shutil.rmtree(here)


def attack(place: Path, launcher: Path, seed: int, until: float, ledger: Ledger) -> None:
    """Plants and damages until that moment."""
    bundles, number = Bundles(place, launcher), 0
    if bundles.made.returncode:
        ledger.count(BUNDLES, False, bundles.made.stderr[-500:])
    while number == 0 or time.monotonic() < until:
        draw = random.Random(f"{seed}/planted/{number}")
        links(place, launcher, draw, ledger)
        if not bundles.made.returncode:
            bundles.one(draw, ledger)
        number += 1
