"""`./lab clean`: what images, build cache and local environments take on this machine, and taking it away when told to.

Nothing on the shared volume is ever touched: no run, no checkpoint, no asset.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths, processes, state
from vlalab.host.console import LabError, agreed, say

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@dataclass(frozen=True)
class Item:
    """One kind of thing that can go: what it is, the bytes it frees, what its loss costs, and how it goes."""

    title: str
    size: int
    consequence: str
    remove: Callable[[], None]


def clean(venvs: bool = False, yes: bool = False, dry_run: bool = False, all_users: bool = False) -> int:
    """Return how many kinds of things were removed: each is shown with its size and asked for, unless `yes`.

    all_users: images that others built too, or another clone. Raises LabError where it would have to ask and nobody can
    answer.
    """
    items = removable(venvs, all_users)
    if not items:
        print("nothing to clean: no old image, no build cache" + (", no local environment" if venvs else ""))
    for item in items:
        print(f"{images.spell_size(item.size):>10}  {item.title}; {item.consequence}")
    if dry_run or not items:
        return 0
    if not yes and not sys.stdin.isatty():
        raise LabError("nothing was removed: nobody can be asked here; --yes removes all of it")
    selected = [item for item in items if yes or agreed(f"remove {item.title}, {images.spell_size(item.size)}?")]
    for item in selected:
        item.remove()
    return len(selected)


def removable(venvs: bool = False, all_users: bool = False) -> list[Item]:
    """Return what can go, largest first."""
    items: list[Item] = []
    if reason := docker.available():
        say(f"images and build cache are left alone: {reason}")
    else:
        usage = json.loads(docker.run(["system", "df", "--verbose", "--format", "{{json .}}"]).stdout)
        items += [*_old_images(usage, all_users), *_build_cache(usage)]
    if venvs:
        items += _venvs()
    return sorted(items, key=lambda item: -item.size)


# --- images -------------------------------------------------------------------------------------------------


def old_images(all_users: bool = False) -> list[tuple[str, str]]:
    """Return (id, name) of the images that nothing names any more; an image without a name goes by its id.

    Only those that this caller built in this clone, unless `all_users`.
    """
    label = images.ENV_LABEL if all_users else f"{images.OWNER_LABEL}={state.owner()}"
    command = ["image", "ls", "--no-trunc", "--filter", f"label={label}", "--format", "{{json .}}"]
    current = {images.reference(name) for name in paths.image_names()}
    listed = docker.json_lines(command)
    current_ids = {row["ID"] for row in listed if f"{row['Repository']}:{row['Tag']}" in current}
    names = [(row["ID"], f"{row['Repository']}:{row['Tag']}") for row in listed]
    return [
        (id_, id_ if "<none>" in name else name)
        for id_, name in names
        if name not in current and id_ not in current_ids
    ]


def _old_images(usage: dict, all_users: bool) -> list[Item]:
    old = old_images(all_users)
    if not old:
        return []
    ids = {id_.removeprefix("sha256:")[:12] for id_, _ in old}
    rows = [row for row in usage.get("Images") or () if row["ID"].removeprefix("sha256:")[:12] in ids]
    size = int(sum(size_of(row["UniqueSize"]) for row in rows))
    tags = sorted({name for _, name in old if not name.startswith("sha256:")})
    title = f"{len(old)} old image{'' if len(old) == 1 else 's'}" + (f" ({', '.join(tags)})" if tags else "")
    consequence = f"more where they share layers with each other only; those of tag {images.tag()} stay"
    return [Item(title, size, consequence, lambda: _remove_images([name for _, name in old]))]


def _remove_images(names: Sequence[str]) -> None:
    for name in names:
        done = docker.run(["image", "rm", name], check=False)
        if done.returncode != 0:
            say(f"{name} stays: {done.stderr.strip().splitlines()[-1]}")


def _build_cache(usage: dict) -> list[Item]:
    """The sum is of what no image shares; the rest of the cache is the images' own layers."""
    unshared = [
        row
        for row in usage.get("BuildCache") or ()
        if not any(row.get(k) in ("true", True) for k in ("InUse", "Shared"))
    ]
    size = int(sum(size_of(row["Size"]) for row in unshared))
    if not size:
        return []
    consequence = "it is the engine's, also of other projects; the next build downloads everything again"
    return [
        Item("the build cache", size, consequence, lambda: docker.run(["buildx", "prune", "--all", "--force"]) and None)
    ]


def size_of(text: str) -> float:
    """Return the bytes that the engine's spelling means: '1.46GB', '12.3kB', 'N/A' (0)."""
    match = re.fullmatch(r"([\d.]+)\s*([kKMGT]?B)", text.strip())
    return float(match[1]) * UNITS[match[2].upper()] if match else 0.0


# --- local environments -------------------------------------------------------------------------------------


def _venvs() -> list[Item]:
    """Return the environments (images/*/.venv, admin/.venv, cluster/.venv) that no program runs from."""
    items = []
    for name in (*paths.image_names(), *paths.WITHOUT_IMAGE):
        env = venvs.named(name, paths.ROOT)
        if not env.venv.exists():
            continue
        if pids := users_of(env.venv):
            say(f"the local environment '{name}' stays: processes {', '.join(map(str, pids))} run from it")
            continue
        consequence = ("the next use" if env.is_without_image else f"./lab env {name}") + " makes it again"
        items.append(
            Item(f"the local environment '{name}'", freed_by(env.venv), consequence, lambda env=env: _remove(env))
        )
    return items


def _remove(env: venvs.Environment) -> None:
    with venvs.exclusive(env.directory / ".venv.lock", f"another call is setting up '{env.name}'"):
        try:
            shutil.rmtree(env.venv)
        except OSError as error:
            raise LabError(f"cannot remove {env.venv} ({error.strerror}); do it as the user who made it") from error


def users_of(venv: Path) -> list[int]:
    """Return the pids of processes that were started from a virtual environment, as far as this user may see."""
    pids = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if (processes.command(pid) or [""])[0].startswith(f"{venv}/")]


def freed_by(directory: Path) -> int:
    """Return the bytes on disk that removing a folder frees: not those that uv's cache shares (hard links)."""
    total = 0
    for root, _, files in os.walk(directory):
        for name in files:
            stat = os.lstat(os.path.join(root, name))
            total += stat.st_blocks * 512 if stat.st_nlink == 1 else 0
    return total
