"""`./lab bundle`: images, checkpoints, assets and the lab itself in one file, for a machine without network.

`vlalab.bundles.restoring` reads it back; `vlalab.bundles.parts` is the file's format.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from vlalab.bundles import parts
from vlalab.bundles.manifest import FOLDERS, VolumeFile, can_be_named
from vlalab.description import compose, manifests
from vlalab.engine import building, docker, images, space, volumes
from vlalab.host import paths
from vlalab.host.console import LabError, Status, require_known, say, status, unknown

PYTHONS = ("3.10", "3.11", "3.12", "3.13")  # for each, the wheels that ./lab needs
WHEELS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")
RATIO = 0.65  # of an image's size, compressed; CUDA's libraries shrink least
HOST_BYTES = 200 << 20
README = """This bundle was made by `./lab bundle`. On a machine that has the lab: ./lab restore FILE
Without network, the lab and what it needs come first:

    tar -xf FILE host
    tar -xzf host/vla-lab.tar.gz && cd vla-lab
    PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/../host/wheels ./lab restore FILE

Without the lab, an image can be loaded by hand:

    tar -xOf FILE --wildcards 'images/libero/*' | gunzip | docker load
"""


@dataclass(frozen=True)
class Request:
    """What to bundle into which file. Names of checkpoints and assets are folders on the volume; "all": every one."""

    names: tuple[str, ...]
    file: Path
    checkpoints: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    host: bool = True  # the lab itself and its wheels
    dry_run: bool = False


def parse_words(words: str) -> tuple[tuple[str, ...], Path]:
    """Returns (environments, file) of the words `ENV … FILE`; "all" stands for every image that is built."""
    given = [word for word in words.split(",") if word]
    known = [*images.buildable(), "all"]
    count = next((place for place, word in enumerate(given) if word not in known), len(given))
    file = ",".join(given[count:])  # a path may hold a comma
    if not file:
        raise LabError("bundle needs a FILE behind the environments: ./lab bundle libero /media/stick/lab.bundle")
    first = given[count]
    if len(given) > count + 1 and "/" not in first and re.fullmatch(r"\w+", first):
        raise LabError(unknown("environment", first, known))
    return tuple(given[:count]), Path(file).expanduser().absolute()


def default_assets(names: Sequence[str]) -> list[str]:
    """Returns the assets that go with those images unsaid: a benchmark's with its own, where they are on the volume."""
    services, known = compose.read(), manifests.benchmarks()
    there = [name for name in there_on_volume("assets") if name in known]
    return [name for name in there if {services[name].environment_name, "all"} & set(names)]


def bundle(request: Request) -> Path | None:
    """Returns the file with all that was asked for, None for a dry run. Raises LabError and leaves no file behind."""
    found = _images(request.names)
    files = volume_files(request.checkpoints, request.assets)
    if not found and not files:
        raise LabError("nothing to bundle: name environments (./lab build makes images), --checkpoints or --assets")
    _describe(found, files)
    if request.dry_run:
        return None
    _check(request, found, files)
    try:
        with parts.Writer(request.file) as writer, status(f"writing {request.file}") as line:
            _write(writer, request, found, files, line)
    except OSError as error:
        full = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise LabError(f"{request.file} could not be written: {full}; nothing of it is left") from error
    volumes.give(request.file)
    say(f"{request.file}: {images.spell_size(request.file.stat().st_size)}; on the other machine: ./lab restore FILE")
    return request.file


def _images(names: Sequence[str]) -> list[images.Image]:
    if not names:
        return []
    docker.require()
    there = images.found()
    for name in names:
        if name != "all" and (problem := images.unusable(name, there.get(name))):
            raise LabError(problem)
    return [image for name, image in there.items() if name in names or ("all" in names and image.fits())]


def _describe(found: Sequence[images.Image], files: Sequence[VolumeFile]) -> None:
    for image in found:
        print(f"{images.spell_size(image.size):>10}  image {image.reference}, {image.age()} old")
    for name in sorted({"/".join(file.path.split("/")[:2]) for file in files}):
        size = sum(file.size for file in files if file.path.startswith(f"{name}/") or file.path == name)
        print(f"{images.spell_size(size):>10}  {name}")
    if not any(file.path.startswith("checkpoints/") for file in files) and (there := there_on_volume("checkpoints")):
        say(f"no checkpoint goes with it; on the volume: {', '.join(there)} (--checkpoints NAME,… or all)")


# --- what is on the volume ----------------------------------------------------------------------------------


def there_on_volume(folder: str) -> list[str]:
    """Returns the names in a folder of the volume."""
    place = paths.volume() / folder
    return sorted(path.name for path in place.iterdir() if not path.name.startswith(".")) if place.is_dir() else []


def volume_files(checkpoints: Sequence[str], assets: Sequence[str]) -> list[VolumeFile]:
    """Returns the files of those checkpoints and assets, in order. Raises LabError for a name that is not there."""
    found = []
    for folder, names in zip(FOLDERS, (checkpoints, assets), strict=True):
        there = there_on_volume(folder)
        require_known(folder.rstrip("s"), names, [*there, "all"])
        chosen = there if "all" in names else list(dict.fromkeys(names))
        found += [file for name in chosen for file in _walk(paths.volume() / folder / name)]
    return found


def _walk(place: Path) -> Iterator[VolumeFile]:
    """Yields the files of a folder; a link counts as what it leads to, since it may lead out of the bundle."""
    listed = sorted(place.rglob("*")) if place.is_dir() else [place]
    for path in listed:
        if path.is_symlink() and not path.exists():
            raise LabError(f"{path} is a link that leads nowhere; remove it, or get its file again")
        if path.is_symlink() and path.is_dir():
            raise LabError(f"{path} is a link to a folder, which a bundle does not follow; put the folder there")
        if path.is_file():
            stat, name = path.stat(), str(path.relative_to(paths.volume()))
            if not can_be_named(name):
                raise LabError(f"{str(path)!a} has a name with control characters or no UTF-8; rename it")
            yield VolumeFile(name, stat.st_size, max(0, int(stat.st_mtime)))


# --- checks before anything is written ----------------------------------------------------------------------


def _check(request: Request, found: Sequence[images.Image], files: Sequence[VolumeFile]) -> None:
    file = request.file
    if file.exists():
        kind = "a folder; name a file in it" if file.is_dir() else "already there; remove it or choose another name"
        raise LabError(f"{file} is {kind}")
    if not file.parent.is_dir():
        raise LabError(f"the folder {file.parent} is not there; make it, or is the disk not mounted?")
    need = RATIO * sum(image.size for image in found) + sum(f.size for f in files) + HOST_BYTES * request.host
    free = shutil.disk_usage(file.parent).free
    if free < need:
        raise LabError(f"the bundle takes up to {images.spell_size(need)}; {file.parent} has {images.spell_size(free)}")
    largest = max((image.size for image in found), default=0)
    spare = space.free_at_engine() if found else None
    if spare is not None and spare < largest:
        raise LabError(
            f"the engine needs {images.spell_size(largest)} for a while to save an image, and its disk has "
            f"{images.spell_size(spare)} free; see what can be freed: ./lab clean"
        )


# --- writing ------------------------------------------------------------------------------------------------


def _write(
    writer: parts.Writer,
    request: Request,
    found: Sequence[images.Image],
    files: Sequence[VolumeFile],
    line: Status,
) -> None:
    writer.add("README.txt", README.encode())
    if request.host:
        line.update("the lab and its packages")
        _add_host(writer)
    for image in found:
        line.update(image.reference)
        _add_image(writer, image)
    if files:
        _add_files(writer, files, line)
    about = {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": building.commit(),
        "images": [{**asdict(image), "created": image.created.isoformat()} for image in found],
        "files": [asdict(file) for file in files],
    }
    writer.finish(about)


def _add_image(writer: parts.Writer, image: images.Image) -> None:
    """Streams `docker save` into the bundle: nothing is written beside it."""
    stream = writer.stream(f"images/{image.name}")
    with tempfile.TemporaryFile() as words:
        process = docker.open_pipe(["save", image.reference], stdout=subprocess.PIPE, stderr=words)
        try:
            shutil.copyfileobj(process.stdout, stream, 1 << 20)
        except BaseException:
            process.kill()
            raise
        finally:
            process.stdout.close()
            code = process.wait()
        if code != 0:
            words.seek(0)
            raise LabError(docker.failure(["save", image.reference], words.read().decode(errors="replace")))
    stream.end()


def _add_files(writer: parts.Writer, files: Sequence[VolumeFile], line: Status) -> None:
    stream = writer.stream("volume")
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20) as tar:
        for file in files:
            line.update(file.path)
            _add_file(tar, file)
    stream.end()


def _add_file(tar: tarfile.TarFile, file: VolumeFile) -> None:
    member = tarfile.TarInfo(file.path)
    member.size, member.mtime, member.mode = file.size, file.mtime, 0o644
    with open(paths.volume() / file.path, "rb") as source:
        tar.addfile(member, source)
        if source.read(1):
            raise LabError(f"{paths.volume() / file.path} grew while it was read; bundle again when nothing writes it")


# --- the lab itself -----------------------------------------------------------------------------------------


def _add_host(writer: parts.Writer) -> None:
    """Adds the repository's files as committed, and the wheels from which the launcher makes .venv without network."""
    with tempfile.TemporaryDirectory(prefix="vlalab-bundle-") as folder:
        archive = Path(folder) / "vla-lab.tar.gz"
        git = ["git", "-C", str(paths.ROOT), "archive", "--prefix=vla-lab/", "-o", str(archive), "HEAD"]
        done = subprocess.run(git, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"the lab's own files cannot be added: {done.stderr.strip()}; leave them out: --no-host")
        for path in [archive, *_wheels(Path(folder) / "wheels")]:
            writer.add(f"host/{path.relative_to(folder)}", path.read_bytes())


def _wheels(folder: Path) -> list[Path]:
    """Returns the host tool's pinned wheels for every Python it runs on, downloaded into a folder, hash-checked."""
    pins = folder.with_suffix(".lock")
    pins.write_text(without_markers((paths.ROOT / "requirements.lock").read_text()))
    for version in PYTHONS:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary", ":all:", "--python-version", version, "--dest", str(folder),
            *(word for name in WHEELS for word in ("--platform", name)), "-r", str(pins),
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
        )
        if done.returncode != 0:
            raise LabError(
                f"the lab's packages for Python {version} could not be downloaded; leave them out: --no-host\n"
                f"{done.stderr.strip()}"
            )
    return sorted(folder.iterdir())


def without_markers(lock: str) -> str:
    """Returns a lock whose pins hold for every Python: pip judges `; python_version < …` by the Python it runs on."""
    return re.sub(r"(?m)^([A-Za-z0-9][^;\n\\]*?)\s*;[^\\\n]*", r"\1 ", lock)
