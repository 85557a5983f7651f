"""What was recorded, read back: `Demonstrations(folder)` needs neither benchmark nor simulator until it draws."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from vla_contract.protocol.parts import Part
from vla_evaluation.benchmark import Assets
from vla_evaluation.runs.folders import STORE
from vla_evaluation.store.records import Finished, StoreError, as_damage
from vla_evaluation.store.runstore import RunStore


@dataclass(frozen=True)
class Source:
    """What pictures of a recording are drawn with: its folder, the benchmark's module, assets; auto, cpu or gpu."""

    folder: Path
    module: str
    assets: Assets
    render: str


@dataclass(frozen=True)
class Demonstration:
    """One recorded episode, of T steps. Its arrays are read when they are first asked for.

    index    its place in the recording, from 0
    suite    of its task
    task     index of its task in the suite
    episode  its number among the task's attempts: with `seed`, what its start was drawn from
    """

    index: int
    suite: str
    task: int
    episode: int
    instruction: str
    success: bool
    seed: int
    steps: int
    path: Path
    source: Source = field(repr=False)

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """All that was recorded, by name, `fixture_…` being poses; ValueError where the file is damaged."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            if any(len(arrays[name]) != self.steps for name in ("actions", "executed", "states", "views")):
                raise ValueError(f"its arrays do not have {self.steps} steps")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"demonstration {self.path} cannot be read: {reason}; record it again") from error
        return arrays

    @property
    def actions(self) -> np.ndarray:
        """What the policy answered at each step, float32 [T, m] as the benchmark executes it: what is to be learned."""
        return self.arrays["actions"]

    @property
    def executed(self) -> np.ndarray:
        """What was executed, float32 [T, m]: with noise not what was answered."""
        return self.arrays["executed"]

    @property
    def states(self) -> np.ndarray:
        """The proprioception that a policy would have been sent before each action: float32 [T, n]."""
        return self.arrays["states"]

    @property
    def sim_states(self) -> np.ndarray:
        """The simulator's whole state before each action: float64 [T, k]."""
        return self.arrays["sim_states"]

    @property
    def views(self) -> np.ndarray:
        """What pictures before each action show: float64 [T, v]; see `Environment.view`."""
        return self.arrays["views"]

    def frames(self, camera: str, size: int) -> np.ndarray:
        """Returns the pictures that a policy would have been sent before each action, drawn now: uint8 [T, size, size,
        3], bottom row first as the environment draws them (`[:, ::-1]` is upright, `[:, ::-1, ::-1]` turned by
        180°). ValueError for a camera that there is not, or where they cannot be drawn as they were.
        """
        from vla_evaluation.recording import drawing  # here: reading needs no more than the folder

        return drawing.painter(self.source, size).frames(self, camera)


class Demonstrations:
    """A folder that `./lab record` made. What is still being recorded may be read, too: what is finished is there.

    name, suite, policy  the recording's, the suite's and the policy's name
    benchmark            the benchmark's name
    rate_hz              steps per second
    cameras              those that can be drawn
    action, state        the parts of `Demonstration.actions` and `.states`
    noise                the standard deviation of what was added to the executed actions, 0 for none
    tasks                instructions by the task's index
    episodes             the demonstrations, by task and episode
    """

    def __init__(self, folder: Path | str, render: str = "auto"):
        """Reads the store; ValueError where the folder holds no recording, or a damaged one."""
        self.folder = Path(folder).absolute()
        store = self.folder / STORE
        if not store.is_file():
            raise ValueError(f"{folder} holds no recording (no {STORE}); `./lab record` makes one")
        try:
            with as_damage(store), RunStore(store, readonly=True) as opened:
                self._read(opened, render)
        except StoreError as error:
            raise ValueError(str(error)) from error

    def _read(self, store: RunStore, render: str) -> None:
        about, identity = store.described(), store.meta("identity")
        if "recording" not in about:
            raise ValueError(f"{self.folder} is a run of an evaluation, which nothing may be learned from; record one")
        facts = about["recording"]
        self.name, self.suite, self.policy = self.folder.name, store.suite, identity["policy"]["name"]
        self.benchmark, self.rate_hz = identity["benchmark"], float(identity["control_hz"])
        self.cameras, self.noise = tuple(facts["cameras"]), float(identity["recording"]["noise"])
        self.action = tuple(Part(**part) for part in identity["action"])
        self.state = tuple(Part(**part) for part in facts["state"])
        self.tasks = {index: task["instruction"] for index, task in enumerate(about["tasks"])}
        assets = Assets(identity["assets"]["kind"], Path(store.meta("job")["assets"]), identity["assets"]["digest"])
        source = Source(self.folder, store.meta("job")["benchmark"], assets, render)
        kept = [row for row in store.finished() if "recording" in row.result]
        self.episodes = tuple(self._demonstration(index, row, source) for index, row in enumerate(kept))

    def _demonstration(self, index: int, row: Finished, source: Source) -> Demonstration:
        return Demonstration(
            index,
            self.suite,
            row.task,
            row.episode,
            self.tasks[row.task],
            row.success,
            row.result["seed"],
            row.result["kept_steps"],
            self.folder / row.result["recording"],
            source,
        )
