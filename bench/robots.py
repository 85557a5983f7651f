"""LIBERO's two arms, of robosuite 1.4.0 and of 1.4.1: what one collision shape more does to outcomes.

    ./lab bench robots [--quick]
        [--options "--assets kit|official|FOLDER --suites libero_goal,libero_10 --tasks N --episodes N"]

The oracle plays each episode with either arm, and what it did with the one of 1.4.0 is played again with the other's.
Counted are episodes that are solved, that end otherwise (solved or not), and that end in other bits, with how far apart
their states ever were (one more shape is another order of sums, even where it touches nothing); and the steps at whose
end the new shape touched something. Nothing is drawn.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass

import numpy as np

from bench.common import figure, flags
from services.libero import assets
from services.libero.benchmark import BENCHMARK
from services.libero.profiles import ARM_141, PROFILES
from services.libero.simulator import runtime, suites
from vla_common.volume import Volume
from vla_contract import ActionChunk
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.rollout import Record, run_episode

ENVIRONMENT = "libero"
SHAPE = "robot0_link7_collision"


@dataclass
class Count:
    """Episodes with both arms, by the oracle and replayed."""

    episodes: int = 0
    solved: int = 0  # with 1.4.0's
    solved_141: int = 0
    replayed: int = 0  # what was done with 1.4.0's, with 1.4.1's
    otherwise: int = 0  # solved with one arm and not with the other, by the oracle
    otherwise_replayed: int = 0
    bits: int = 0  # replayed to another last state
    farthest: float = 0.0  # of what came of the same actions: the largest difference of a number of the state
    steps: int = 0
    touching: int = 0  # steps of the replay at whose end the shape touches something

    def add(self, own: Record, other: Record, again: Record, touching: int) -> None:
        """Counts an episode: the oracle's with either arm, and the replay."""
        self.episodes += 1
        self.solved += own.success
        self.solved_141 += other.success
        self.replayed += again.success
        self.otherwise += own.success != other.success
        self.otherwise_replayed += own.success != again.success
        self.bits += own.end_hash != again.end_hash
        same = min(len(own.states), len(again.states))
        self.farthest = max(self.farthest, float(np.abs(own.states[:same] - again.states[:same]).max()))
        self.steps += again.steps
        self.touching += touching

    def __str__(self) -> str:
        return (
            f"{self.episodes} episodes; oracle solves {self.solved} with 1.4.0's arm, {self.solved_141} with 1.4.1's, "
            f"{self.otherwise} end otherwise; its actions on 1.4.0's solve {self.replayed} with 1.4.1's, "
            f"{self.otherwise_replayed} end otherwise, {self.bits} in other bits (states at most "
            f"{self.farthest:.1e} apart); the shape touches something after "
            f"{self.touching} of {self.steps} steps"
        )


class Arms:
    """Plays episodes of a suite with the one arm or the other."""

    def __init__(self, env, suite: str):
        from services.libero.oracle.policy import OraclePolicy

        self.env, self.oracle, self.touched = env, OraclePolicy(), 0
        plan = make_plan(BENCHMARK, EvalConfig(suite, profile="openvla"))
        self.spec = specify(plan, self.oracle.info())

    def play(self, task, episode: int, robot: str, actions: np.ndarray | None = None) -> Record:
        """Returns the record of an episode: the oracle's, or of the actions that are given."""
        self.env.load_task(task, self.spec.seed, robot=robot)
        start, self.touched = suites.init_states(task)[episode], 0
        names = self.env.domain.sim.model.geom_names
        if (SHAPE in names) != (robot == ARM_141):
            raise RuntimeError(
                f"robot {robot!r} has {'a' if SHAPE in names else 'no'} shape {SHAPE}: the arms are equal"
            )
        shape = names.index(SHAPE) if SHAPE in names else -1

        def act(observation) -> ActionChunk:
            if actions is not None:
                return ActionChunk(actions[observation.step : observation.step + 1])
            (answer,) = self.oracle.act([observation])
            if isinstance(answer, Exception):
                raise answer
            return answer

        def tick(steps: int) -> None:
            contact = self.env._data.contact
            self.touched += steps > 0 and bool(np.any(contact.geom == shape))

        spec = self.spec if actions is None else self._as_long(len(actions))
        name = f"bench.{task.index}.{episode}.0.{time.monotonic_ns()}"
        try:
            return run_episode(self.env, episode, start, act=act, spec=spec, session=name, tick=tick)
        finally:
            self.oracle.reset(name)

    def _as_long(self, steps: int):
        plan = make_plan(BENCHMARK, EvalConfig(self.spec.suite, profile="openvla", max_steps=steps))
        return specify(plan, self.oracle.info())


def measure(env, suite: str, tasks: int, episodes: int) -> Count:
    """Returns the counts of a suite's first tasks and episodes."""
    arms, count = Arms(env, suite), Count()
    for task in suites.load_suite(suite).tasks[:tasks]:
        of_one = [arms.play(task, episode, "") for episode in range(episodes)]
        for episode, own in enumerate(of_one):
            other = arms.play(task, episode, ARM_141)
            again = arms.play(task, episode, ARM_141, own.actions)
            count.add(own, other, again, arms.touched)
    print(f"{suite}: {count}", flush=True)
    return count


def main() -> int:
    """Measures all suites that were asked for; returns 1 where an outcome differs in more than 5 % of the episodes."""
    parser = flags(__doc__.splitlines()[0], "two tasks of a suite, one episode each")
    parser.add_argument("--assets", default="kit")
    parser.add_argument("--suites", default=",".join(suites.SUITES))
    parser.add_argument("--tasks", type=int, default=4, help="of each suite, the first ones")
    parser.add_argument("--episodes", type=int, default=1)
    asked = parser.parse_args()
    tasks, episodes = (2, 1) if asked.quick else (asked.tasks, asked.episodes)
    source = assets.resolve(asked.assets, Volume().root)
    with tempfile.TemporaryDirectory() as work:
        runtime.configure(source.path, work, render="none")
        from services.libero.simulator.env import LiberoEnv

        env = LiberoEnv(source.path)
        print(f"assets: {source.kind}; profile openvla but for the arm: seed {PROFILES['openvla'].env_seed}")
        counts = [measure(env, suite, tasks, episodes) for suite in asked.suites.split(",")]
        env.close()
    total = Count(*(sum(getattr(one, name) for one in counts) for name in Count.__dataclass_fields__))
    total.farthest = max(one.farthest for one in counts)
    print(f"all: {total}")
    good = [
        figure("outcome_oracle", 100 * total.otherwise / total.episodes, "%", "<=5", quick=True),
        figure("outcome_replayed", 100 * total.otherwise_replayed / total.episodes, "%", "<=5", quick=True),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    raise SystemExit(main())
