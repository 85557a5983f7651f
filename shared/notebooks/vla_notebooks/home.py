"""A student's directory on the volume: copies of the project's notebooks, which are never overwritten.

python -m vla_notebooks.home libero            copy the missing ones
python -m vla_notebooks.home libero --fresh    copy all; changed ones are kept as NAME.before-N.ipynb
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vla_common import entrypoint
from vla_common.volume import Volume, display_path, make_directory

SERVICES = Path(__file__).resolve().parents[3] / "services"


@dataclass(frozen=True)
class Home:
    """Copies an environment's notebooks into notebooks/ENVIRONMENT on the volume."""

    of: Annotated[str, tyro.conf.Positional]  # a directory of services/ with notebooks
    fresh: bool = False  # copy all; changed ones are kept as NAME.before-N.ipynb


def copy_notebooks(of: str, volume: Volume, fresh: bool = False) -> list[Path]:
    """Copy missing notebooks, with `fresh` also changed ones, to notebooks/`of`; return the copies.

    Raises ValueError for a service directory without notebooks.
    """
    sources = sorted(SERVICES.glob(f"{of}/notebooks/*.ipynb"))
    if not sources:
        names = sorted({path.parents[1].name for path in SERVICES.glob("*/notebooks/*.ipynb")})
        raise ValueError(f"no notebooks for '{of}'; choose one of {', '.join(names)}")
    directory, made = make_directory(volume.path("notebooks") / of), []
    for source in sources:
        content, target = source.read_bytes(), directory / source.name
        if os.path.lexists(target):
            if not fresh or (target.is_file() and target.read_bytes() == content):
                continue
            target.rename(_free_name(target))
        _write_atomically(target, content)
        made.append(target)
    return made


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.before-{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _write_atomically(target: Path, content: bytes) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=".", dir=target.parent)  # a name at which no link can exist
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(draft, 0o644)
        os.rename(draft, target)
    except BaseException:
        os.unlink(draft)
        raise


def main() -> None:
    """Copy the notebooks and print their names."""
    home = tyro.cli(Home, description=__doc__)
    made = copy_notebooks(home.of, Volume(), home.fresh)
    directory = display_path(Volume().path("notebooks") / home.of)
    print(f"{directory}: {len(made)} notebooks copied" + "".join(f"\n  {path.name}" for path in made))


if __name__ == "__main__":
    entrypoint.run(main)
