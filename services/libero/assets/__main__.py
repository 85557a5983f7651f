"""`python -m services.libero.assets {status|kit|official}`: show or download the assets on the shared volume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from services.libero.assets import official, plus, pro, resolve
from services.libero.assets.official import DownloadError
from services.libero.assets.sources import ensure_kit
from services.libero.simulator.pro import LIKE
from vla_common import entrypoint
from vla_common.volume import Volume

LICENCE = (
    "licence: LIBERO's code is MIT, its data sets are CC BY 4.0 (attribution); the assets have no separate licence\n"
    "source: github.com/Lifelong-Robot-Learning/LIBERO"
)


@dataclass
class AssetCommand:
    """Show the assets that an evaluation would use, write the kit, or download the official files."""

    action: Annotated[Literal["status", "kit", "official"], tyro.conf.Positional] = "status"
    volume: Path | None = None  # the shared volume; default $VLALAB_VOLUME, else shared/volume
    assets: str | None = None  # as --assets of an evaluation
    threads: int = 4  # parallel downloads
    all: bool = False  # with official: also LIBERO-PRO's objects (360 MB of wheels) and LIBERO-plus's difficulty levels
    verify: bool = False  # hash every file again, even if it has not changed


def main(command: AssetCommand) -> None:
    """Run one command and print the result. Raises ValueError or OSError."""
    volume = Volume(command.volume).root
    report = partial(print, flush=True)
    if command.all and command.action != "official":
        raise ValueError(f"--all requires official, got {command.action}; the kit already has LIBERO-PRO's objects")
    if command.action == "kit":
        source = ensure_kit(volume)
    elif command.action == "official":
        report(LICENCE)
        official.download(volume, command.threads, report)
        if command.all:
            pro.download(volume, report)
            try:
                plus.fetch_levels(volume, report)
            except DownloadError as error:  # everything else works without the levels
                report(error)
        source = resolve("official", volume, reread=True)
    else:
        source = resolve(command.assets, volume, reread=command.verify)
    print(f"assets: {source.kind}\ndirectory: {source.path}\ndigest: {source.digest}")
    if missing := pro.missing(source.path):
        count = f"{len(missing)} of its {len(LIKE)} objects"
        print(f"LIBERO-PRO: {count} are missing; run `./lab assets libero --all` to download them")
    if command.action == "status":
        counts = ", ".join(f"{kind} {good} of {count}" for kind, (good, count) in plus.buildable(source.path).items())
        print(f"LIBERO-plus, tasks with all their files: {counts}")


if __name__ == "__main__":
    entrypoint.run(lambda: main(tyro.cli(AssetCommand)))
