"""Machines that join a run, over real HTTP: every episode once and the same, whoever does it and whatever goes away.

With a simulator that costs next to nothing; tests/terminal/test_cluster.py has machines join with LIBERO.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest

from tests import mounts
from tests.libero.harness import ENVIRONMENT, ROOT, TIMEOUT_S, LightEvaluation, PolicyService, results, wait_for

EPISODES = 3
PLAN = [(0, episode) for episode in range(EPISODES)]


@pytest.fixture(scope="module")
def flags():
    return (
        "--tasks", "0", "--trials", str(EPISODES), "--max-steps", "12",
        "--workers", "1", "--lease-s", "6", "--listen", "127.0.0.1:0",
    )  # fmt: skip


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Two of the same, so that each machine's episode can be held by itself."""
    directory = tmp_path_factory.mktemp("policies")
    with PolicyService(directory / "a.txt") as one, PolicyService(directory / "b.txt") as other:
        yield one, other


@pytest.fixture(scope="module")
def undisturbed(policies, flags, tmp_path_factory):
    with LightEvaluation(tmp_path_factory.mktemp("calm"), "calm", "--policy-url", policies[0].url, *flags) as run:
        run.end()
        return results(run.directory)


class Machine(LightEvaluation):
    """A machine that joins, in a volume of its own; `folder` is where its workers work."""

    def __init__(self, volume, url, *arguments, **variables):
        self.directory, self.log = volume, volume / "joined.txt"
        volume.mkdir()
        command = [sys.executable, "-m", self.module, "join", url, "--workers", "1"]
        environment = {**ENVIRONMENT, "VLALAB_VOLUME": str(volume), **variables}
        with open(self.log, "w") as output:
            self.process = subprocess.Popen(
                [*command, "--name", "two", *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


class Wire:
    """Connections that go on to an address, until somebody cuts the wire. While it is not `whole`, what is sent is
    neither refused nor heard, as where a network falls apart; it arrives late.
    """

    def __init__(self, port: int):
        self.port, self.is_cut, self.refused, self.open = port, False, 0, []
        self.whole = threading.Event()
        self.whole.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        self.is_cut = True
        for one in self.open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # closing alone leaves one open that a thread reads from
            one.close()

    def _accept(self):
        while True:
            near, _ = self.listener.accept()
            self.whole.wait()
            if self.is_cut:
                self.refused += 1
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.port))
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one, other):
        try:
            while data := one.recv(65536):
                self.whole.wait()
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()


def address(run: LightEvaluation) -> str:
    told = run.wait_for(lambda: run.output.partition("--join ")[2].partition("\n"), "its address")
    run.wait_for(lambda: "\n" in run.output.partition("--join ")[2], "the whole of its address")
    return told and run.output.partition("--join ")[2].split()[0]


def doing(run: LightEvaluation, episode: int, who: LightEvaluation | None = None) -> str:
    """Waits, no longer than `who` lives, until somebody has that episode; returns its worker."""
    sql = f"SELECT worker FROM episodes WHERE status = 'leased' AND episode = {episode}"
    return (who or run).wait_for(lambda: run.peek(sql), f"episode {episode} under way")[0][0]


def done(run: LightEvaluation) -> dict:
    return dict(run.peek("SELECT episode, worker FROM episodes WHERE status = 'done'"))


@pytest.fixture
def held(policies, flags, tmp_path, stack):
    """A run whose own worker is held in episode 0, and its address; the second policy is for who joins."""
    policies[0].hold(0)
    stack.callback(policies[0].release)
    run = stack.enter_context(LightEvaluation(tmp_path / "runs", "run", "--policy-url", policies[0].url, *flags))
    assert doing(run, 0) == "worker-0"
    return run, address(run)


@pytest.fixture
def an_hour_ahead(tmp_path):
    """The variable that makes every Python of a machine, its workers' too, tell the time of another clock."""
    (tmp_path / "ahead").mkdir()
    (tmp_path / "ahead/sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 3600\n")
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "ahead"), ENVIRONMENT["PYTHONPATH"]])}
    command = [sys.executable, "-c", "import time; print(time.time())"]
    told = subprocess.check_output(command, env={**ENVIRONMENT, **variables})
    assert float(told) > time.time() + 3000
    return variables


def test_joined_machine_runs_episodes_and_renders_videos(policies, held, undisturbed, tmp_path, stack, an_hour_ahead):
    """Its clock is an hour ahead, which no row shows: the evaluator's is the only one."""
    run, url = held
    machine = stack.enter_context(Machine(tmp_path / "two", url, "--policy-url", policies[1].url, **an_hour_ahead))
    machine.wait_for(lambda: len(done(run)) == EPISODES - 1, "what the other machine does")
    policies[0].release()
    assert "has no work left" in machine.end()
    run.end()
    assert results(run.directory) == undisturbed and sorted(undisturbed) == PLAN
    assert done(run) == {0: "worker-0", 1: "two.worker-0", 2: "two.worker-0"}
    assert {path.name for path in run.directory.glob("episodes/*")} == {f"00-0{k}.npz" for k in range(EPISODES)}
    assert len([*run.directory.glob("videos/*.mp4")]) == len([*run.directory.glob("videos/*.jpg")]) == EPISODES
    assert not [*machine.directory.rglob("*.npz"), *machine.directory.rglob("*.mp4")]
    latest = run.peek("SELECT MAX(ended_at), MAX(leased_at), MAX(expires_at) FROM episodes")[0]
    assert max(latest) < time.time() + 600
    hosts = run.peek("SELECT json_extract(notes, '$.hosts.two.workers') FROM sessions")
    assert hosts == [(1,)]
    shown = json.loads((run.directory / "summary.json").read_text())["hosts"]
    assert [(one["host"], one["episodes"], one["workers"], one["faults"]) for one in shown] == [
        ("evaluator", 1, 1, 0), ("two", 2, 1, 0),
    ]  # fmt: skip
    assert all(one["steps_per_s"] > 0 for one in shown)
    rows = [json.loads(line) for line in (run.directory / "episodes.jsonl").read_text().splitlines()]
    assert [row["host"] for row in rows] == ["evaluator", "two", "two"] and all("renderer" in row for row in rows)
    assert "<dt>two</dt><dd>2 episodes, 1 worker" in (run.directory / "report.html").read_text()
    assert re.search(r"evaluator \d at \d+ steps/s \+ two 2 at \d+ steps/s", run.output)


def test_different_machine_is_rejected_with_both_values(held, tmp_path, stack):
    run, url = held

    def refusal(name, where=url, *arguments, **variables):
        return stack.enter_context(Machine(tmp_path / name, where, *arguments, **variables))

    other_lock = refusal("lock", VLALAB_LOCK_HASH="f" * 64)
    nobody = refusal("nobody", "http://127.0.0.1:9")
    no_evaluator = refusal("policy", "http://" + url.rpartition("/")[2] + "/v1")
    far_policy = refusal("far", url, "--policy-url", "http://127.0.0.1:9")
    two_policies = refusal("two", url, "--policy-url", "http://127.0.0.1:9,http://127.0.0.1:7")
    said = other_lock.end(2)
    assert "cannot join" in said and f"→ {'f' * 8}\n" in said and "lock:" in said
    assert "no response from http://127.0.0.1:9" in nobody.end(2)
    assert "is not an evaluator that can be joined" in no_evaluator.end(2)
    assert "from this machine at http://127.0.0.1:9" in far_policy.end(2)
    assert "lists 2 of the run's 1 addresses; expected one for each" in two_policies.end(2)
    assert run.peek("SELECT DISTINCT worker FROM episodes WHERE worker IS NOT NULL") == [("worker-0",)]


def test_episode_of_a_dead_machine_is_returned(policies, held, undisturbed, tmp_path, stack):
    run, url = held
    with policies[1].holding(1):
        machine = stack.enter_context(Machine(tmp_path / "two", url, "--policy-url", policies[1].url))
        assert doing(run, 1, machine) == "two.worker-0"
        machine.kill()
    policies[0].release()
    run.end()
    assert results(run.directory) == undisturbed
    assert run.peek("SELECT episode, worker FROM episodes WHERE status = 'lost'") == [(1, "two.worker-0")]


def test_short_network_outage_loses_nothing(policies, held, undisturbed, tmp_path, stack):
    run, url = held
    wire = Wire(int(url.rpartition(":")[2]))
    with policies[1].holding(1):
        machine = stack.enter_context(Machine(tmp_path / "two", wire.url, "--policy-url", policies[1].url))
        assert doing(run, 1, machine) == "two.worker-0"
        wire.cut()
    wait_for(lambda: wire.refused >= 4, "calls in vain")
    assert machine.process.poll() is None
    wire.is_cut = False
    machine.wait_for(lambda: len(done(run)) == EPISODES - 1, "what the other machine does")
    policies[0].release()
    machine.end()
    run.end()
    assert results(run.directory) == undisturbed


def test_network_partition_episode_is_redone_and_counts_once(policies, held, undisturbed, tmp_path, stack):
    run, url = held
    wire = Wire(int(url.rpartition(":")[2]))
    stack.callback(wire.whole.set)
    with policies[1].holding(1):
        machine = stack.enter_context(Machine(tmp_path / "two", wire.url, "--policy-url", policies[1].url))
        assert doing(run, 1, machine) == "two.worker-0"
        wire.whole.clear()
        policies[0].release()
        run.wait_for(lambda: done(run).get(1) == "worker-0", "the episode that was lost, done by the other")
    wire.whole.set()
    machine.end()
    run.end()
    assert results(run.directory) == undisturbed
    lost = run.peek("SELECT episode, worker FROM episodes WHERE status = 'lost'")
    assert (1, "two.worker-0") in lost


def test_episode_of_a_machine_with_full_disk_is_redone_elsewhere(policies, held, undisturbed, tmp_path, stack):
    run, url = held
    directory = tmp_path / "small"
    directory.mkdir()
    stack.enter_context(mounts.small(directory, "4m"))
    with policies[1].holding(1):
        machine = stack.enter_context(Machine(directory / "two", url, "--policy-url", policies[1].url))
        assert doing(run, 1, machine) == "two.worker-0"
        mounts.fill(directory)
    machine.process.wait(TIMEOUT_S)
    policies[0].release()
    run.end()
    assert machine.process.returncode == 1
    assert results(run.directory) == undisturbed and set(done(run).values()) == {"worker-0"}


def test_joined_machine_ends_when_the_evaluator_dies(policies, held, flags, undisturbed, tmp_path, stack):
    run, url = held
    with policies[1].holding(1):
        machine = stack.enter_context(
            Machine(tmp_path / "two", url, "--policy-url", policies[1].url, "--patience-s", "2")
        )
        assert doing(run, 1, machine) == "two.worker-0"
        run.kill()
        said = machine.end(1)
    assert "has not responded for 2 s" in said and "Join it again" in said and "Traceback" not in said
    policies[0].release()
    with LightEvaluation(tmp_path / "runs", "run", "--policy-url", policies[0].url, *flags) as again:
        again.end()
    assert results(run.directory) == undisturbed


def test_token_is_required(policies, flags, tmp_path, stack):
    token = "a-token-of-the-lab"
    policies[0].hold(0)
    stack.callback(policies[0].release)
    with LightEvaluation(tmp_path / "runs", "run", "--policy-url", policies[0].url, *flags, VLALAB_TOKEN=token) as run:
        url = address(run)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/v1/run", timeout=30)
        assert refused.value.code == 401
        machine = stack.enter_context(Machine(tmp_path / "two", url, "--token", "another-token"))
        assert "wrong token" in machine.end(2)
    open_to_all = [flag if flag != "127.0.0.1:0" else "0.0.0.0:0" for flag in flags]
    with LightEvaluation(tmp_path / "runs", "open", "--policy-url", policies[0].url, *open_to_all) as run:
        assert "VLALAB_TOKEN" in run.end(2)
