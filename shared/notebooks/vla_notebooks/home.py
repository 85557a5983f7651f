"""A student's home on the volume: copies of the project's notebooks, which nothing writes over.

python -m vla_notebooks.home libero            copies what is not there yet
python -m vla_notebooks.home libero --fresh    all of them anew; what was changed stays as NAME.before-N.ipynb
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from vla_common import endings
from vla_common.volume import Volume, make_directory, shown

SERVICES = Path(__file__).resolve().parents[3] / "services"


@dataclass(frozen=True)
class Home:
    """Copies an environment's notebooks into notebooks/ENVIRONMENT on the volume."""

    of: Annotated[str, tyro.conf.Positional]  # which notebooks: a folder of services/ that has some
    fresh: bool = False  # copies of all of them; those that were changed stay beside


def shipped(of: str) -> list[Path]:
    """Returns the project's notebooks of a service folder, in order. Raises ValueError where it has none."""
    found = sorted(SERVICES.glob(f"{of}/notebooks/*.ipynb"))
    if not found:
        known = sorted({path.parents[1].name for path in SERVICES.glob("*/notebooks/*.ipynb")})
        raise ValueError(f"there are no notebooks of '{of}'; known: {', '.join(known)}")
    return found


def settle(of: str, volume: Volume, fresh: bool = False) -> list[Path]:
    """Returns the copies that this made in notebooks/`of`: of what was not there; with `fresh` of what is not equal."""
    directory = volume.path("notebooks") / of
    pairs = [(source.read_bytes(), directory / source.name) for source in shipped(of)]
    make_directory(directory)
    made = []
    for content, target in pairs:
        there = os.path.lexists(target)
        if there and not (fresh and not (target.is_file() and target.read_bytes() == content)):
            continue
        if there:
            target.rename(_free_name(target))
        _write_whole(target, content)
        made.append(target)
    return made


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.before-{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _write_whole(target: Path, content: bytes) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=".", dir=target.parent)  # a name that nobody can have put a link at
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.chmod(draft, 0o644)
        os.rename(draft, target)
    except BaseException:
        os.unlink(draft)
        raise


def main() -> None:
    """Copies, and says what and where."""
    home = tyro.cli(Home, description=__doc__)
    made = settle(home.of, Volume(), home.fresh)
    directory = shown(Volume().path("notebooks") / home.of)
    print(f"{directory}: {len(made)} notebooks copied" + "".join(f"\n  {path.name}" for path in made))


if __name__ == "__main__":
    endings.run(main)
