"""The images on this machine: their age, size and lock."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from vlalab.description import variants
from vlalab.engine import docker
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError, check_choices

BAKE_FILE = "images/bake.json"  # BuildKit's own tool reads it too: `docker buildx bake --file images/bake.json`
REPOSITORY = "vla-lab"
ENV_LABEL = "vla-lab.env"
LOCK_LABEL = "vla-lab.lock"
FLASH_ATTN_LABEL = "vla-lab.flash-attn"
OWNER_LABEL = "vla-lab.built-by"  # user and clone that built it: `clean` of other users keeps it
REVISION_LABEL = "org.opencontainers.image.revision"


@dataclass(frozen=True)
class Image:
    """An image of the lab, as the engine reports it."""

    name: str  # its environment
    reference: str
    id: str
    created: datetime
    size: int  # bytes, uncompressed, shared layers included
    labels: dict[str, str]

    @property
    def lock(self) -> str:
        """The sha256 of the lock that it was built from; "" if its label is missing."""
        return self.labels.get(LOCK_LABEL, "")

    @property
    def revision(self) -> str:
        """The commit that it was built from, with suffix -dirty if the tree was changed."""
        return self.labels.get(REVISION_LABEL, "")

    def fits(self) -> bool:
        """Return whether it was built from the current lock."""
        return self.lock == venvs.get(self.name, paths.ROOT).lock_hash

    def age(self) -> str:
        """Return its age: '3 days'."""
        return format_age((datetime.now(timezone.utc) - self.created).total_seconds())


def tag() -> str:
    """Return the tag of the images in use: $VLALAB_TAG, else dev."""
    return os.environ.get("VLALAB_TAG") or "dev"


def reference(name: str, with_tag: str | None = None) -> str:
    """Return the name of an environment's image, as in compose.yaml."""
    return f"{REPOSITORY}/{name}:{with_tag or tag()}"


def buildable() -> list[str]:
    """Return the environments that have an image."""
    return sorted(_bake()["group"]["default"]["targets"])


def arguments(name: str) -> Mapping[str, str]:
    """Return the build arguments of an environment's image with their defaults."""
    target, merged = _bake()["target"][name], dict[str, str]()
    for parent in target.get("inherits", ()):
        merged |= arguments(parent)
    return {**merged, **target["args"]}


@functools.cache
def _bake() -> dict:
    return json.loads((paths.ROOT / BAKE_FILE).read_text())


def choose(names: Sequence[str], variant: str | None = None) -> list[str]:
    """Return these environments, each in the variant, by default this machine's; none or "all" means every one.

    Raises LabError for an unknown name, and for a variant that a named environment does not have.
    """
    available = buildable()
    check_choices("environment", names, [*available, "all"])
    if names and "all" not in names:
        return [variants.select(name, variant or "") for name in dict.fromkeys(names)]
    return [variants.select(name, variant or "") if variants.of(name) else name for name in available]


def existing(names: Sequence[str] | None = None) -> dict[str, Image]:
    """Return the built images of these environments (default: all) by name. One call of the engine, 20 ms."""
    every = [*paths.image_names(), *paths.variant_names()]
    references = {reference(name): name for name in (every if names is None else names)}
    if not references:
        return {}
    done = docker.run(
        ["image", "inspect", *references], check=False
    )  # it prints the existing ones and fails for the others
    if done.returncode != 0 and "No such image" not in done.stderr:
        raise LabError(docker.failure(["image", "inspect", *references], done.stderr))
    return {
        name: Image(
            name=name,
            reference=tagged,
            id=record["Id"],
            created=parse_time(record["Created"]),
            size=int(record["Size"]),
            labels=dict(record.get("Config", {}).get("Labels") or {}),
        )
        for record in json.loads(done.stdout or "[]")
        for tagged, name in references.items()
        if tagged in (record.get("RepoTags") or ())
    }


def unusable(name: str, image: Image | None) -> str | None:
    """Return why an environment's image cannot be used (missing, or of another lock) and the fix; None if it can."""
    command = f"./lab build {variants.format_flags(name)}"
    if image is None:
        return f"image {reference(name)} is not built; run: {command}"
    if not image.fits():
        return f"image {reference(name)} was built from another lock; run: {command}"
    return None


def parse_time(text: str) -> datetime:
    """Return the time in an engine's record: 2026-11-20T12:56:54.123456789Z, or with an offset."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    if not match:
        raise ValueError(f"invalid time {text!r}; expected for example 2026-11-20T12:56:54Z")
    return datetime.fromisoformat(match[1] + match[2].replace("Z", "+00:00"))


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit: '3 days', '1 hour'; '0 min' when it is less than one minute."""
    for unit, length in (("day", 86400), ("hour", 3600)):
        if (count := int(seconds // length)) >= 1:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{max(0, int(seconds // 60))} min"


def format_size(size: float) -> str:
    """Return bytes in GB (10^9) or MB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
