"""`./lab bundle`: images, checkpoints, assets and the lab itself in one file, for a machine without network.

A bundle is a plain tar: README.txt, host/…, images/NAME.tar.gz (`docker save`), volume/…, and last manifest.json with
the sha256 and size of every other member. `vlalab.bundles.restoring` reads it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from vlalab.description import compose, manifests
from vlalab.engine import building, docker, images, volumes
from vlalab.host import paths
from vlalab.host.console import LabError, Status, check_choices, log_info, status
from vlalab.host.memory import format_size

FORMAT = "vla-lab-bundle 3"
MANIFEST = "manifest.json"
DIRECTORIES = ("checkpoints", "assets")  # of the volume; runs and logs are not bundled
PYTHONS = ("3.10", "3.11", "3.12", "3.13")  # versions to include the wheels of ./lab for
WHEELS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64")
COMPRESSION = 0.65  # compressed size of an image; CUDA's libraries compress least
LEVEL = 1  # of gzip (or pigz): 77 MB/s per core, 0.39 of an image's size; level 6 takes three times as long for 0.35
HOST_BYTES = 200 << 20
BLOCK = 1 << 20
README = """This bundle was created by `./lab bundle`. On a machine with the lab, run: ./lab restore FILE
On a machine without the lab and without network, install the lab first:

    tar -xf FILE host
    tar -xzf host/vla-lab.tar.gz && cd vla-lab
    PIP_NO_INDEX=1 PIP_FIND_LINKS=$PWD/../host/wheels ./lab restore FILE

To load an image without the lab:

    tar -xOf FILE images/libero.tar.gz | docker load
"""


@dataclass(frozen=True)
class BundleRequest:
    """The contents and file of a bundle. Checkpoints and assets are names on the volume, or "all"."""

    names: tuple[str, ...]
    file: Path
    checkpoints: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    host: bool = True  # the lab itself and its wheels
    dry_run: bool = False


def parse_arguments(words: Sequence[str]) -> tuple[tuple[str, ...], Path]:
    """Return (environments, file) of the arguments `ENV … FILE`; "all" selects every image that is built."""
    names, environments = words[:-1], [*images.buildable(), *paths.variant_names(), "all"]
    if not words or words[-1] in environments:
        raise LabError(
            "bundle requires FILE after the environments, for example ./lab bundle libero /media/stick/lab.bundle"
        )
    check_choices("environment", names, environments)
    return tuple(names), Path(words[-1]).expanduser().absolute()


def default_assets(names: Sequence[str]) -> list[str]:
    """Return the assets on the volume that belong to the bundled benchmarks."""
    services, benchmarks = compose.read(), manifests.benchmarks()
    available = [name for name in names_on_volume("assets") if name in benchmarks]
    return [name for name in available if {services[name].environment_name, "all"} & set(names)]


def names_on_volume(directory: str) -> list[str]:
    """Return the names in a directory of the volume."""
    return sorted(path.name for path in (paths.volume() / directory).glob("[!.]*"))


def volume_files(checkpoints: Sequence[str], assets: Sequence[str]) -> list[Path]:
    """Return the files of checkpoints and assets. A link stands for its target file."""
    files = []
    for directory, names in zip(DIRECTORIES, (checkpoints, assets), strict=True):
        available = names_on_volume(directory)
        check_choices(directory.rstrip("s"), names, [*available, "all"])
        for name in available if "all" in names else dict.fromkeys(names):
            root = paths.volume() / directory / name
            files += sorted(root.rglob("*")) if root.is_dir() else [root]
    for path in files:
        if path.is_symlink() and not path.is_file():
            raise LabError(f"{path} is a link to a directory or a broken link; replace it with a file")
        if not str(path).isprintable():
            raise LabError(f"{str(path)!a} has control characters or invalid UTF-8 in its name; rename it")
    return [path for path in files if path.is_file()]


def bundle(request: BundleRequest) -> Path | None:
    """Write a bundle; return its path, None for a dry run. A failure raises LabError and leaves no file."""
    selected: list[images.Image] = []
    if request.names:
        available = images.existing()
        for name in request.names:
            if name != "all" and (problem := images.unusable(name, available.get(name))):
                raise LabError(problem)
        selected = [i for name, i in available.items() if {name, "all"} & set(request.names) and i.fits()]
    files = volume_files(request.checkpoints, request.assets)
    if not selected and not files:
        raise LabError(
            "nothing to bundle; give environments (build images with ./lab build), --checkpoints or --assets"
        )
    for image in selected:
        print(f"{format_size(image.size):>10}  image {image.reference}, {image.age()} old")
    sizes: Counter[str] = Counter()
    for path in files:
        sizes["/".join(path.relative_to(paths.volume()).parts[:2])] += path.stat().st_size
    for name, size in sizes.items():
        print(f"{format_size(size):>10}  {name}")
    checkpoints = names_on_volume("checkpoints")
    if checkpoints and not any(name.startswith("checkpoints/") for name in sizes):
        log_info(f"no checkpoint is included; on the volume: {', '.join(checkpoints)} (--checkpoints NAME,… or all)")
    if request.dry_run:
        return None
    file = request.file
    if file.exists() or not file.parent.is_dir():
        problem = "exists; remove it or use another name" if file.exists() else "is in no existing directory"
        raise LabError(f"{file} {problem}")
    need = int(COMPRESSION * sum(image.size for image in selected)) + sizes.total() + HOST_BYTES * request.host
    if (free := shutil.disk_usage(file.parent).free) < need:
        raise LabError(f"the bundle needs up to {format_size(need)}; {file.parent} has {format_size(free)} free")
    temporary = file.with_name(file.name + ".unfinished")
    try:
        with status(f"writing {file}") as line:
            _write(temporary, request, selected, files, line)
        temporary.rename(file)
    except OSError as error:
        raise LabError(
            f"{file} could not be written: {error.strerror or error}; the partial file was removed"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    volumes.give_to_parent_owner(file)
    log_info(f"{file}: {format_size(file.stat().st_size)}; on the other machine: ./lab restore FILE")
    return file


# --- writing ------------------------------------------------------------------------------------------------


class BundleWriter:
    """Adds members to a tar file, and records the sha256 and size of each."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.members: dict[str, dict[str, object]] = {}

    def add(self, name: str, source: IO[bytes], mtime: float | None = None) -> None:
        """Add a member of unknown size: the header is rewritten at the end."""
        header = tarfile.TarInfo(name)
        header.mtime, header.mode = int(time.time() if mtime is None else mtime), 0o644
        file, digest = self._tar.fileobj, hashlib.sha256()
        assert file is not None
        start, length = file.tell(), len(header.tobuf(tarfile.GNU_FORMAT))
        file.write(b"\0" * length)
        while block := source.read(BLOCK):
            digest.update(block)
            file.write(block)
        end = file.tell()
        header.size = end - start - length
        file.seek(start)
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.seek(end)
        file.write(b"\0" * (-end % tarfile.BLOCKSIZE))
        self._tar.offset = file.tell()
        self.members[name] = {"sha256": digest.hexdigest(), "size": header.size}


def _write(
    target: Path, request: BundleRequest, selected: Sequence[images.Image], files: Sequence[Path], line: Status
) -> None:
    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as tar:
        writer = BundleWriter(tar)
        writer.add("README.txt", io.BytesIO(README.encode()))
        if request.host:
            line.update("the lab and its packages")
            _add_host(writer)
        for image in selected:
            line.update(image.reference)
            _save(writer, image)
        for path in files:
            name = str(path.relative_to(paths.volume()))
            line.update(name)
            before = path.stat()
            with path.open("rb") as file:
                writer.add(f"volume/{name}", file, before.st_mtime)
            if (path.stat().st_size, path.stat().st_mtime) != (before.st_size, before.st_mtime):
                raise LabError(f"{path} changed while it was read; repeat the command when no program writes it")
        manifest = {
            "format": FORMAT,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": building.commit(),
            "images": [{**asdict(image), "created": image.created.isoformat()} for image in selected],
            "members": writer.members,
        }
        writer.add(MANIFEST, io.BytesIO(json.dumps(manifest, indent=1).encode()))
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _save(writer: BundleWriter, image: images.Image) -> None:
    """Add the output of `docker save`, as gzip."""
    with tempfile.TemporaryFile() as errors:
        save = docker.open_pipe(["save", image.reference], stdout=subprocess.PIPE, stderr=errors)
        compressor = [shutil.which("pigz") or "gzip", f"-{LEVEL}", "-c"]
        with save, subprocess.Popen(compressor, stdin=save.stdout, stdout=subprocess.PIPE) as gzip:
            save.stdout.close()  # so that `docker save` ends with the compressor
            assert gzip.stdout is not None
            try:
                writer.add(f"images/{image.name}.tar.gz", gzip.stdout)
            except BaseException:
                gzip.kill()
                raise
        if code := save.returncode or gzip.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace") or f"exit code {code}"
            raise LabError(docker.failure(["save", image.reference], text))


def _add_host(writer: BundleWriter) -> None:
    """Add the repository's committed files, and the wheels with which the launcher creates .venv without network.

    These are the host tool's locked packages for every supported Python, checked by hash.
    """
    with tempfile.TemporaryDirectory(prefix="vlalab-bundle-") as name:
        directory = Path(name)
        archive, pins, wheels = directory / "vla-lab.tar.gz", directory / "requirements.lock", directory / "wheels"
        pins.write_text(without_markers((paths.ROOT / "requirements.lock").read_text()))
        git = ["git", "-C", str(paths.ROOT), "archive", "--prefix=vla-lab/", "-o", str(archive), "HEAD"]
        download = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary", ":all:", "--dest", str(wheels), "-r", str(pins),
            *(word for name in WHEELS for word in ("--platform", name)),
        ]  # fmt: skip
        variables = {**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"}
        for command in (git, *([*download, "--python-version", version] for version in PYTHONS)):
            done = subprocess.run(command, capture_output=True, text=True, env=variables)
            if done.returncode != 0:
                text = done.stderr.strip()
                raise LabError(f"the lab's own files or packages cannot be added; to omit them use --no-host\n{text}")
        for path in (archive, *sorted(wheels.iterdir())):
            with path.open("rb") as file:
                writer.add(f"host/{path.relative_to(directory)}", file)


def without_markers(lock: str) -> str:
    """Return a lock without markers, since pip evaluates `; python_version < …` for the Python it runs on."""
    return re.sub(r"(?m)^([A-Za-z0-9][^;\n\\]*?)\s*;[^\\\n]*", r"\1 ", lock)
