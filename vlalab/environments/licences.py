"""THIRD_PARTY.md: the licence of every package in the images.

The locks determine the rows. A licence comes from the metadata of the installed package. Rows of unchanged versions
are kept, so only environments with new packages have to be installed.
"""

from __future__ import annotations

import re
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vlalab.description import manifests
from vlalab.environments import venvs
from vlalab.host.paths import ROOT

FILE = "THIRD_PARTY.md"
START = "<!-- The table below is made by `./lab lock --licences`. -->\n"
HEAD = "\n| package | version | licence, as the package states it | images |\n|---|---|---|---|\n"
MAX_NAME = 60  # characters; a longer field holds the licence's text
IMAGE = {  # what markers of the images' locks are evaluated for, next to the image's Python
    "sys_platform": "linux", "platform_system": "Linux",
    "platform_machine": "x86_64", "os_name": "posix", "implementation_name": "cpython",
}  # fmt: skip

Pin = tuple[str, str]  # name, version


def pins(root: Path = ROOT) -> dict[Pin, list[str]]:
    """Return the packages that the images' locks pin for Linux on x86-64, each with the images that hold it.

    A variant is listed for the packages that its environment does not have.
    """
    images: dict[Pin, list[str]] = {}
    patterns = ("images/*/requirements.lock", "images/*/[!.]*/requirements.lock", "images/*/beside.lock")
    for lock in sorted((path for pattern in patterns for path in root.glob(pattern)), key=lambda path: path.parent):
        name = "-".join(lock.parent.relative_to(root / "images").parts)
        version = manifests.environment(name, root / "images").python[0]
        python = {"python_version": version, "python_full_version": f"{version}.1"}
        for line in re.findall(r"(?m)^[A-Za-z0-9][^\\\n]*==[^\\\n]*", lock.read_text()):
            pin = Requirement(line.strip())
            if pin.marker is None or pin.marker.evaluate({**default_environment(), **IMAGE, **python}):
                key = canonicalize_name(pin.name), str(pin.specifier).removeprefix("==")
                if name.partition("-")[0] not in images.setdefault(key, []):
                    images[key].append(name)
    return images


def package_licence(package: Distribution) -> str:
    """Return a package's License-Expression, else a short License, classifiers, or its licence file's first line."""
    metadata = package.metadata
    text = str(metadata.get("License-Expression") or metadata.get("License") or "").strip()
    if text and text != "UNKNOWN" and len(text) <= MAX_NAME and "\n" not in text:
        return text
    classifiers = [entry for entry in metadata.get_all("Classifier") or [] if entry.startswith("License :: ")]
    if classifiers:
        return ", ".join(classifier.split(" :: ")[-1] for classifier in classifiers)
    text = package.read_text("licenses/LICENSE") or package.read_text("LICENSE") or ""
    return text.strip().partition("\n")[0].strip()[:MAX_NAME] or "not stated"


def rows(text: str) -> dict[Pin, tuple[str, str]]:
    """Return the table of THIRD_PARTY.md: package → (licence, images)."""
    cells = re.findall(r"(?m)^\| (\S+) \| (\S+) \| (.*) \| (.*) \|$", text.partition(START)[2].removeprefix(HEAD))
    return {(name, version): (licence, images) for name, version, licence, images in cells}


def write(root: Path = ROOT) -> int:
    """Write the table and return its number of rows.

    A new package that is not installed is fetched for its Python into a temporary directory, as a wheel, which runs no
    code.
    """
    file, pinned = root / FILE, pins(root)
    text = file.read_text()
    licences = {pin: licence for pin, (licence, _) in rows(text).items()} | installed(root)
    with tempfile.TemporaryDirectory() as directory:
        targets = {pin: Path(directory) / "-".join(pin) for pin in sorted(pinned.keys() - licences.keys())}
        for pin, target in targets.items():
            python = manifests.environment(pinned[pin][0], root / "images").python[0]
            options = ["--no-deps", "--only-binary", ":all:", "--python-version", python, "--target", str(target)]
            venvs.uv(["pip", "install", *options, "==".join(pin)])
        licences |= _read([*targets.values()])
    lines = [
        f"| {pin[0]} | {pin[1]} | {licences[pin].replace('|', '/')} | {', '.join(images)} |\n"
        for pin, images in sorted(pinned.items())
    ]
    file.write_text(text.partition(START)[0] + START + HEAD + "".join(lines))
    return len(lines)


def installed(root: Path = ROOT, image: str = "*") -> dict[Pin, str]:
    """Return the licences of the packages in the local environments, or in that of one image."""
    made = [path for pattern in (f"images/{image}/.venv", f"images/{image}/[!.]*/.venv") for path in root.glob(pattern)]
    return _read([path for venv in made for path in [*venv.glob("lib/python3.*/site-packages"), venv / "beside"]])


def _read(paths: list[Path]) -> dict[Pin, str]:
    packages = distributions(path=[str(path) for path in paths])
    return {(canonicalize_name(p.metadata["Name"]), p.version): package_licence(p) for p in packages}
