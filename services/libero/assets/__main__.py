"""`python -m services.libero.assets {status|kit|official}`: shows or fetches the assets on the shared volume."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from services.libero.assets import official, plus, pro, resolve
from services.libero.assets.official import DownloadError
from services.libero.assets.sources import ensure_kit
from services.libero.simulator import pro_objects
from vla_common import endings
from vla_common.volume import Volume

LICENCE = (
    "licence: LIBERO's code is MIT, its data sets are CC BY 4.0 (attribution); none is stated for the assets alone\n"
    "stated at: github.com/Lifelong-Robot-Learning/LIBERO"
)


@dataclass
class AssetCommand:
    """Shows which assets an evaluation would use, writes the kit, or fetches the official files."""

    action: Annotated[Literal["status", "kit", "official"], tyro.conf.Positional] = "status"
    volume: Path | None = None  # the shared volume; default $VLALAB_VOLUME, else shared/volume
    assets: str | None = None  # what an evaluation would be given as --assets
    threads: int = 4  # files fetched at a time
    all: bool = False  # with official: LIBERO-PRO's objects too (360 MB of wheels), and LIBERO-plus's difficulties
    verify: bool = False  # read every file, also those that have not changed since they were last read


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main(command: AssetCommand) -> None:
    """Run one command; print the result. Raises ValueError or OSError with the reason otherwise."""
    volume = Volume(command.volume).root
    if command.all and command.action != "official":
        raise ValueError(f"--all goes with official, not with {command.action}: the kit has LIBERO-PRO's objects")
    if command.action == "kit":
        source = ensure_kit(volume)
    elif command.action == "official":
        say(LICENCE)
        _download(volume, command.threads)
        if command.all:
            pro.download(volume, say)
            try:
                plus.fetch_levels(volume, say)
            except DownloadError as error:  # the rest works without them
                say(str(error))
        source = resolve("official", volume, whole=True)
    else:
        source = resolve(command.assets, volume, whole=command.verify)
    print(f"assets: {source.kind}\nfolder: {source.path}\ndigest: {source.digest}")
    if lacking := pro.missing(source.path, pro_objects.LIKE):
        count = f"{len(lacking)} of its {len(pro_objects.LIKE)} objects"
        print(f"LIBERO-PRO: {count} are missing; `./lab assets libero --all` fetches them")
    if command.action == "status":
        counts = ", ".join(f"{kind} {good} of {count}" for kind, (good, count) in plus.buildable(source.path).items())
        print(f"LIBERO-plus, tasks whose files are there: {counts}")


def _download(volume: Path, threads: int) -> None:
    """Fetches the official files with a bar, or with a line per tenth where nobody watches."""
    columns = TextColumn("LIBERO assets"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=endings.console(), disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("assets", total=None)

        def show(done: int, total: int, path: str) -> None:
            bar.update(task, completed=done, total=total)
            if not sys.stdout.isatty() and done * 10 // total > getattr(show, "tenth", -1):
                show.tenth = done * 10 // total
                say(f"{done / 1e6:.0f} of about {total / 1e6:.0f} MB")

        official.download(volume, progress=show, threads=threads, say=say)


if __name__ == "__main__":
    endings.run(lambda: main(tyro.cli(AssetCommand)))
