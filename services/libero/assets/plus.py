"""What LIBERO-plus's tasks need of an asset folder beyond LIBERO's files, and its list of difficulties.

Its assets, some gigabytes, are a zip on a model hub; unpacked they are an asset folder as any other, to be named with
`--assets`. The list of difficulties is a file of its repository.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from services.libero.assets.official import DownloadError
from services.libero.simulator import plus, suites
from services.libero.simulator.suites import Task
from vla_common.volume import make_directory

WHERE = "https://huggingface.co/datasets/Sylvest/LIBERO-plus"  # assets.zip
COMMIT = "4976dc30028e805ff8094b55501d532c48fec182"
LEVELS_URL = (
    f"https://raw.githubusercontent.com/sylvestf/LIBERO-plus/{COMMIT}/libero/libero/benchmark/task_classification.json"
)
LEVELS_SHA256 = "faa87cce3e3ba434da01df7c77523a391b5f2912e4774330b0aa1be5f6a999e6"
TIMEOUT_S = 30.0


def missing(directory: Path, tasks: Iterable[Task]) -> list[str]:
    """Return the files, below an asset directory, that tasks of LIBERO-plus name and that do not exist."""
    names: dict[str, None] = {}
    for task in tasks:
        if task.disturbance is not None and task.kind in ("light", "background", "layout"):
            text, objects = task.written(), plus.objects()
            scene = plus.scene_of(text)
            names |= dict.fromkeys(scene.files() if scene else ())
            names |= dict.fromkeys(objects[one] for one in re.findall(r"-\s+(\w+)", text) if one in objects)
    return [name for name in names if not (directory / name).is_file()]


def way_out(directory: Path, tasks: Sequence[Task], files: Sequence[str]) -> str:
    """Say why tasks cannot be built from a directory that lacks `files`, and what can be done."""
    count = sum(bool(missing(directory, [task])) for task in tasks)
    shown = ", ".join(files[:3]) + (", …" if files[3:] else "")
    return (
        f"{count} of {len(tasks)} tasks need files of LIBERO-plus's that {directory} lacks ({len(files)}: {shown}): "
        f"unpack the assets.zip of {WHERE} and name its folder, --assets DIR; or take the others: the kinds camera, "
        "robot, language and noise need none, and `./lab assets status` says how many tasks of the rest do"
    )


def buildable(directory: Path) -> dict[str, tuple[int, int]]:
    """Return by kind how many of LIBERO-plus's tasks an asset directory has all files for, and how many there are."""
    counts = dict.fromkeys(plus.KINDS, (0, 0))
    for base in plus.BASES:
        for task in suites.load_suite(f"{base}_plus").tasks:
            good, count = counts[task.kind]
            counts[task.kind] = good + (not missing(directory, [task])), count + 1
    return counts


def fetch_levels(volume: Path, say: Callable[[str], None] = print) -> Path:
    """Return the path of the list of difficulties on the volume, fetched where it is missing.

    Raises DownloadError, with the way out, where it cannot be had or is another file.
    """
    import httpx  # here: every evaluation looks at its assets, and few fetch any

    target = plus.levels_path(volume)
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == LEVELS_SHA256:
        return target
    way_out = f"; get {LEVELS_URL} elsewhere and put it at {target}"
    try:
        answer = httpx.get(LEVELS_URL, timeout=TIMEOUT_S, follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        reason = str(error).partition("\n")[0]
        raise DownloadError(f"LIBERO-plus's difficulties could not be had: {reason}{way_out}") from error
    if hashlib.sha256(answer.content).hexdigest() != LEVELS_SHA256:
        raise DownloadError(f"{LEVELS_URL} is not the file that was expected (sha256 {LEVELS_SHA256[:12]}…){way_out}")
    make_directory(target.parent)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.write_bytes(answer.content)
    partial.replace(target)
    say(f"LIBERO-plus: the difficulties of its tasks are in {target}")
    return target
