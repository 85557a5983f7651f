"""Faults that `./lab audit` finds, one at a time and in pairs, and its false accusations of healthy policies.

    ./lab bench audit [--quick] [--options "--only NAME,NAME --url URL --suite libero_goal"]

Every policy is served over HTTP; the faults of bench/parts/audit_faults.py are planted around it. By default it is a
policy that finds cubes in its images (bench/parts/audit_world.py); --url takes a running service instead, a mini-VLA
for example, which is asked about the recording that `./lab audit` has made of --suite.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bench.common import figure, flags
from bench.parts import audit_world
from bench.parts.audit_faults import BY_NAME, Wrapped
from services.libero.benchmark import BENCHMARK
from tests.running import running
from vla_common.volume import Volume
from vla_contract import ActionChunk, InvalidObservation, Observation, Policy, PolicyClient, PolicyInfo
from vla_contract.protocol.errors import PolicyRefused
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
    """A deterministic, stateless policy service as a policy, to plant faults around it; no request is sent twice."""

    def __init__(self, url: str):
        self.client = PolicyClient(url, os.environ.get("VLALAB_TOKEN"))
        self.answers: dict[bytes, ActionChunk] = {}

    def info(self) -> PolicyInfo:
        return self.client.info()

    def act(self, observations: list[Observation]) -> list[ActionChunk | Exception]:
        with ThreadPoolExecutor(len(observations)) as pool:  # so that the service makes a batch of them
            return list(pool.map(self._answer, observations))

    def _answer(self, seen: Observation) -> ActionChunk | Exception:
        episode = seen.session.rsplit(".", 1)[0]
        state = b"" if seen.state is None else seen.state.tobytes()
        digest = hashlib.sha256(repr((episode, seen.step, seen.instruction)).encode() + state)
        for camera in sorted(seen.images):
            digest.update(np.ascontiguousarray(seen.images[camera]))
        if digest.digest() not in self.answers:
            try:
                self.answers[digest.digest()] = self.client.act(seen)
            except PolicyRefused as error:
                return InvalidObservation(str(error))
        return self.answers[digest.digest()]

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


def measure(dataset: Dataset, policy: Policy, names: Sequence[str] = ()) -> Audit:
    """Audit a policy with these faults over HTTP."""
    values = dataset.statistics()[libero.ACTION]
    faulty = Wrapped(policy, tuple(BY_NAME[name] for name in names), np.stack([values["min"], values["max"]]))
    with running(faulty) as service, PolicyClient(service.url) as client:
        info = client.info()
        view = view_as(dataset, info, BENCHMARK.profiles, CAMERAS, {})
        return audit(client, view, libero.FPS, min(EXECUTED, info.horizon), 1500, familiar=True)


def report(label: str, names: Sequence[str], result: Audit) -> tuple[int, list[str]]:
    """Print a line; return how many of the faults were named, and what else was."""
    faults = [BY_NAME[name] for name in names]
    found = [finding for verdict in result.wrong for finding in verdict.findings]
    named = sum(bool(set(fault.found_as) & set(found)) for fault in faults)
    others = [name for name in found if not any(name in fault.found_as for fault in faults)]
    word = "healthy" if not faults else "found" if named == len(faults) else "MISSED"
    print(f"{word:<8} {label}: {', '.join(found) or 'nothing'} ({result.requests} requests, {result.seconds:.0f} s)",
          flush=True)  # fmt: skip
    return named, others


def cases(only: str, quick: bool) -> list[tuple[str, ...]]:
    """Return the faults that are planted together: each alone, then random pairs."""
    if only:
        return [tuple(entry.split("+")) for entry in only.split(",")]
    if quick:
        return [(name,) for name in QUICK]
    generator = random.Random(0)
    return [*((name,) for name in BY_NAME), *(tuple(generator.sample(list(BY_NAME), 2)) for _ in range(PAIRS))]


def main() -> None:
    """Measure, print the table, and the figures."""
    parser = flags(__doc__ or "", "six faults and two healthy policies")
    parser.add_argument("--url", default="", help="a running policy service to plant faults around")
    parser.add_argument("--suite", default="libero_goal", help="recording for --url")
    parser.add_argument("--only", default="", help="names of faults: NAME,NAME+NAME plants one, then two together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.url:
            dataset: Dataset = RecordedEpisodes(Volume().demonstrations / f"audit-{options.suite}", CAMERAS)
            healthy: dict[str, Policy] = {"served policy": Remote(options.url)}
        else:
            audit_world.record(Path(directory, "world"))
            dataset = open_dataset(Path(directory, "world"))
            chosen = list(HEALTHY.items())[: 2 if options.quick else None]
            healthy = {label: audit_world.LookingPolicy(**settings) for label, settings in chosen}  # type: ignore[arg-type]
        policy = next(iter(healthy.values()))
        dataset = drawn_once(dataset)
        accused: list[str] = []
        missed: list[str] = []
        results: list[Audit] = []
        named, planted, other = [0, 0], [0, 0], 0
        for label, one in healthy.items() if not options.only else ():
            result = measure(dataset, one)
            accused += [label] if report(label, (), result)[1] else []
            results.append(result)
        for names in cases(options.only, options.quick):
            result = measure(dataset, policy, names)
            label = " + ".join(names)
            hits, more = report(label, names, result)
            missed += [label] if hits < len(names) else []
            named[len(names) - 1] += hits
            planted[len(names) - 1] += len(names)
            other += bool(more)
            results.append(result)
    print(f"missed: {', '.join(missed) or 'none'}; accused: {', '.join(accused) or 'none'}", flush=True)
    if planted[0]:
        figure("found", 100 * named[0] / planted[0], "percent", ">=90", quick=True)
    if not options.only:
        figure("accused", len(accused), f"of {len(healthy)} healthy policies", "<=1", quick=True)
    figure("other findings beside planted ones", other, "policies", "none")
    if planted[1]:
        figure("found in pairs", 100 * named[1] / planted[1], "percent of the faults", "none")
    figure("longest audit", max(result.seconds for result in results), "s", "<=300")
    figure("most requests of an audit", max(result.requests for result in results), "requests", "<=1500", quick=True)


if __name__ == "__main__":
    main()
