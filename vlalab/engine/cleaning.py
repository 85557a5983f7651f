"""`./lab clean`: list the disk usage of old images, build cache and local environments, and remove them on request.

It never changes the shared volume.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vlalab.description import variants
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths, processes, state
from vlalab.host.console import LabError, confirm, log_info
from vlalab.host.memory import format_size

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True)
class RemovableItem:
    """A removable entry: its title, size in bytes, the consequence of removing it, and a function that removes it."""

    title: str
    size: int
    consequence: str
    remove: Callable[[], object]


def clean(venvs: bool = False, yes: bool = False, dry_run: bool = False, all_users: bool = False) -> int:
    """Print the removable items with their sizes, remove them after confirmation, and return the number removed.

    yes: without confirmation. all_users: also images that other users or clones built. Raises LabError if confirmation
    is needed and stdin is not a terminal.
    """
    items: list[RemovableItem] = []
    if reason := docker.available():
        log_info(f"images and build cache are not listed: {reason}")
    else:
        usage = json.loads(docker.run(["system", "df", "--verbose", "--format", "{{json .}}"]).stdout)
        items += [*_images(usage, all_users), *_build_cache(usage)]
    items += _environments() if venvs else []
    items.sort(key=lambda item: -item.size)
    if not items:
        print("nothing to clean: no old image, no build cache" + (", no local environment" if venvs else ""))
    for item in items:
        print(f"{format_size(item.size):>10}  {item.title}; {item.consequence}")
    if dry_run or not items:
        return 0
    if not yes and not sys.stdin.isatty():
        raise LabError("nothing was removed: confirmation needs a terminal; add --yes to remove all of it")
    selected = [item for item in items if yes or confirm(f"remove {item.title}, {format_size(item.size)}?")]
    for item in selected:
        item.remove()
    return len(selected)


def old_images(all_users: bool = False) -> list[tuple[str, str]]:
    """Return (id, name) of outdated images; the name of an untagged image is its id.

    Only images that this caller built in this clone, unless `all_users`.
    """
    label = images.ENV_LABEL if all_users else f"{images.OWNER_LABEL}={state.owner()}"
    rows = docker.json_lines(["image", "ls", "--no-trunc", "--filter", f"label={label}", "--format", "{{json .}}"])
    named = [(row["ID"], f"{row['Repository']}:{row['Tag']}") for row in rows]
    current = {images.reference(name) for name in [*paths.image_names(), *paths.variant_names()]}
    current_ids = {id_ for id_, name in named if name in current}
    return [(id_, id_ if "<none>" in name else name) for id_, name in named if id_ not in current_ids]


def _images(usage: dict, all_users: bool) -> list[RemovableItem]:
    old = old_images(all_users)
    if not old:
        return []
    ids = {id_.removeprefix("sha256:")[:12] for id_, _ in old}
    rows = [row for row in usage.get("Images") or () if row["ID"].removeprefix("sha256:")[:12] in ids]
    tags = sorted({name for _, name in old if not name.startswith("sha256:")})
    title = f"{len(old)} old image{'' if len(old) == 1 else 's'}" + (f" ({', '.join(tags)})" if tags else "")
    consequence = f"frees more if they share layers only with each other; images of tag {images.tag()} stay"
    size = int(sum(parse_size(row["UniqueSize"]) for row in rows))
    return [RemovableItem(title, size, consequence, partial(_remove_images, [name for _, name in old]))]


def _remove_images(names: Sequence[str]) -> None:
    for name in names:
        done = docker.run(["image", "rm", name], check=False)
        if done.returncode != 0:
            log_info(f"{name} stays: {done.stderr.strip().splitlines()[-1]}")


def _build_cache(usage: dict) -> list[RemovableItem]:
    """Return the build cache that no image uses; the rest of the cache is layers of images."""
    rows = usage.get("BuildCache") or ()
    unshared = [row for row in rows if not any(row.get(key) in ("true", True) for key in ("InUse", "Shared"))]
    size = int(sum(parse_size(row["Size"]) for row in unshared))
    consequence = "shared with other projects of this engine; the next build downloads everything again"
    prune = partial(docker.run, ["buildx", "prune", "--all", "--force"])
    return [RemovableItem("the build cache", size, consequence, prune)] if size else []


def parse_size(text: str) -> float:
    """Parse a size in the engine's format into bytes: '1.46GB', '12.3kB', 'N/A' (0)."""
    match = re.fullmatch(r"([\d.]+)\s*([kKMGT]?B)", text.strip())
    return float(match[1]) * UNITS[match[2].upper()] if match else 0.0


def _environments() -> list[RemovableItem]:
    """Return the environments (those of images/, admin/.venv, cluster/.venv, hub/.venv) that no process uses."""
    items = []
    programs = [(processes.command(int(path.name)) or [""])[0] for path in Path("/proc").glob("[0-9]*")]
    for name in (*paths.image_names(), *paths.variant_names(), *paths.WITHOUT_IMAGE):
        env = venvs.get(name, paths.ROOT)
        if not env.venv.exists():
            continue
        if any(program.startswith(f"{env.venv}/") for program in programs):
            log_info(f"the local environment '{name}' stays: programs run from it")
            continue
        # Files shared with uv's cache (hard links) free nothing.
        files = [(Path(root) / file).lstat() for root, _, files in os.walk(env.venv) for file in files]
        size = sum(status.st_blocks * 512 for status in files if status.st_nlink == 1)
        again = "the next use" if env.is_without_image else f"./lab env {variants.format_flags(name)}"
        title = f"the local environment '{name}'"
        items.append(RemovableItem(title, size, f"{again} installs it again", partial(_remove_environment, env)))
    return items


def _remove_environment(env: venvs.LocalEnvironment) -> None:
    with venvs.file_lock(env.directory / ".venv.lock", f"another call is setting up '{env.name}'"):
        try:
            shutil.rmtree(env.venv)
        except OSError as error:
            raise LabError(
                f"cannot remove {env.venv} ({error.strerror}); remove it as the user who installed it"
            ) from error
