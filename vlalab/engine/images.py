"""The images on this machine: their age, size and lock; and the disk space that they need."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from vlalab.description import manifests, variants
from vlalab.engine import docker
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError, check_choices

BAKE_FILE = "images/bake.json"  # BuildKit's own tool reads it too: `docker buildx bake --file images/bake.json`
ENV_LABEL = "vla-lab.env"
OWNER_LABEL = "vla-lab.built-by"  # user and clone that built it: `clean` of other users keeps it
CONTAINERD_ROOT, CONTAINERD_CONFIG = "/var/lib/containerd", "/etc/containerd/config.toml"
CACHE_FACTOR = 1.6  # a first build also fills the cache of unpacked wheels; the manifests' sizes have a margin
TOOLS_GB = 1.0  # the distribution's packages and build tools
REBUILD_GB = 1.0


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
        return self.labels.get("vla-lab.lock", "")

    @property
    def revision(self) -> str:
        """The commit that it was built from, with suffix -dirty if the tree was changed."""
        return self.labels.get("org.opencontainers.image.revision", "")

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
    return f"vla-lab/{name}:{with_tag or tag()}"


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
    # It prints the existing ones and fails for the others.
    done = docker.run(["image", "inspect", *references], check=False)
    if done.returncode != 0 and "No such image" not in done.stderr:
        raise LabError(docker.failure(["image", "inspect", *references], done.stderr))
    found = {}
    for record in json.loads(done.stdout or "[]"):
        for tagged in record.get("RepoTags") or ():
            if name := references.get(tagged):
                labels = dict(record.get("Config", {}).get("Labels") or {})
                created = parse_time(record["Created"])
                found[name] = Image(name, tagged, record["Id"], created, int(record["Size"]), labels)
    return found


def unusable(name: str, image: Image | None) -> str | None:
    """Return why an environment's image cannot be used (missing, or of another lock) and the fix; None if it can."""
    if image and image.fits():
        return None
    problem = "was built from another lock" if image else "is not built"
    return f"image {reference(name)} {problem}; run: ./lab build {variants.format_flags(name)}"


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


# --- disk space -----------------------------------------------------------------------------------------------


def shortage(names: Sequence[str], free: int, directory: str, no_cache: bool = False) -> str | None:
    """Return the message if a build of these images exceeds the free bytes of `directory`; None if it fits."""
    need = needed_gb(names, no_cache)
    if free / 1e9 >= need:
        return None
    return (
        f"building {', '.join(names)} takes up to {need:.1f} GB and {directory} has {free / 1e9:.1f} GB free; "
        "build fewer at a time, or free space: ./lab clean"
    )


def needed_gb(names: Sequence[str], no_cache: bool = False) -> float:
    """Return the size of a build in GB.

    New images take the size in their manifests, in which a shared layer counts once, and their cache; existing ones
    only their last layers.
    """
    built = existing(names)
    new = [name for name in names if no_cache or unusable(name, built.get(name))]
    environments = [manifests.environment(name) for name in new]
    shared = {layer: size for environment in environments for layer, size in environment.shared_gb.items()}
    own = sum(environment.image_gb - sum(environment.shared_gb.values()) for environment in environments)
    size = (own + sum(shared.values())) * CACHE_FACTOR + (TOOLS_GB if new else 0.0)
    return size + REBUILD_GB * (len(names) - len(new))


def directory(info: Mapping, config: str | None = None) -> str:
    """Return the directory of an engine's images, from the output of `docker info`; "" if unknown.

    An engine with containerd's store keeps them in containerd's directory, which data-root does not move, unless
    containerd is its child. config: the text of CONTAINERD_CONFIG, which may name another directory.
    """
    snapshotter = any("io.containerd.snapshotter" in str(value) for _, value in info.get("DriverStatus") or ())
    is_own = "/docker/" in str((info.get("Containerd") or {}).get("Address")) or docker.is_rootless(info)
    if not snapshotter or is_own:
        return str(info.get("DockerRootDir", ""))
    root = re.search(r"""(?m)^\s*root\s*=\s*["'](.+)["']""", config or "")
    return root[1] if root else CONTAINERD_ROOT
