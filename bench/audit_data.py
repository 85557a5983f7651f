"""Faults of meaning that the audit of data sets finds: eleven kinds, planted one at a time, and false suspicions.

    ./lab record libero_goal --episodes 50 --name goal && ./lab dataset goal --format lerobot --size 128
    ./lab bench audit_data [--quick] [--options "--sets goal,mt10 --healthy object-v3.0"]

--sets: LeRobot v2.1 sets of LIBERO or Meta-World on the volume, to plant into; a set of an arm with joint angles, which
this program draws, is always measured. --healthy: more sets, only for false suspicions. Parts of 8 episodes are healthy
sets, too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.common import figure, flags, missed
from bench.parts import planted_data
from vla_datasets.audit import KINDS, DatasetAudit, audit_samples
from vla_datasets.audit.samples import Sample, read, read_sample
from vla_datasets.lerobot import LeRobotDataset
from vla_datasets.loader import find, open_dataset

ENVIRONMENT = "libero"
ROBOTS = {
    "arm5": planted_data.ARM,
    "panda": planted_data.Robot((3, 4, 5), (3, 4, 5)),
    "sawyer": planted_data.Robot((), (), 3, (-1.0, 1.0)),
}
PART = 8  # episodes of a small healthy set


def is_found(result: DatasetAudit, kind: str, episode: int, is_whole: bool) -> bool:
    """Return whether the audit names the kind, at the episode unless the fault is in all."""
    notes = [note for note in result.notes if note.kind == kind]
    return any(is_whole or episode in note.episodes for note in notes)


def reread(dataset: LeRobotDataset, samples: list[Sample], copy: LeRobotDataset) -> list[Sample]:
    """Return the samples of a copy: only episodes whose files are not links to those of `dataset` are read again."""
    result = []
    for sample, episode in zip(samples, copy.episodes, strict=True):
        paths = [of.data_path(episode.index) for of in (dataset, copy)]
        pairs = [paths, *([of.video_path(episode.index, key) for of in (dataset, copy)] for key in copy.video_keys)]
        is_same = all(os.path.samefile(*pair) for pair in pairs)
        result.append(replace(sample, episode=episode) if is_same else read_sample(copy, episode))
    return result


def planted(dataset: LeRobotDataset, indices: Iterable[int], root: Path) -> dict[str, list[bool]]:
    """Plant every fault at each of some episodes; print what is found and return it by the fault's name."""
    robot, episodes = ROBOTS[dataset.info["robot_type"]], planted_data.load(dataset)
    samples = read(dataset, lambda done, of: None)
    found: dict[str, list[bool]] = {}
    for name, (kind, change) in planted_data.plants(robot, len(dataset.video_keys)).items():
        is_whole = name.endswith(("all", "everywhere"))
        others = 0
        for index in list(indices)[: 1 if name.endswith(("all", "everywhere")) else None]:
            copy = planted_data.plant(root / "planted", dataset, episodes, change, index)
            result = audit_samples(copy, reread(dataset, samples, copy))
            found.setdefault(name, []).append(is_found(result, kind, index, is_whole))
            others += sum(note.kind != kind for note in result.notes)
            shutil.rmtree(root / "planted")
        print(f"  {name:30} found {sum(found[name])} of {len(found[name])}, other suspicions {others}", flush=True)
    return found


def healthy(directory: Path) -> tuple[int, int, int]:
    """Return the suspicions about a healthy set, those about parts of it, and the number of parts."""
    dataset = open_dataset(directory)
    start = time.process_time()
    samples = read(dataset, lambda done, of: None)
    whole = audit_samples(dataset, samples)
    seconds = time.process_time() - start
    parts = [samples[first : first + PART] for first in range(0, len(samples) - PART + 1, PART)]
    results = [audit_samples(dataset, part) for part in parts]
    for note in (note for result in (whole, *results) for note in result.notes):
        print(f"  {note}")
    false = sum(len(result.notes) for result in results)
    print(f"{dataset.name}, healthy: {len(whole.notes)} suspicions in {len(samples)} episodes, {false} in {len(parts)} "
          f"parts of {PART}; {seconds:.1f} s of processor time", flush=True)  # fmt: skip
    return len(whole.notes), false, len(parts)


def measure(sets: Iterable[str], more: Iterable[str], count: int, places: int) -> dict[str, float]:
    """Print all results; return the lowest share of kinds found and the numbers of false suspicions.

    count: episodes of the drawn arm. places: episodes to plant each fault at.
    """
    shares, false = [], []
    with tempfile.TemporaryDirectory(prefix="vla-lab-bench-") as temporary:
        root = Path(temporary)
        planted_data.arm_set(root / "arm", count)
        directories = [root / "arm", *(find(name) for name in sets)]
        for directory in directories:
            dataset = LeRobotDataset(directory)
            total = len(dataset.episodes)
            indices = [(2 * place + 1) * total // (2 * places) for place in range(places)]
            print(f"{dataset.name}: {total} episodes, faults at episodes {', '.join(map(str, indices))}")
            found, kinds = planted(dataset, indices, directory.parent), planted_data.plants(planted_data.ARM, 2)
            of_kind = {kind: [hits for name, hits in found.items() if kinds[name][0] == kind] for kind in KINDS}
            # A kind is found if its most visible variant is, at every episode.
            named = sum(any(all(hits) for hits in variants) for variants in of_kind.values() if variants)
            possible = sum(bool(variants) for variants in of_kind.values())
            print(f"{dataset.name}: {named} of {possible} kinds found")
            shares.append(named / possible)
        false = [healthy(directory) for directory in (*directories, *(find(name) for name in more))]
    whole, parts, number = (sum(counts) for counts in zip(*false, strict=True))
    print(f"{parts} suspicions in {number} healthy parts of {PART} episodes, {whole} in {len(false)} whole sets")
    return {"kinds": min(shares), "false": max(counts[0] for counts in false), "false_small": parts / max(1, number)}


def main() -> int:
    """Plant, audit and print the figures."""
    parser = flags(__doc__, "one episode per fault, 20 of the drawn arm")
    parser.add_argument("--sets", default="", help="names of data sets to plant into, separated by commas")
    parser.add_argument("--healthy", default="", help="names of further healthy sets")
    options = parser.parse_args()
    sets, more = ([name for name in text.split(",") if name] for text in (options.sets, options.healthy))
    values = measure(sets, more, *((20, 1) if options.quick else (50, 3)))
    figure("audit_data_kinds_found", values["kinds"], "share of the kinds, worst set", ">=0.8", quick=True)
    figure("audit_data_false_suspicions", values["false"], "in the worst healthy set", "<=1", quick=True)
    figure("audit_data_false_small", values["false_small"], "per 8 episodes", "none")
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
