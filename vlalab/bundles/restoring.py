"""`./lab restore`: checks a bundle's every part, then loads its images and puts its files onto the volume.

All or nothing: files are unpacked beside the volume's own, then images are loaded, then the files get their names;
what was done is taken back where a later step fails. What is newer here stays, unless `force`. No path leads out of the
volume.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from vlalab.bundles.manifest import VolumeFile
from vlalab.bundles.staging import Staging
from vlalab.bundles.unpacking import Reader
from vlalab.engine import docker, images, space, volumes
from vlalab.host import paths
from vlalab.host.console import LabError, say, status

LOAD_FACTOR = 2  # the engine unpacks an image beside its layers while it loads it


@dataclass
class Plan:
    """What a restore will do: images to load; files to write, and those that are here already or newer here."""

    load: list[dict] = field(default_factory=list)
    write: list[VolumeFile] = field(default_factory=list)
    same: int = 0
    newer: list[str] = field(default_factory=list)


def restore(file: Path, force: bool = False, dry_run: bool = False) -> Plan:
    """Returns what was done (for a dry run: what would be). Raises LabError, and then nothing is changed."""
    with Reader(file) as bundle:
        plan = _plan(bundle, force)
        _describe(bundle, plan)
        if dry_run:
            return plan
        with status(f"checking {len(bundle.manifest.parts)} parts of {file.name}") as line:
            bundle.verify(line.update)
        _check_space(bundle, plan)
        try:
            _carry_out(bundle, plan)
        except OSError as error:
            where = f"{error.filename or file}: {error.strerror or error}"
            raise LabError(f"nothing was restored: {where}; mend that and try again") from error
        return plan


def _carry_out(bundle: Reader, plan: Plan) -> None:
    """Unpacks, loads, places. An error takes back what came before it."""
    with ExitStack() as undo:
        staging = None
        if bundle.manifest.files:
            volumes.prepare()
            staging = undo.enter_context(Staging(paths.volume()))
            with status(f"unpacking {len(plan.write)} files onto {paths.volume()}") as line:
                _unpack(bundle, plan, staging, line.update)
        with _loading() as loaded:
            for record in plan.load:
                with status(f"loading {record['reference']}"):
                    _load(bundle, record, loaded)
            if staging:
                staging.place()


def _unpack(bundle: Reader, plan: Plan, staging: Staging, progress: Callable[[str], None]) -> None:
    """Unpacks the files that are to be written; every other one is looked at all the same."""
    wanted = {file.path for file in plan.write}
    for file, content in bundle.files():
        progress(file.path)
        if file.path in wanted:
            staging.add(file, target_of(file.path), content)


# --- the plan -----------------------------------------------------------------------------------------------


def _plan(bundle: Reader, force: bool) -> Plan:
    plan = Plan()
    records = bundle.manifest.images
    if records:
        docker.require()
        _plan_images(plan, records, force)
    for wanted in bundle.manifest.files:
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
    if target.is_dir():
        raise LabError(f"{target} is a folder here and a file in the bundle; move it away. Nothing was restored")
    if (stat.st_size, int(stat.st_mtime)) == (wanted.size, wanted.mtime):
        plan.same += 1
    elif int(stat.st_mtime) > wanted.mtime and not force:
        plan.newer.append(wanted.path)
    else:
        plan.write.append(wanted)


def target_of(name: str) -> Path:
    """Returns where a bundle's file goes on the volume. Raises LabError for a path that would lead elsewhere."""
    volume = paths.volume().resolve()
    target = volume / name
    try:
        inside = target.resolve().is_relative_to(volume)
    except (OSError, RuntimeError):  # links in a circle
        inside = False
    if not inside:
        raise LabError(f"{target} leads out of the volume by a link; remove the link. Nothing was restored")
    return target


def _describe(bundle: Reader, plan: Plan) -> None:
    made = f"made {bundle.manifest.created} from commit {bundle.manifest.commit[:12]}"
    size = images.spell_size(sum(file.size for file in plan.write))
    print(f"{bundle.path.name}, {made}")
    for record in bundle.manifest.images:
        loads = "to load" if record in plan.load else "here already"
        print(f"  image {record['reference']}, {images.spell_size(record['size'])}: {loads}")
    print(f"  files: {len(plan.write)} to write ({size}), {plan.same} here already, {len(plan.newer)} newer here")
    for name in plan.newer[:5]:
        say(f"{name} is newer here and stays; --force overwrites it")


def _check_space(bundle: Reader, plan: Plan) -> None:
    """Raises LabError where the engine's disk or the volume has too little room for what comes out of the bundle."""
    sizes = [max(record["size"], bundle.manifest.unpacked(f"images/{record['name']}")) for record in plan.load]
    need = (LOAD_FACTOR - 1) * max(sizes, default=0) + sum(sizes)
    free = space.free_at_engine() if plan.load else None
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


@contextmanager
def _loading() -> Iterator[list[tuple[str, str | None]]]:
    """Gives a list for (reference, id before or None) of what is loaded; an error gives the names back as they were."""
    loaded: list[tuple[str, str | None]] = []
    try:
        yield loaded
    except BaseException:
        for reference, before in reversed(loaded):
            undone = ["image", "rm", reference] if before is None else ["tag", before, reference]
            docker.run(undone, check=False)
        raise


def _load(bundle: Reader, record: dict, loaded: list[tuple[str, str | None]]) -> None:
    """Streams an image into `docker load`, and makes sure that the engine then has what the bundle says."""
    before = _image_named(record["reference"])
    loaded.append((record["reference"], before and before["Id"]))
    with tempfile.TemporaryFile() as words:
        process = docker.open_pipe(["load"], stdin=subprocess.PIPE, stdout=words, stderr=words)
        try:
            for block in bundle.stream(f"images/{record['name']}"):
                process.stdin.write(block)
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
