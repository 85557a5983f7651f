"""That the sides which the benchmarks of the simulator, the evaluator and the wire compare do different things."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench import batching, drop_in, fair, peer, plus, pro, programs, sim, wire
from bench import eval as eval_bench
from bench.common import served
from bench.parts import perturbed, recorded_program
from services.libero.simulator import pro as pro_suites
from services.libero.simulator import suites
from tests.calls import count_calls
from tests.gpu_parts import run_gpu_parts
from vla_contract import Observation
from vla_contract.server import token_file
from vla_contract.server.batching import InferenceJob
from vla_contract.server.tenants import Tenant
from vla_evaluation.config import parse_args


@pytest.mark.parametrize(("name", "waits"), [("waiting", True), ("no waiting", False)])
def test_batching_holds_a_batch_back_for_a_client_on_one_side_only(name, waits, monkeypatch):
    queue = batching.make_app(name, 0.1).state.engine.queue
    queue.max_batch = 2
    queue.record_inference(0.1, [])
    tenant = Tenant("admin")

    async def take() -> list[str]:
        return [job.client for job in await queue.take()]

    queue.put(InferenceJob(Observation({}, None, "bench", "due", 0), None, "due", tenant, time.monotonic() + 60))
    asyncio.run(take())
    queue.put(InferenceJob(Observation({}, None, "bench", "here", 0), None, "here", tenant, time.monotonic() + 60))
    waited = count_calls(monkeypatch, type(queue), "_wait")
    assert asyncio.run(take()) == ["here"]
    assert bool(waited) == waits


def test_fair_floods_on_one_side_only(tmp_path):
    """Every client has a token that the service takes; the flood's requests are in progress together."""
    tokens = {name: token_file.add(tmp_path / "tokens.json", name, concurrency=8) for name in ("flood", "other")}
    with served(fair.make_app, str(tmp_path / "tokens.json"), 0.1) as url:
        counts = [list(map(len, fair.run(url, tokens, [flood, 1], 1.0))) for flood in (1, 8)]
    assert all(min(own) > 0 for own in counts)
    assert counts[1][0] > counts[0][0] and fair.jain([1, 1]) == 1.0 and fair.jain([1, 0]) == 0.5


def test_wire_sends_other_bytes_on_each_side():
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    with served(wire.make_app) as url:
        asks = wire.variants(url, image)
        assert [len(asks[name]()) for name in ("v1", "act", "raw")] == [7, 7, 7]
        sent = wire.body_bytes(url)
    assert image.nbytes == sent["/raw"] < sent["/v1/act"] < sent["/act"]


def test_sim_steps_the_stock_environment_on_one_side_and_the_labs_on_the_other(libero_runtime, monkeypatch):
    from libero.libero.envs import OffScreenRenderEnv

    from services.libero.simulator.env import LiberoEnv

    task = suites.load_suite("libero_goal").tasks[0]
    sides = {"stock": sim.StockLoop(task, None), "ours": sim.OurLoop(task, libero_runtime.assets, 0)}
    stock, ours = count_calls(monkeypatch, OffScreenRenderEnv, "step"), count_calls(monkeypatch, LiberoEnv, "step")
    stepped = {}
    for name, loop in sides.items():
        loop.reset(suites.init_states(task)[0])
        stock.clear()
        ours.clear()
        loop.play(sim.smooth_actions(2))
        stepped[name] = (len(stock), len(ours))
        loop.close()
    assert stepped == {"stock": (2, 0), "ours": (0, 2)}


def test_drop_in_runs_libero_on_one_side_and_the_package_on_the_others(libero_runtime, monkeypatch):
    from fast_libero.problem import FastProblem
    from fast_libero.rendering.context import RenderContext

    sides = drop_in.make_sides(suites.load_suite("libero_object").tasks[0], "openvla")
    steps = count_calls(monkeypatch, FastProblem, "_advance")
    images = count_calls(monkeypatch, RenderContext, "draw")
    counts = {}
    for name, loop in sides.items():
        steps.clear()
        images.clear()
        loop.play(sim.smooth_actions(2))
        counts[name] = (len(steps), len(images))
        loop.env.close()
    shown = 2 * (drop_in.WAIT + 2 + 2)  # both cameras at each step, after the reset and the init state
    assert counts == {"stock": (0, 0), "fast": (drop_in.WAIT + 2, shown), "lazy": (drop_in.WAIT + 2, 2)}
    assert len({loop.seen[0] for loop in sides.values()}) == 1


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """Return a list of the commands that a benchmark would run; none is run."""
    commands = []

    class Ended:
        returncode = 0

        def __init__(self, words, **keywords):
            commands.append(([str(word) for word in words], keywords.get("env") or {}))

        def wait(self, *_):
            return 0

        poll = kill = terminate = wait

    monkeypatch.setattr(subprocess, "Popen", Ended)
    monkeypatch.setattr(subprocess, "run", Ended)
    return commands


def job_of(command: list[str]):
    """Return the evaluator's settings of `python -m services.libero WORDS`."""
    assert command[1:3] == ["-m", "services.libero"]
    return parse_args(command[3:], tuple(suites.SUITES))


def test_eval_runs_one_worker_and_two(recorded, tmp_path):
    for workers in (1, 2):
        with pytest.raises(Exception, match="run.sqlite"):
            eval_bench.measure(tmp_path, "http://127.0.0.1:1", workers, 2, None, "1")
    assert [job_of(words).workers for words, _ in recorded] == [1, 2]


def test_peer_runs_vla_evals_harness_on_one_side_and_the_evaluator_on_the_other(recorded, tmp_path):
    setting = peer.Setting("/peer/python", "kit", "libero_goal", tmp_path / "actions.npy", 2, 3, False)
    peer.run_vla_eval(setting, "127.0.0.1:1", tmp_path)
    assert [words[:2] for words, _ in recorded] == [["/peer/python", str(peer.PARTS / "peer_shard.py")]] * 2
    recorded.clear()
    peer.run_vla_lab(setting, "http://127.0.0.1:1", tmp_path)
    assert [job_of(words).workers for words, _ in recorded] == [2]


def imported(name: str, variables: dict[str, str]) -> Path:
    """Return where a process with these variables has a package from."""
    program = f"import importlib.util; print(importlib.util.find_spec({name!r}).origin)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_pro_imports_libero_pros_package_on_one_side_and_libero_on_the_other(monkeypatch, tmp_path):
    task = suites.load_suite(pro.SUITES[0]).tasks[0]
    commands, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **keywords: commands.append((words, keywords["env"])))
    with pytest.raises(FileNotFoundError):
        pro.stock([task], tmp_path, tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    ((words, variables),) = commands
    assert words[1] == str(perturbed.STOCK)
    theirs = imported("libero.libero", variables)
    assert theirs.is_relative_to(pro_suites.PACKAGE_ROOT), theirs
    assert imported("libero.libero", {}) != theirs


def test_plus_runs_libero_pluss_own_code_on_one_side(monkeypatch, tmp_path):
    task = plus.sample(plus.SUITES[0], 0)
    commands, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **keywords: commands.append((words, keywords["env"])))
    with pytest.raises(FileNotFoundError):
        plus.stock([task], tmp_path / "assets", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    ((words, variables),) = commands
    assert words[1] == str(perturbed.STOCK)
    assert "liberoplus.liberoplus.envs import OffScreenRenderEnv" in perturbed.STOCK.read_text()
    assert imported("liberoplus.liberoplus", variables).is_relative_to(tmp_path)


def test_gpu_compares_frames_of_two_renderers(tmp_path):
    """Frames of the CPU twice: the second run compares with those that the first one stored as the GPU's."""
    run_gpu_parts(tmp_path, "egl_cpu")
    (tmp_path / "frames-cpu.npz").rename(tmp_path / "frames-gpu.npz")
    figures = run_gpu_parts(tmp_path, "egl_cpu")["egl_cpu"]["figures"]
    values = {figure["name"]: figure["value"] for figure in figures}
    assert values["gpu_egl_pixels_differ_8"] == 0 and values["gpu_egl_over_llvmpipe"] > 0


def test_programs_runs_libero_on_one_side_and_the_package_on_the_other(libero_runtime, tmp_path, monkeypatch):
    """A program of a few lines in the place of another project's; a difference is reported with its call."""
    from libero.libero.envs import env_wrapper

    task = suites.load_suite("libero_object").tasks[0]
    (tmp_path / "main.py").write_text("from libero.libero.envs import OffScreenRenderEnv\n")
    for name in ("reset", "set_init_state", "step"):  # are the original ones after this test
        monkeypatch.setattr(env_wrapper.ControlEnv, name, getattr(env_wrapper.ControlEnv, name))
    original = dict(vars(env_wrapper.ControlEnv))
    records = {}
    for side in ("stock", "fast"):
        for name in ("reset", "set_init_state", "step"):
            monkeypatch.setattr(env_wrapper.ControlEnv, name, original[name])
        recorder = recorded_program.Recorder(steps=1)
        recorder.attach(env_wrapper.ControlEnv)
        program = recorded_program.module(f"program_{side}", tmp_path / "main.py", side)
        env = program.OffScreenRenderEnv(bddl_file_name=str(task.bddl_path), camera_heights=64, camera_widths=64)
        env.seed(0)
        env.reset()
        env.set_init_state(suites.init_states(task)[0])
        ends = [env.step([0.5, 0, 0, 0, 0, 0, -1])[2] for _ in range(recorded_program.WAIT + 1)]
        env.close()
        assert ends == [False] * recorded_program.WAIT + [True]
        records[side] = recorder.record()
    stock, fast = records.values()
    assert "fast_libero.problem" in fast["problems"] and "fast_libero.problem" not in stock["problems"]
    assert len(stock["calls"]) == recorded_program.WAIT + 3 and programs.difference(stock, fast) == ""
    fast["calls"][5] = fast["calls"][5] | {"images": "other"}
    assert programs.difference(stock, fast) == "call 5 (step): images differ"


def test_a_policy_of_bytes_answers_every_pixel_differently():
    policy, images = programs.BytesPolicy(), {"agentview": np.zeros((8, 8, 3), np.uint8)}
    first = Observation(images, np.zeros(8, np.float32), "go", "s", 0)
    [answer], [again] = policy.act([first]), policy.act([first])
    assert np.array_equal(answer.actions, again.actions) and answer.actions.shape == (programs.HORIZON, 7)
    images["agentview"][3, 3, 0] = 1
    assert not np.array_equal(answer.actions, policy.act([first])[0].actions)
