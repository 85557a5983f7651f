"""`./lab restore`: checks a bundle's every part, then loads its images and puts its files onto the volume.

Nothing is loaded before all checksums fit. What is newer here stays, unless `force`. No path leads out of the volume.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath

from vlalab import building, docker, images, parts, paths, volumes
from vlalab.bundles import FOLDERS, VolumeFile
from vlalab.console import LabError, Status, say, status

LOAD_FACTOR = 2  # the engine unpacks an image beside its layers while it loads it


@dataclass
class Plan:
    """What a restore will do: images to load; files to write, and those that are here already or newer here."""

    load: list[dict] = field(default_factory=list)
    write: list[VolumeFile] = field(default_factory=list)
    same: int = 0
    newer: list[str] = field(default_factory=list)


def restore(file: Path, force: bool = False, dry_run: bool = False) -> Plan:
    """Returns what was done (for a dry run: what would be). Raises LabError before anything is changed."""
    with parts.Reader(file) as bundle:
        plan = _plan(bundle, force)
        _describe(bundle, plan)
        if dry_run:
            return plan
        with status(f"checking {len(bundle.parts)} parts of {file.name}") as line:
            bundle.verify(line.update)
        _check_space(plan)
        for record in plan.load:
            with status(f"loading {record['reference']}"):
                _load(bundle, record)
        if plan.write:
            volumes.prepare()
            with status(f"writing {len(plan.write)} files to {paths.volume()}") as line:
                _extract(bundle, {wanted.path for wanted in plan.write}, line)
        return plan


# --- the plan -----------------------------------------------------------------------------------------------


def _plan(bundle: parts.Reader, force: bool) -> Plan:
    plan = Plan()
    records = bundle.manifest["images"]
    if records:
        docker.require()
        _plan_images(plan, records, force)
    for record in bundle.manifest["files"]:
        wanted = VolumeFile(record["path"], int(record["size"]), int(record["mtime"]))
        _plan_file(plan, wanted, force)
    return plan


def _plan_images(plan: Plan, records: list[dict], force: bool) -> None:
    """Raises LabError where an image here is newer than the bundle's and `force` is not given."""
    for record in records:
        here = _image_named(record["reference"])
        if here and here["Id"] == record["id"]:
            say(f"image {record['reference']} is here already")
        elif here and not force and images.parse_time(here["Created"]) > datetime.fromisoformat(record["created"]):
            raise LabError(f"image {record['reference']} is newer here than in the bundle; --force replaces it")
        else:
            plan.load.append(record)


def _image_named(reference: str) -> dict | None:
    done = docker.run(["image", "inspect", reference], check=False)
    return docker.parse_json(done.stdout)[0] if done.returncode == 0 else None


def _plan_file(plan: Plan, wanted: VolumeFile, force: bool) -> None:
    target = target_of(wanted.path)
    try:
        stat = target.stat()
    except OSError:
        plan.write.append(wanted)
        return
    if (stat.st_size, int(stat.st_mtime)) == (wanted.size, wanted.mtime):
        plan.same += 1
    elif int(stat.st_mtime) > wanted.mtime and not force:
        plan.newer.append(wanted.path)
    else:
        plan.write.append(wanted)


def target_of(name: str) -> Path:
    """Returns where a bundle's file goes on the volume. Raises LabError for a path that would lead elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[0] not in FOLDERS:
        raise LabError(
            f"the bundle holds {name!r}, which is no file below {' or '.join(FOLDERS)}; nothing was restored"
        )
    volume = paths.volume().resolve()
    target = volume.joinpath(*path.parts)
    if not target.resolve().is_relative_to(volume):
        raise LabError(f"{target} leads out of the volume by a link; remove the link. Nothing was restored")
    return target


def _describe(bundle: parts.Reader, plan: Plan) -> None:
    made = f"made {bundle.manifest['created']} from commit {str(bundle.manifest['commit'])[:12]}"
    size = images.spell_size(sum(file.size for file in plan.write))
    print(f"{bundle.path.name}, {made}")
    for record in bundle.manifest["images"]:
        loads = "to load" if record in plan.load else "here already"
        print(f"  image {record['reference']}, {images.spell_size(record['size'])}: {loads}")
    print(f"  files: {len(plan.write)} to write ({size}), {plan.same} here already, {len(plan.newer)} newer here")
    for name in plan.newer[:5]:
        say(f"{name} is newer here and stays; --force overwrites it")


def _check_space(plan: Plan) -> None:
    """Raises LabError where the engine's disk or the volume has too little room."""
    need = LOAD_FACTOR * max((record["size"] for record in plan.load), default=0)
    need += sum(record["size"] for record in plan.load) - need // LOAD_FACTOR
    free = building.free_at_engine() if plan.load else None
    if free is not None and free < need:
        raise LabError(f"loading takes {images.spell_size(need)}, the engine's disk has {images.spell_size(free)} free")
    place = next(path for path in (paths.volume(), *paths.volume().parents) if path.exists())
    size, free = sum(file.size for file in plan.write), shutil.disk_usage(place).free
    if free < size:
        raise LabError(
            f"the files take {images.spell_size(size)}, {place} has {images.spell_size(free)} free; "
            "free some, or set VLALAB_VOLUME elsewhere"
        )


# --- images -------------------------------------------------------------------------------------------------


def _load(bundle: parts.Reader, record: dict) -> None:
    """Streams an image into `docker load`, and makes sure that the engine then has what the bundle says."""
    name = f"images/{record['name']}"
    with tempfile.TemporaryFile() as words:
        process = docker.open_pipe(["load"], stdin=subprocess.PIPE, stdout=words, stderr=words)
        try:
            for piece in bundle.pieces(name):
                process.stdin.write(piece)
        except BrokenPipeError:
            pass  # it says why, below
        except BaseException:
            process.kill()
            raise
        finally:
            code = _close(process)
        if code != 0:
            words.seek(0)
            raise LabError(docker.failure(["load"], words.read().decode(errors="replace")))
    here = _image_named(record["reference"])
    if here is None or (here["Config"].get("Labels") or {}) != record["labels"]:
        raise LabError(
            f"the engine loaded another image than {record['reference']} of the bundle; make the bundle again"
        )


def _close(process: subprocess.Popen) -> int:
    with suppress(BrokenPipeError):
        process.stdin.close()
    return process.wait()


# --- files --------------------------------------------------------------------------------------------------


def _extract(bundle: parts.Reader, wanted: set[str], line: Status) -> None:
    reader = parts.PieceReader(bundle.pieces("volume"))
    with tarfile.open(fileobj=reader, mode="r|", bufsize=1 << 20) as tar:
        for member in tar:
            target = target_of(member.name)  # again: the manifest's names are not the tar's
            if not member.isreg():
                raise LabError(
                    f"the bundle holds {member.name!r}, which is no plain file; what came before it is restored"
                )
            if member.name in wanted:
                line.update(member.name)
                _write(tar, member, target)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None
    _make_folder(target.parent)
    with _replacing(target) as file:
        shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        os.utime(file.fileno(), (member.mtime, member.mtime))


@contextmanager
def _replacing(target: Path) -> Iterator:
    """Opens a new file beside `target` that takes its place when all went well: no reader sees half of it."""
    try:
        file = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False)  # noqa: SIM115
    except OSError as error:
        raise LabError(f"cannot write to {target.parent} ({error.strerror}); whose is it?") from error
    try:
        with file:
            yield file
            os.fchmod(file.fileno(), 0o644)
        volumes.give(Path(file.name))
        os.replace(file.name, target)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def _make_folder(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cannot make {folder} ({error.strerror}); whose is {folder.parent}?") from error
    for path in reversed(missing):
        volumes.give(path)
