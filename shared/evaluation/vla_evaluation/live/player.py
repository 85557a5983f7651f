"""A session's process: `python -m vla_evaluation.live.player MODULE OPENING WORK SOCKET PARENT_PID`.

Episodes run as an evaluation's do, by `vla_evaluation.rollout`; here is what stands between its steps and people. A
picture is drawn only while somebody waits for one, so nobody looking costs nothing and a slow reader holds up nobody.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vla_common import endings
from vla_common.volume import Volume
from vla_contract import ActionChunk, ContractError, Observation, PolicyClient, PolicyInfo
from vla_evaluation import benchmark
from vla_evaluation.actions import PolicyFault
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.benchmark import Benchmark, Environment, require_assets
from vla_evaluation.config import EvalConfig
from vla_evaluation.live import keeping, wire
from vla_evaluation.live.controls import Controls, Left
from vla_evaluation.live.opening import PERSON_STEPS, Opening
from vla_evaluation.pictures.images import upright
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.recording.tape import Noise, Tape, seed_of
from vla_evaluation.rollout import Record, run_episode
from vla_evaluation.terminal import one_line
from vla_evaluation.workers.worker import die_with_parent

EYES = 2  # cameras that people see: the benchmark's first ones
FRAMES_PER_S = 10.0
ANSWER_S = 60.0
JPEG_QUALITY = 90


class Seen:
    """An environment whose pictures of one moment are drawn once, and whose instruction may be another."""

    def __init__(self, env: Environment, controls: Controls):
        self._env, self._controls, self._drawn = env, controls, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @property
    def instruction(self) -> str:
        return self._controls.instruction or self._env.instruction

    def render(self, camera: str) -> np.ndarray:
        if camera not in self._drawn:
            self._drawn[camera] = self._env.render(camera)
        return self._drawn[camera]

    def moved(self, name: str, *arguments: Any) -> Any:
        self._drawn.clear()
        return getattr(self._env, name)(*arguments)

    def step(self, action: np.ndarray) -> bool:
        return self.moved("step", action)

    def reset(self, episode: int, init_state: np.ndarray) -> None:
        self.moved("reset", episode, init_state)

    def restore(self, sim_state: np.ndarray) -> None:
        self.moved("restore", sim_state)


class Player:
    """One session; `run` returns when it is closed."""

    def __init__(self, of: Benchmark, opening: Opening, work: Path, connection: socket.socket):
        self.benchmark, self.opening, self.work, self.connection = of, opening, work, connection
        self.controls = Controls(of.action, "policy" if opening.policy else "person")
        self.state, self.reason, self.trouble, self.kept = "starting", "the simulator is loading", "", ""
        self.instruction = of.tasks(opening.suite)[opening.task].instruction
        self.episode, self.step, self.success, self.by_person = 0, 0, False, 0
        self.policy_ms: float | None = None
        self.actions: list[list[float]] = []
        self._told = 0  # of them, to the service
        self.robot: list[float] = []  # what it told last, as `Benchmark.state` says
        self.record: Record | None = None
        self.env: Seen | None = None
        self._last: dict | None = None
        self._drawn_at = self._due = 0.0

    # --- the life of a session ----------------------------------------------------------------------------

    def run(self) -> None:
        """Prepares, and plays episodes until it is closed."""
        self.prepare()
        do = "reset"
        while do != "close":
            if self.controls.start:
                self.opening = self.opening.starting(self.controls.start)
            self.controls.begin()
            do = self.play() or self.after()

    def prepare(self) -> None:
        """Asks the policy what it is, and builds the environment."""
        token = os.environ.get("VLALAB_TOKEN") or None
        self.info = PolicyInfo(name="person", action=self.benchmark.action)
        if self.opening.policy:
            self.client = PolicyClient(self.opening.policy_url, token, ANSWER_S, ANSWER_S, retries=1)
            self.info = self.client.info()
        config = EvalConfig(self.opening.suite, max_steps=None if self.opening.policy else PERSON_STEPS)
        plan = make_plan(self.benchmark, config, choose_profile(self.info, self.benchmark, None))
        check_policy(self.info, self.benchmark, config.suite, plan.profile)
        self.spec, self.task = specify(plan, self.info), plan.tasks[self.opening.task]
        self.assets = self.benchmark.assets(None, Volume().root)
        require_assets(self.benchmark, [self.task], self.assets)
        size, render = self.spec.protocol.camera_size, self.spec.render
        env = self.benchmark.make_env(self.assets.path, self.work, tuple(self.benchmark.cameras), size, render)
        self.env = Seen(env, self.controls)

    def play(self) -> str:
        """Runs an episode; returns for what it was left where it has not ended."""
        self.episode, self.step, self.success, self.by_person = self.episode + 1, 0, False, 0
        self.record, self.kept, self.actions, self._told, self.policy_ms = None, "", [], 0, None
        self.state, self.reason, self.trouble, self.reworded = "starting", "the scene is built", "", False
        self.offer()
        number, start = self.place()
        self.tape = Tape(self.env, self.benchmark.action, Noise(self.benchmark.action, 0.0, 0))
        self._waiting, self._passed, self._due, self._session = self.spec.protocol.wait_steps, -1, 0.0, ""
        try:
            self.record = run_episode(
                self.env, number, start, act=self.act, spec=self.spec, session="live", tick=self.tick, alter=self.alter
            )
        except PolicyFault as error:
            self.end(f"the policy answered no action that can be executed: {one_line(error)}")
        except Left as left:
            if left.do != "finish":
                self.forget()
                return left.do
            self.end("finished before it was solved")
        else:
            self.end("solved" if self.record.success else f"not solved within {self.spec.max_steps} steps")
        return ""

    def place(self) -> tuple[int, np.ndarray]:
        """Loads the task; returns which episode of its draws this is, and the state that it starts from."""
        if self.opening.init is None:
            self.seed = seed_of(0, self.task.index, self.opening.drawn)
            self.env.load_task(self.task, self.seed, **self.spec.protocol.scene(drawn=True))
            return 0, self.env.start(0)
        states = self.benchmark.init_states(self.task)
        if self.opening.init >= len(states):
            raise ValueError(f"the task has init states 0-{len(states) - 1}, none has number {self.opening.init}")
        self.seed = self.spec.seed
        self.env.load_task(self.task, self.seed, **self.spec.protocol.scene())
        return self.opening.init, states[self.opening.init]

    def end(self, reason: str) -> None:
        """Notes how an episode ended, and its states, of which a film can be drawn."""
        self.success = self.record is not None and self.record.success
        self.step, self.state, self.reason, self.trouble = len(self.actions), "ended", reason, ""
        self.states = np.asarray([*self.tape.steps["sim_states"], self.env.sim_state()])
        self.forget()

    def after(self) -> str:
        """Does what is asked of an episode that has ended; returns for what it is left."""
        while True:
            try:
                self.controls.wait(lambda: bool(self.controls.jobs), self.offer)
                job = self.controls.jobs.popleft()
                self.send({"answer": job["id"], **self.guarded(job)}, self._blob)
            except Left as left:
                if left.do != "finish":
                    return left.do
                self.controls.begin()

    def guarded(self, job: dict) -> dict:
        """Returns what a job came to, or in words why to nothing: the session goes on."""
        self._blob = b""
        try:
            if job["do"] == "film":
                self._blob = keeping.film(self.env, self.benchmark, self.states, self.work)
                return {"bytes": len(self._blob)}
            if refusal := self.refusal():
                raise ValueError(refusal)
            self.kept = keeping.demonstration(self)
            return {"kept": self.kept}
        except Exception as error:  # a full disk, a damaged store: said on the page
            if not isinstance(error, ValueError):
                logging.exception("%s failed", job["do"])
            found = endings.ending(error, (Exception,))
            return {"error": one_line(found.text if found else error)}

    def refusal(self) -> str:
        """Returns why this episode is no demonstration; empty where it can be kept."""
        if self.state != "ended" or self.record is None or not self.success:
            return "only an episode that was solved is kept, as `./lab record` does"
        if self.opening.init is not None:
            return "it began at a start of the evaluation, from which nothing may be learned; take a drawn start"
        if self.reworded:
            return "its instruction was another than the task's; start again with the task's own words"
        return f"it is kept already, in {self.kept}" if self.kept else ""

    # --- between the steps --------------------------------------------------------------------------------

    def tick(self, steps: int) -> None:
        """Waits until the next step may be done; called before a policy is asked and before every step."""
        if self._waiting:
            self._waiting -= 1
            return self.controls.left()
        if steps == self._passed:
            return
        self.step, self.state, self.reason = steps, "running", ""
        self.pace()
        self.controls.wait(self.controls.goes, self.offer)  # last: who is told of a pause finds no step done after it
        self._passed = steps

    def pace(self) -> None:
        """Waits until it is time for the step, at the speed that was asked for."""
        if self.controls.speed:
            now = time.monotonic()
            self._due = max(self._due + 1 / (self.spec.control_hz * self.controls.speed), now)
            self.controls.wait(lambda: not self.controls.speed, self.offer, self._due)

    def alter(self, action: np.ndarray) -> np.ndarray:
        """Returns the action to execute: the policy's, or the person's who has taken over. Both are noted."""
        if self.controls.driver == "person":
            self.by_person += 1
            action = self.controls.action()
        self.reworded = self.reworded or self.controls.instruction not in (None, self.instruction)
        self.actions.append([round(float(number), 4) for number in action])
        return self.tape(action)

    def act(self, observation: Observation) -> ActionChunk:
        """Returns the policy's answer; while a person drives, one that `alter` replaces. Waits out a policy's faults:
        for it to come back, or for a person to take over.
        """
        while self.controls.driver == "policy":
            try:
                return self.ask(observation)
            except ContractError as error:
                self.trouble, self._session, self.controls.playing = one_line(error), "", False
                self.controls.wait(lambda: self.controls.playing, self.offer)
                self.trouble = ""
        self._session = ""
        return ActionChunk(np.zeros((1, self.info.action_size), np.float32))

    def ask(self, observation: Observation) -> ActionChunk:
        """Asks the policy. For one that takes over now, or again, this is the first step of an episode."""
        if not self._session:
            self._session, self._base = f"live-{uuid.uuid4().hex}", observation.step
        privileged = observation.privileged
        if self.info.needs_privileged and observation.step == self._base:
            privileged = self.env.privileged(True)
        step, began = observation.step - self._base, time.perf_counter()
        chunk = self.client.act(replace(observation, session=self._session, step=step, privileged=privileged))
        self.policy_ms = round((time.perf_counter() - began) * 1e3, 1)
        return chunk

    def forget(self) -> None:
        """Tells a policy that keeps sessions that this one has ended."""
        if self._session and self.info.stateful:
            try:
                self.client.reset(self._session)
            except ContractError as error:
                logging.warning("session %s could not be ended: %s", self._session, one_line(error))
        self._session = ""

    # --- what people see ----------------------------------------------------------------------------------

    def head(self) -> dict[str, Any]:
        """Returns what is to be told, but for pictures, new actions and times."""
        controls, opening = self.controls, self.opening
        running = self.state == "running"
        return {
            "state": "trouble" if self.trouble else "paused" if running and not controls.playing else self.state,
            "episode": self.episode,
            "step": self.step,
            "max_steps": self.spec.max_steps if self.env else 0,
            "success": self.success,
            "reason": self.trouble or self.reason,
            "instruction": controls.instruction or self.instruction,
            "task_instruction": self.instruction,
            "driver": controls.driver,
            "policy": opening.policy,
            "policy_ms": self.policy_ms,
            "speed": controls.speed,
            "start": {"drawn": opening.drawn} if opening.init is None else {"init": opening.init},
            "not_kept": self.refusal(),
            "kept": self.kept,
            "by_person": self.by_person,
            "robot": self.robot,
        }

    def offer(self) -> None:
        """Sends what is new, with pictures, to who waits for it."""
        if not self.controls.wanted or (head := self.head()) == self._last:
            return
        moves = self.state == "running" and self._last is not None and head["state"] == self._last["state"]
        if moves and time.monotonic() - self._drawn_at < 1 / FRAMES_PER_S:
            return
        self.controls.wanted = False
        if self.stands():
            self.robot = head["robot"] = [round(float(number), 4) for number in self.env.state()]
        self._drawn_at, self._last = time.monotonic(), head
        pictures = self.pictures() if self.stands() else {}
        news = {
            "pictures": {name: len(data) for name, data in pictures.items()},
            "rendered_ms": time.time() * 1e3,
            "actions_from": self._told,
            "actions": self.actions[self._told :],
        }
        self._told = len(self.actions)
        self.send({**head, **news}, *pictures.values())

    def stands(self) -> bool:
        """Whether there is a scene to look at."""
        return self.state in ("running", "ended")

    def pictures(self) -> dict[str, bytes]:
        """Returns a JPEG per camera, upright."""
        from simplejpeg import encode_jpeg

        encode = partial(encode_jpeg, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling="444")
        return {name: encode(upright(self.env.render(name))) for name in self.benchmark.cameras[:EYES]}

    def send(self, head: dict[str, Any], *blobs: bytes) -> None:
        self.connection.sendall(wire.packed(head, *blobs))


def listen(player: Player) -> None:
    """Takes commands until the service closes the session."""
    while (command := wire.receive(player.connection)) is not None:
        player.controls.tell(command)
    player.controls.tell({"do": "close"})


def main(arguments: list[str]) -> int:
    """Runs a session to its end; returns the exit code. What goes wrong is told the service first."""
    module, opening, work, descriptor, parent = arguments
    die_with_parent(int(parent))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    connection = socket.socket(fileno=int(descriptor))
    player = Player(benchmark.load(module), Opening(**json.loads(opening)), Path(work), connection)
    threading.Thread(target=listen, args=(player,), daemon=True).start()
    try:
        player.run()
    except BrokenPipeError:
        return 0
    except Exception as error:
        if not isinstance(error, (ContractError, ValueError, OSError)):
            logging.exception("the session failed")
        found = endings.ending(error, (ContractError, ValueError))
        text = found.text if found else f"{type(error).__name__}: {error}"
        player.send({"state": "failed", "reason": one_line(text)[:1000], "episode": player.episode})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
