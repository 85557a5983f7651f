"""Sources of data sets: recorded demonstrations, or the episodes of an evaluation run, behind one interface.

An evaluation stores an episode's actions and simulator states, but no images. So the episode is replayed: the same
start and the same actions must give every stored state to the bit, or the episode is rejected. The images are then
those that the policy received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vla_common.volume import Volume
from vla_contract.protocol.parts import Part
from vla_evaluation import benchmark
from vla_evaluation.benchmark import Assets, Task
from vla_evaluation.inputs import instruction
from vla_evaluation.recording.demonstrations import Demonstration, Demonstrations, Renderer, RenderSettings, renderer
from vla_evaluation.runs.directories import STORE, RunUnusable, find_run
from vla_evaluation.spec import RunSpec
from vla_evaluation.store.records import as_damage
from vla_evaluation.store.runstore import RunStore


@dataclass(frozen=True)
class ReplayedEpisode(Demonstration):
    """An episode of an evaluation run, as a demonstration: its arrays come from replaying it."""

    wait_steps: int = 0
    wait_action: tuple[float, ...] = ()
    scene: Mapping[str, Any] = field(default_factory=dict)  # `EpisodeProtocol.scene`

    ADVICE: ClassVar[str] = "evaluate again here"
    LENGTHS: ClassVar[dict[str, int]] = {"actions": 0, "states": 1}

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Return actions, states, sim_states and views; ValueError if a state differs from the run's."""
        rendering, actions, expected = renderer(self.source), self.stored["actions"], self.stored["states"]
        self.reset_scene(rendering)
        env = rendering.env
        for _ in range(self.wait_steps):
            env.step(np.asarray(self.wait_action, np.float32))
        steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for step, action in enumerate(actions):
            sim_state = env.sim_state()
            if not np.array_equal(sim_state, expected[step]):
                raise ValueError(
                    f"{self.path}: the replay differs from the run at step {step}; it was made with another "
                    f"version or on another kind of processor: {self.ADVICE}"
                )
            steps.append((env.state(), env.view(), sim_state))
            env.step(action)
        states, views, sim_states = (np.asarray(values) for values in zip(*steps, strict=True))
        arrays = {"actions": actions, "executed": actions}
        return {**arrays, "states": states, "views": views, "sim_states": sim_states}

    def load_scene(self, rendering: Renderer, task: Task) -> None:
        rendering.env.load_task(task, self.seed, **self.scene)
        rendering.env.reset(self.episode, rendering.benchmark.init_states(task)[self.episode])


@dataclass(frozen=True)
class Episodes:
    """The episodes of a recording or a run, and their origin as a data set states it (`facts`)."""

    name: str
    kind: str  # "recording" or "run"
    all: tuple[Demonstration, ...]
    facts: Mapping[str, Any]

    def provenance(
        self, episodes: Sequence[Demonstration], cameras: Mapping[str, str], size: int, turned_180: bool
    ) -> dict[str, Any]:
        """Return the origin stored with a data set, in meta/source.json: enough to identify a model's training data.

        `cameras` maps the set's keys to the simulator's names.
        """
        fields = ("task", "instruction", "episode", "seed", "success", "steps")
        return {
            **self.facts,
            "action": [asdict(part) for part in self.facts["action"]],
            "state": [asdict(part) for part in self.facts["state"]],
            "cameras": dict(cameras),
            "size": size,
            "turned_180": turned_180,
            "episodes": [{name: getattr(episode, name) for name in fields} for episode in episodes],
        }


def find(name: str, volume: Volume, render: str) -> Episodes:
    """Return the recording or the run of that name or directory. Raises ValueError if there is neither."""
    for directory in (volume.path("demonstrations") / name, Path(name).expanduser()):
        if (store := directory / STORE).is_file():
            with as_damage(store), RunStore(store, readonly=True) as opened:
                is_recording = "recording" in opened.described()
            if is_recording:
                recording = Demonstrations(directory, render)
                facts = _facts(recording.identity, recording.action, recording.state)
                facts |= {"recording": recording.name, "starts": "drawn", "noise": recording.noise}
                return Episodes(recording.name, "recording", recording.episodes, facts)
    try:
        directory = find_run(volume.path("runs"), name)
    except RunUnusable as error:
        raise ValueError(f"{name!r} is neither a recording nor a run: {error}") from error
    with as_damage(directory / STORE), RunStore(directory / STORE, readonly=True) as opened:
        identity, job, tasks = opened.meta("identity"), opened.meta("job"), opened.described()["tasks"]
        rows = [row for row in opened.finished() if "recording" in row.result]
    assets = Assets(identity["assets"]["kind"], Path(job["assets"]), identity["assets"]["digest"])
    source = RenderSettings(directory, job["benchmark"], assets, render)
    protocol = RunSpec.from_json(identity).protocol
    episodes = tuple(
        ReplayedEpisode(
            index, identity["suite"], row.task, row.episode,
            instruction(identity.get("instructions"), row.task, row.episode, tasks[row.task]["instruction"]),
            row.success, identity["seed"], row.steps, directory / row.result["recording"], source, protocol.wait_steps,
            protocol.wait_action, protocol.scene(),
        )
        for index, row in enumerate(rows)
    )  # fmt: skip
    action = tuple(Part(**part) for part in identity["action"])
    facts = _facts(identity, action, benchmark.load(job["benchmark"]).state)
    facts |= {"run": directory.name, "starts": "evaluation", "noise": 0.0}
    return Episodes(directory.name, "run", episodes, facts)


def _facts(identity: Mapping[str, Any], action: tuple[Part, ...], state: tuple[Part, ...]) -> dict[str, Any]:
    return {
        "benchmark": identity["benchmark"],
        "suite": identity["suite"],
        "policy": identity["policy"]["name"],
        "assets": identity["assets"],
        "rate_hz": identity["control_hz"],
        "action": action,
        "state": state,
    }


def choose(episodes: Episodes, keep_failures: bool) -> tuple[Demonstration, ...]:
    """Return the episodes to take, renumbered. Raises ValueError if there are none."""
    selected = [episode for episode in episodes.all if (episode.success or keep_failures) and episode.steps]
    if not selected:
        count = len(episodes.all)
        reason = f"none of its {count} episodes succeeded" if count else "it has no episodes yet"
        raise ValueError(f"{episodes.kind} {episodes.name}: {reason}, so there is no data to convert")
    return tuple(replace(episode, index=index) for index, episode in enumerate(selected))
