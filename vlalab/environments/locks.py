"""Locks: requirements.in → requirements.lock with exact versions and sha256 hashes, and no package index's address.

A variant of an environment has an overrides.txt, with pins that replace those of the environment's requirements.in.

The first line of a lock holds the hashes of its inputs and of its pins, so `./lab lock --check` needs no network. It
fails if an input was changed without a new lock, or if a lock was edited by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from vlalab.description import manifests
from vlalab.environments import pythons
from vlalab.host.console import LabError, check_choices, status
from vlalab.host.paths import ROOT, WITHOUT_IMAGE, environment_directory, image_names, variant_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMPILE = [
    "pip", "compile", "--universal", "--fork-strategy", "fewest", "--generate-hashes", "--no-emit-index-url",
    "--no-emit-find-links", "--no-header", "--quiet",
]  # fmt: skip

PROCESSORS = ("x86_64", "aarch64")
SYSTEM = "manylinux_2_35"  # the glibc of Ubuntu 22.04, the oldest supported system
DRY_RUN = [  # bddl is the only package without a wheel; it is pure Python
    "--dry-run", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-binary", "bddl",
]  # fmt: skip
CONTRACT = "shared/contract/pyproject.toml"  # the contract's own requirements, the server's among them


@dataclass(frozen=True)
class Lock:
    """One lock and what it is made from. Paths are relative to `root`."""

    name: str
    directory: str
    contract: bool = False  # its programs import vla_contract, so its server's requirements are inputs too
    root: Path = field(default=ROOT)

    @property
    def source(self) -> Path:
        """The list of required packages; a variant has its environment's."""
        directory = self.root / self.directory
        return (directory.parent if self.overrides.exists() else directory) / "requirements.in"

    @property
    def target(self) -> Path:
        """The list of exact versions and hashes."""
        return self.root / self.directory / "requirements.lock"

    @property
    def overrides(self) -> Path:
        """A variant's pins, which replace those of its environment; other locks do not have the file."""
        return self.root / self.directory / "overrides.txt"

    @property
    def excludes(self) -> Path:
        """Dependencies of packages that nothing here imports; the file may be absent."""
        return self.root / self.directory / "excludes.txt"

    @property
    def python(self) -> str:
        """The oldest Python that it serves."""
        directory = self.source.parent
        has_manifest = (directory / manifests.NAME).exists()
        versions = manifests.environment(directory.name, directory.parent).python if has_manifest else manifests.PYTHONS
        return versions[0]

    def inputs_hash(self) -> str:
        """Return the sha256 of the inputs' requirement lines: comments and order of other settings do not count."""
        parts = [_requirement_lines(path) for path in (self.source, self.excludes, self.overrides) if path.exists()]
        if self.contract:
            project = tomllib.loads((self.root / CONTRACT).read_text())["project"]
            parts.append(project["optional-dependencies"]["server"])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def command(self, output: Path) -> list[str]:
        """Return uv's command that writes the pins to `output`; to be run in the root."""
        inputs = [str(self.source.relative_to(self.root))]
        if self.contract:
            inputs += [CONTRACT, "--extra", "server"]
        if self.excludes.exists():
            inputs += ["--excludes", f"{self.directory}/excludes.txt"]
        if self.overrides.exists():
            inputs += ["--overrides", f"{self.directory}/overrides.txt"]
        return [pythons.uv(), *COMPILE, "--python-version", self.python, *inputs, "--output-file", str(output)]


def all_locks(root: Path = ROOT) -> dict[str, Lock]:
    """Return every lock by name: the host tool, the environments, the contract's tests."""
    locks = {"host": Lock("host", ".", root=root)}
    locks |= {name: Lock(name, name, root=root) for name in WITHOUT_IMAGE if (root / name).is_dir()}
    for name in [*image_names(), *variant_names()]:
        directory = environment_directory(name, root).relative_to(root)
        locks[name] = Lock(name, str(directory), contract=True, root=root)
    if (root / "tests/contract/requirements.in").exists():
        locks["contract"] = Lock("contract", "tests/contract", contract=True, root=root)
    return locks


def choose(names: list[str]) -> list[Lock]:
    """Return the locks of those names, all without names. Raises LabError for an unknown one."""
    locks = all_locks()
    check_choices("lock", names, locks)
    return [locks[name] for name in names or locks]


def make(lock: Lock, upgrade: bool = False) -> bool:
    """Write the lock, keeping versions that still fit unless `upgrade`. Returns whether it changed.

    A variant prefers its environment's versions, and adds only what its overrides need. Raises LabError unless the
    package index has every pin for every processor.
    """
    before = preferred = lock.target.read_text() if lock.target.exists() else ""
    if lock.overrides.exists():
        base = lock.source.with_name("requirements.lock").read_text()
        named = set(re.findall(r"(?m)^[\w.-]+(?===)", base))
        entries = re.split(r"(?m)^(?=[A-Za-z0-9])", before)
        preferred = base + "".join(entry for entry in entries if entry.partition("==")[0] not in named)
    with tempfile.TemporaryDirectory() as directory, status(f"resolving '{lock.name}'"):
        output = Path(directory) / "requirements.lock"
        output.write_text(preferred)
        resolve = lock.command(output) + (["--upgrade"] if upgrade else [])
        download = [pythons.uv(), "pip", "install", *DRY_RUN, "--python-version", lock.python, "--target", directory]
        checks = [[*download, "--python-platform", f"{name}-{SYSTEM}", "-r", str(output)] for name in PROCESSORS]
        for command in (resolve, *checks):
            done = subprocess.run(command, cwd=lock.root, env=pythons.uv_environment(), capture_output=True, text=True)
            if done.returncode != 0:
                advice = "" if command is resolve else "; a package without a wheel for a processor needs a marker"
                raise LabError(f"lock '{lock.name}' cannot be resolved{advice}; uv reports:\n{done.stderr.strip()}")
        pins = _without_headers(output.read_text())
    hashes = f"sha256 of its inputs {lock.inputs_hash()}, of the pins below {_digest(pins)}"
    text = f"# Made by `invoke lock {lock.name}`; {hashes}\n{pins}"
    lock.target.write_text(text)
    return text != before


def problems(lock: Lock) -> list[str]:
    """Return a message per problem of a lock; empty if it is valid."""
    path = f"{lock.directory}/requirements.lock".removeprefix("./")
    command = f"run: invoke lock {lock.name}"
    if not lock.target.exists():
        return [f"{path} is missing; {command}"]
    text = lock.target.read_text()
    match = re.match(r"# Made by .* inputs ([0-9a-f]{64}), of the pins below ([0-9a-f]{64})\n", text)
    inputs, stated = match.groups() if match else ("", "")
    entries = re.split(r"\n(?=[A-Za-z0-9])", "\n" + _without_headers(text))
    unhashed = [entry.split(" ")[0] for entry in entries if entry[:1].isalnum() and "--hash=sha256:" not in entry]
    messages = [f"{path} has no hash for {pin}; {command}" for pin in unhashed]
    if inputs != lock.inputs_hash():
        messages.append(f"{path} does not match {lock.source.relative_to(lock.root)}; {command}")
    if stated != _digest(_without_headers(text)):
        messages.append(f"{path} was edited by hand; {command}")
    return messages


def _requirement_lines(path: Path) -> list[str]:
    lines = {line.split("#")[0].strip() for line in path.read_text().splitlines()} - {""}
    includes = {line for line in lines if line.startswith("-r ")}
    return sorted((lines - includes).union(*(_requirement_lines(path.parent / line[3:].strip()) for line in includes)))


def _without_headers(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def _digest(pins: str) -> str:
    return hashlib.sha256(pins.encode()).hexdigest()
