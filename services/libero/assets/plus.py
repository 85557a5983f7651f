"""Assets that LIBERO-plus's tasks need beyond LIBERO's, and its list of difficulty levels.

Its assets, several gigabytes, are a zip on a model hub; unpack it and pass the directory as `--assets`. The list of
levels is a file of its repository.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from services.libero.assets.official import DownloadError
from services.libero.simulator import plus, suites
from services.libero.simulator.suites import Task
from vla_common.volume import make_directory

ASSETS_URL = "https://huggingface.co/datasets/Sylvest/LIBERO-plus"  # assets.zip
COMMIT = "4976dc30028e805ff8094b55501d532c48fec182"
LEVELS_URL = (
    f"https://raw.githubusercontent.com/sylvestf/LIBERO-plus/{COMMIT}/libero/libero/benchmark/task_classification.json"
)
LEVELS_SHA256 = "faa87cce3e3ba434da01df7c77523a391b5f2912e4774330b0aa1be5f6a999e6"
TIMEOUT_S = 30.0


def missing(directory: Path, tasks: Iterable[Task]) -> list[str]:
    """Return the files that these tasks of LIBERO-plus need and `directory` lacks."""
    names: dict[str, None] = {}
    for task in tasks:
        if task.disturbance is not None and task.kind in ("light", "background", "layout"):
            text, objects = task.written(), plus.objects()
            scene = plus.scene_of(text)
            names |= dict.fromkeys(scene.files() if scene else ())
            names |= dict.fromkeys(
                objects[category] for category in re.findall(r"-\s+(\w+)", text) if category in objects
            )
    return [name for name in names if not (directory / name).is_file()]


def buildable(directory: Path) -> dict[str, tuple[int, int]]:
    """Return, by kind, (the number of LIBERO-plus tasks whose files are all in `directory`, the total)."""
    counts = dict.fromkeys(plus.KINDS, (0, 0))
    for base in plus.BASES:
        for task in suites.load_suite(f"{base}_plus").tasks:
            good, count = counts[task.kind]
            counts[task.kind] = good + (not missing(directory, [task])), count + 1
    return counts


def fetch_levels(volume: Path, report: Callable[[str], None] = print) -> Path:
    """Return the path of the list of difficulty levels on the volume, downloading it if necessary.

    Raises DownloadError if it cannot be downloaded or has the wrong content.
    """
    import httpx  # imported here: every evaluation imports this module, few download

    target = plus.levels_path(volume)
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == LEVELS_SHA256:
        return target
    hint = f"; download {LEVELS_URL} on another machine and copy it to {target}"
    try:
        answer = httpx.get(LEVELS_URL, timeout=TIMEOUT_S, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        reason = str(error).partition("\n")[0]
        raise DownloadError(f"LIBERO-plus's difficulty levels could not be downloaded: {reason}{hint}") from error
    if hashlib.sha256(answer.content).hexdigest() != LEVELS_SHA256:
        raise DownloadError(f"{LEVELS_URL} has the wrong content; expected sha256 {LEVELS_SHA256[:12]}…{hint}")
    make_directory(target.parent)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.write_bytes(answer.content)
    partial.replace(target)
    report(f"LIBERO-plus: difficulty levels saved to {target}")
    return target
