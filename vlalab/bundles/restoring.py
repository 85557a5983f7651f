"""`./lab restore`: verify a bundle, load its images and copy its files to the volume.

Every part is verified before anything changes. Then files are written to a staging directory on the volume, images are
loaded, and the files are renamed into place. Newer files on this machine stay, unless `force`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from vlalab.bundles.packing import BLOCK, DIRECTORIES, FORMAT, MANIFEST
from vlalab.engine import docker, images, volumes
from vlalab.environments.venvs import file_lock
from vlalab.host import paths, state
from vlalab.host.console import LabError, log_info, status
from vlalab.host.memory import format_size

STAGING = ".restoring"  # on the volume; removed by the next restore if one was killed
MAX_MANIFEST = 64 << 20  # bytes
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9_][A-Za-z0-9._-]*")
INVALID = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)  # of a manifest
DAMAGED = "; copy or create it again"


@dataclass
class RestorePlan:
    """The steps of a restore: images to load, files to write; and the files that exist or are newer here."""

    load: list[dict[str, Any]] = field(default_factory=list)
    write: list[str] = field(default_factory=list)
    same: int = 0
    newer: list[str] = field(default_factory=list)


class Bundle:
    """An open bundle, whose members are exactly those that its manifest names."""

    def __init__(self, path: Path, tar: tarfile.TarFile) -> None:
        self.path, self._tar = path, tar
        self.members: dict[str, tarfile.TarInfo] = {}
        for member in tar:
            if not member.isreg() or member.issparse() or member.name in self.members:
                raise LabError(f"{path} has {member.name[:200]!a}, which is not a regular file or a duplicate{DAMAGED}")
            self.members[member.name] = member
        if MANIFEST not in self.members or self.members[MANIFEST].size > MAX_MANIFEST:
            raise LabError(f"{path} has no manifest: it is not a bundle or is truncated{DAMAGED}")
        manifest = json.loads(b"".join(self.read(MANIFEST)))
        if manifest["format"] != FORMAT:
            name = str(manifest["format"])[:40]
            raise LabError(f"{path} has format {name!a}; this version reads {FORMAT!r}; create the bundle again")
        self.hashes = {str(name): str(entry["sha256"]) for name, entry in manifest["members"].items()}
        sizes = {name: entry["size"] for name, entry in manifest["members"].items()}
        self.images = []
        for record in manifest["images"]:
            created = datetime.fromisoformat(record["created"])
            if not NAME.fullmatch(record["name"]) or not REFERENCE.fullmatch(record["reference"]) or not created.tzinfo:
                raise ValueError(f"an image with the reference {record['reference']!a}, created {created}")
            image = {"member": f"images/{record['name']}.tar.gz", "reference": record["reference"], "created": created}
            image |= {"id": str(record["id"]), "labels": dict(record["labels"])}
            self.images.append(image)
        is_complete = sizes == {name: member.size for name, member in self.members.items() if name != MANIFEST}
        if not is_complete or {i["member"] for i in self.images} != {n for n in sizes if n.startswith("images/")}:
            raise LabError(f"{path} does not match its manifest{DAMAGED}")
        self.files = {name[7:]: member for name, member in self.members.items() if name.startswith("volume/")}
        directories = {str(parent) for name in self.files for parent in PurePosixPath(name).parents}
        for name in self.files:
            parts = PurePosixPath(name).parts
            is_below = len(parts) > 1 and parts[0] in DIRECTORIES and ".." not in parts and "/".join(parts) == name
            if not is_below or not name.isprintable():
                raise LabError(f"the bundle has {name[:200]!a}, which is not in {' or '.join(DIRECTORIES)}")
            if name in directories:
                raise LabError(f"{path} has {name[:200]!a} as a file and as a directory{DAMAGED}")
        commit = re.sub(r"[^0-9a-z-]", "?", manifest["commit"])
        self.origin = f"created {datetime.fromisoformat(manifest['created'])} from commit {commit[:12]}"

    def verify(self) -> None:
        """Raise LabError for the first member whose sha256 differs from the manifest."""
        for name, expected in self.hashes.items():
            digest = hashlib.sha256()
            for block in self.read(name):
                digest.update(block)
            if digest.hexdigest() != expected:
                raise LabError(f"part {name} of {self.path} is damaged (its sha256 differs){DAMAGED}")

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a member in blocks."""
        file = self._tar.extractfile(self.members[name])
        assert file is not None
        while block := file.read(BLOCK):
            yield block


@contextmanager
def open_bundle(path: Path) -> Iterator[Bundle]:
    """Open an untrusted bundle. Raise LabError for anything that `./lab bundle` does not write."""
    if not path.is_file():
        problem = "is a directory" if path.is_dir() else "not found"
        raise LabError(f"{path} {problem}; expected a file of ./lab bundle")
    with ExitStack() as stack:
        try:
            bundle = Bundle(path, stack.enter_context(tarfile.open(path, "r:")))
        except (tarfile.TarError, *INVALID) as error:
            reason = f"{type(error).__name__}: {error}"[:200]
            raise LabError(f"{path} is not a bundle, or is truncated ({reason!a}){DAMAGED}") from error
        yield bundle


def restore(file: Path, force: bool = False, dry_run: bool = False) -> RestorePlan:
    """Restore a bundle (unless dry_run) and return the plan. A failure raises LabError and changes no file."""
    with open_bundle(file) as bundle:
        try:
            plan = _plan(bundle, force)
            if not dry_run:
                with status(f"checking {len(bundle.hashes)} parts of {file.name}"):
                    bundle.verify()
                _carry_out(bundle, plan)
        except OSError as error:
            reason = f"{(error.filename or str(file))[:200]!a}: {error.strerror or error}"
            raise LabError(f"nothing was restored: {reason}; fix this and try again") from error
        return plan


def _plan(bundle: Bundle, force: bool) -> RestorePlan:
    """Print and return the plan. Raise LabError if it would replace a newer image or leave the volume."""
    plan = RestorePlan()
    if bundle.images:
        docker.require()
    print(f"{bundle.path.name}, {bundle.origin}")
    for image in bundle.images:
        current = _inspect(image["reference"])
        is_same = current is not None and current["Id"] == image["id"]
        if current and not is_same and not force and images.parse_time(current["Created"]) > image["created"]:
            raise LabError(f"image {image['reference']} is newer here than in the bundle; --force replaces it")
        plan.load += [] if is_same else [image]
        print(f"  image {image['reference']}: {'already here' if is_same else 'to load'}")
    for name, member in bundle.files.items():
        target = target_of(name)
        if target.is_dir():
            raise LabError(f"{target} is a directory here and a file in the bundle; move it. Nothing was restored")
        existing = target.stat() if target.exists() else None
        if existing and (existing.st_size, int(existing.st_mtime)) == (member.size, int(member.mtime)):
            plan.same += 1
        elif existing and int(existing.st_mtime) > member.mtime and not force:
            plan.newer.append(name)
        else:
            plan.write.append(name)
    size = format_size(sum(bundle.files[name].size for name in plan.write))
    print(f"  files: {len(plan.write)} to write ({size}), {plan.same} already here, {len(plan.newer)} newer here")
    for name in plan.newer[:5]:
        log_info(f"{name} is newer here and stays; --force overwrites it")
    return plan


def target_of(name: str) -> Path:
    """Return the path of a bundle's file on the volume. Raise LabError if a link leads out of the volume."""
    root = paths.volume().resolve()
    with suppress(OSError, RuntimeError):  # circular links
        if (root / name).resolve().is_relative_to(root):
            return root / name
    raise LabError(f"{root / name} leads out of the volume through a link; remove the link. Nothing was restored")


def _carry_out(bundle: Bundle, plan: RestorePlan) -> None:
    """Write the files to the staging directory, load the images, rename the files into place."""
    volume = paths.volume()
    staging = volume / STAGING
    with file_lock(state.directory() / ".restore.lock", "another restore is running"):
        if bundle.files:
            volumes.prepare()
        if os.path.lexists(staging):  # left by a killed restore
            shutil.rmtree(staging)
        try:
            if plan.write:
                staging.mkdir(mode=0o700)
                with status(f"writing {len(plan.write)} files to {volume}"):
                    for index, name in enumerate(plan.write):
                        _write(bundle, name, staging / str(index))
            targets = [target_of(name) for name in plan.write]
            for target in targets:
                for directory in reversed([parent for parent in target.parents if not parent.exists()]):
                    directory.mkdir()
                    volumes.give_to_parent_owner(directory)
            for image in plan.load:
                with status(f"loading {image['reference']}"):
                    _load(bundle, image)
            for index, target in enumerate(targets):
                os.replace(staging / str(index), target)
                volumes.give_to_parent_owner(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _write(bundle: Bundle, name: str, path: Path) -> None:
    mtime = bundle.files[name].mtime
    with path.open("xb") as file:
        file.writelines(bundle.read(f"volume/{name}"))
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.utime(file.fileno(), (mtime, mtime))
        os.fsync(file.fileno())


def _inspect(reference: str) -> dict[str, Any] | None:
    done = docker.run(["image", "inspect", reference], check=False)
    return docker.parse_json(done.stdout)[0] if done.returncode == 0 else None


def _load(bundle: Bundle, image: dict[str, Any]) -> None:
    """Load an image, and check that it is the one in the manifest."""
    with tempfile.TemporaryFile() as output:
        process = docker.open_pipe(["load"], stdin=subprocess.PIPE, stdout=output, stderr=output)
        with process, suppress(BrokenPipeError):  # docker's message is in the output
            process.stdin.writelines(bundle.read(image["member"]))
        if process.returncode != 0:
            output.seek(0)
            raise LabError(docker.failure(["load"], output.read().decode(errors="replace")))
    current = _inspect(image["reference"])
    if current is None or (current["Config"].get("Labels") or {}) != image["labels"]:
        raise LabError(f"the loaded image is not {image['reference']}; create the bundle again")
