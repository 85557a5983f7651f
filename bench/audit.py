"""Faults that `./lab audit` finds, one at a time and in pairs, and its false accusations of healthy policies.

    ./lab bench audit [--quick] [--options "--only NAME,NAME --url URL --suite libero_goal"]

Every policy is served over HTTP; the faults of bench/parts/audit_faults.py are planted around it. By default it is a
policy that finds cubes in its images (bench/parts/audit_world.py); --url takes a running service instead, a mini-VLA
for example, which is asked about the recording that `./lab audit` has made of --suite.
"""

from __future__ import annotations

import functools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.common import figure, flags
from bench.parts import audit_world
from bench.parts.audit_faults import BY_NAME, FAULTS, Fault, Wrapped
from services.libero.benchmark import BENCHMARK
from tests.running import running
from vla_common.volume import Volume
from vla_contract import ActionChunk, Observation, Policy, PolicyClient, PolicyInfo
from vla_datasets import libero
from vla_datasets.dataset import Dataset
from vla_datasets.loader import open_dataset
from vla_evaluation.audit.recorded import RecordedEpisodes
from vla_evaluation.audit.run import Audit, audit
from vla_evaluation.offline.policy_view import view_as

CAMERAS = {camera: libero.video_key(camera) for camera in libero.CAMERAS}
QUICK = ("images upside down", "BGR", "sign of z", "gripper sign", "state in degrees", "stale images")
PAIRS = 10
EXECUTED = 5


def drawn_once(dataset: Dataset) -> Dataset:
    """Return the data set; its frames are drawn for the first audit only."""
    draw = functools.cache(dataset.frames)
    dataset.frames = lambda episode, key, indices=(): draw(episode, key, tuple(indices))
    return dataset


class Remote(Policy):
    """A policy service as a policy, to plant faults around it."""

    def __init__(self, url: str):
        self.client = PolicyClient(url)

    def info(self) -> PolicyInfo:
        return self.client.info()

    def act(self, observations: list[Observation]) -> list[ActionChunk]:
        return [self.client.act(seen) for seen in observations]

    def reset(self, session: str) -> None:
        self.client.reset(session)


HEALTHY: dict[str, dict[str, float]] = {
    **{f"seed {seed}": {"seed": seed} for seed in range(3)},
    **{f"noisy, seed {seed}": {"seed": seed, "noise": 0.3} for seed in range(2)},
    **{f"half blind, seed {seed}": {"seed": seed, "error": 0.3} for seed in range(2)},
    "poor": {"error": 0.5, "noise": 0.5},
    "exact": {"error": 0.0, "noise": 0.0},
    "one action per answer": {"horizon": 1},
}


def measure(dataset: Dataset, url: str, settings: dict[str, float], names: Sequence[str] = ()) -> Audit:
    """Audit a policy with these faults over HTTP."""
    values = dataset.statistics()[libero.ACTION]
    policy: Policy = Remote(url) if url else audit_world.LookingPolicy(**settings)  # type: ignore[arg-type]
    faulty = Wrapped(policy, tuple(BY_NAME[name] for name in names), np.stack([values["min"], values["max"]]))
    with running(faulty) as service, PolicyClient(service.url) as client:
        info = client.info()
        view = view_as(dataset, info, BENCHMARK.profiles, CAMERAS, {})
        return audit(client, view, libero.FPS, min(EXECUTED, info.horizon), 1500, familiar=True)


def report(label: str, faults: Sequence[Fault], result: Audit, began: float) -> tuple[int, list[str]]:
    """Print a line; return how many of the faults were named, and what else was."""
    found = [finding for verdict in result.wrong for finding in verdict.findings]
    named = sum(bool(set(fault.found_as) & set(found)) for fault in faults)
    expected = {name for fault in faults for name in fault.found_as}
    others = [name for name in found if name not in expected]
    word = "healthy" if not faults else "found" if named == len(faults) else "MISSED"
    seconds = time.monotonic() - began
    print(
        f"{word:<8} {label}: {', '.join(found) or 'nothing'} ({result.requests} requests, {seconds:.0f} s)", flush=True
    )
    return named, others


def main() -> None:
    """Measure, print the table, and the figures."""
    parser = flags(__doc__ or "", "six faults and two healthy policies")
    parser.add_argument("--url", default="", help="a running policy service to plant faults around")
    parser.add_argument("--suite", default="libero_goal", help="recording for --url")
    parser.add_argument("--only", default="", help="names of faults, separated by commas")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(QUICK) if options.quick else list(BY_NAME)
    with tempfile.TemporaryDirectory() as directory:
        if options.url:
            dataset: Dataset = RecordedEpisodes(Volume().demonstrations / f"audit-{options.suite}", CAMERAS)
            healthy: dict[str, dict[str, float]] = {"served policy": {}}
        else:
            audit_world.record(Path(directory, "world"))
            dataset = open_dataset(Path(directory, "world"))
            healthy = dict(list(HEALTHY.items())[:2]) if options.quick else HEALTHY
        dataset = drawn_once(dataset)
        seconds, accused, named, other = [], 0, 0, 0
        for label, settings in healthy.items() if not options.only else ():
            began = time.monotonic()
            accused += bool(report(label, (), measure(dataset, options.url, settings), began)[1])
            seconds.append(time.monotonic() - began)
        for name in names:
            began = time.monotonic()
            hits, more = report(name, [BY_NAME[name]], measure(dataset, options.url, {}, [name]), began)
            named, other = named + hits, other + bool(more)
            seconds.append(time.monotonic() - began)
        both = 0
        generator = random.Random(0)
        pairs = [generator.sample([fault.name for fault in FAULTS], 2) for _ in range(PAIRS)]
        pairs = [] if options.quick or options.only else pairs
        for pair in pairs:
            began = time.monotonic()
            faults = [BY_NAME[name] for name in pair]
            both += report(" + ".join(pair), faults, measure(dataset, options.url, {}, pair), began)[0]
    figure("found", 100 * named / len(names), "percent", ">=90", quick=True)
    if healthy and not options.only:
        figure("accused", accused, f"of {len(healthy)} healthy policies", "<=1", quick=True)
    figure("other findings beside a planted one", other, f"of {len(names)} policies", "none")
    if pairs:
        figure("found in pairs", 100 * both / (2 * len(pairs)), "percent of the faults", "none")
    figure("longest audit", max(seconds), "s", "<=300")


if __name__ == "__main__":
    main()
