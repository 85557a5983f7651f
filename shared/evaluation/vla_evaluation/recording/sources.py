"""What a data set is made of: recorded demonstrations, or the episodes of an evaluation run, behind one interface.

An evaluation keeps an episode's actions and simulator states and no pictures. So it is played again: the same start,
the same actions, and after every step the same state to the bit, or the episode is refused. What a policy saw then
is seen again.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vla_common.volume import Volume
from vla_contract.protocol.parts import Part
from vla_evaluation import benchmark
from vla_evaluation.benchmark import Assets
from vla_evaluation.recording import drawing
from vla_evaluation.recording.reading import Demonstration, Demonstrations, Source
from vla_evaluation.runs.folders import STORE, RunRefused, find_run
from vla_evaluation.spec import RunSpec
from vla_evaluation.store.records import Finished, as_damage
from vla_evaluation.store.runstore import RunStore


@dataclass(frozen=True)
class Replayed(Demonstration):
    """An episode of an evaluation run, as a demonstration: its arrays come of playing it again."""

    wait_steps: int = 0
    wait_action: tuple[float, ...] = ()
    scene: Mapping[str, Any] = field(default_factory=dict)  # `EpisodeProtocol.scene`

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Returns actions, states, sim_states and views; ValueError where the episode does not go as it went."""
        env, of = drawing.painter(self.source, self._size).env, benchmark.load(self.source.module)
        recorded = self._recorded()
        task = next(one for one in of.tasks(self.suite) if one.index == self.task)
        env.load_task(task, self.seed, **self.scene)
        env.reset(self.episode, of.init_states(task)[self.episode])
        for name, pose in env.fixture_poses().items():
            if not np.array_equal(recorded[f"fixture_{name}"], pose):
                raise ValueError(f"{self.path}: {name} stood elsewhere in the run; evaluate again to learn from it")
        for _ in range(self.wait_steps):
            env.step(np.asarray(self.wait_action, np.float32))
        return self._played(env, recorded["actions"], recorded["states"])

    def _recorded(self) -> dict[str, np.ndarray]:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
            if len(found["actions"]) != self.steps or len(found["states"]) != self.steps + 1:
                raise ValueError(f"its arrays do not have {self.steps} steps")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"episode {self.path} cannot be read: {error}") from error
        return found

    def _played(self, env, actions: np.ndarray, states: np.ndarray) -> dict[str, np.ndarray]:
        kept: dict[str, list[np.ndarray]] = {"states": [], "views": [], "sim_states": []}
        for step, action in enumerate(actions):
            now = env.sim_state()
            if not np.array_equal(now, states[step]):
                raise ValueError(
                    f"{self.path}: played again, step {step} has another state than in the run; it was made with "
                    "another version or on another kind of processor: evaluate again here"
                )
            for name, value in zip(kept, (env.state(), env.view(), now), strict=True):
                kept[name].append(value)
            env.step(action)
        return {"actions": actions, "executed": actions} | {name: np.asarray(one) for name, one in kept.items()}

    def frames(self, camera: str, size: int) -> np.ndarray:
        """Returns `Demonstration.frames`; the scene stands as the episode left it, since it was just played."""
        object.__setattr__(self, "_drawn_at", size)
        views, env = self.views, drawing.painter(self.source, size).env
        pictures = np.empty((self.steps, size, size, 3), np.uint8)
        for picture, view in zip(pictures, views, strict=True):
            env.show(view)
            picture[:] = env.render(camera)
        return pictures

    @property
    def _size(self) -> int:
        return self.__dict__.get("_drawn_at", 64)


@dataclass(frozen=True)
class Episodes:
    """What is to be converted: a recording's or a run's episodes, and what a data set says of where they are from."""

    name: str
    kind: str  # "recording" or "run"
    all: tuple[Demonstration, ...]
    facts: Mapping[str, Any]


def find(name: str, volume: Volume, render: str) -> Episodes:
    """Returns the recording or the run that a name or a folder means. Raises ValueError where there is neither."""
    for folder in (volume.path("demonstrations") / name, Path(name).expanduser()):
        if (folder / STORE).is_file() and _is_recording(folder):
            return _recording(folder, render)
    try:
        return _run(find_run(volume.path("runs"), name), render)
    except RunRefused as error:
        raise ValueError(f"{name!r} is neither a recording nor a run: {error}") from error


def _is_recording(folder: Path) -> bool:
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        return "recording" in store.described()


def _recording(folder: Path, render: str) -> Episodes:
    found = Demonstrations(folder, render)
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        facts = _facts(store.meta("identity"), found.action, found.state)
    facts |= {"recording": found.name, "starts": "drawn", "noise": found.noise}
    return Episodes(found.name, "recording", found.episodes, facts)


def _run(folder: Path, render: str) -> Episodes:
    with as_damage(folder / STORE), RunStore(folder / STORE, readonly=True) as store:
        identity, job, about = store.meta("identity"), store.meta("job"), store.described()
        rows = [row for row in store.finished() if "recording" in row.result]
    of = benchmark.load(job["benchmark"])
    assets = Assets(identity["assets"]["kind"], Path(job["assets"]), identity["assets"]["digest"])
    source = Source(folder, job["benchmark"], assets, render)
    protocol = RunSpec.from_json(identity).protocol
    waiting = {"wait_steps": protocol.wait_steps, "wait_action": protocol.wait_action, "scene": protocol.scene()}
    texts = [task["instruction"] for task in about["tasks"]]
    episodes = tuple(_replayed(index, row, identity, texts, source, folder, waiting) for index, row in enumerate(rows))
    action = tuple(Part(**part) for part in identity["action"])
    facts = _facts(identity, action, of.state) | {"run": folder.name, "starts": "evaluation", "noise": 0.0}
    return Episodes(folder.name, "run", episodes, facts)


def _replayed(
    index: int, row: Finished, identity: dict, texts: list[str], source: Source, folder: Path, waiting: dict
) -> Replayed:
    return Replayed(
        index, identity["suite"], row.task, row.episode, texts[row.task], row.success, identity["seed"], row.steps,
        folder / row.result["recording"], source, **waiting,
    )  # fmt: skip


def _facts(identity: dict, action: tuple[Part, ...], state: tuple[Part, ...]) -> dict[str, Any]:
    return {
        "benchmark": identity["benchmark"],
        "suite": identity["suite"],
        "policy": identity["policy"]["name"],
        "assets": identity["assets"],
        "rate_hz": identity["control_hz"],
        "action": action,
        "state": state,
    }


def choose(found: Episodes, keep_failures: bool) -> tuple[Demonstration, ...]:
    """Returns the episodes to take, numbered anew. Raises ValueError where there are none."""
    kept = [one for one in found.all if (one.success or keep_failures) and one.steps]
    if not kept:
        tried = f"{len(found.all)} episodes are there, and none succeeded" if found.all else "it has no episodes yet"
        raise ValueError(f"{found.kind} {found.name}: {tried}; nothing can be learned from it")
    return tuple(replace(one, index=index) for index, one in enumerate(kept))
