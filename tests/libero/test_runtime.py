"""LIBERO starts without a prompt, a download, stray files or noise; and the right device draws."""

import ctypes.util
import hashlib
import json
import os
import subprocess
import sys

import pytest

from services.libero.simulator import runtime, suites
from tests.libero.harness import ENVIRONMENT, ROOT
from vla_common import gl
from vla_common.gl import EglDevice, choose
from vla_evaluation.workers.supervisor import thread_environment

EPISODE = """
import json, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("LIBERO wants the network")
socket.socket.connect = refuse
from services.libero.simulator import runtime, suites
from services.libero.simulator.env import LiberoEnv
configured = runtime.configure(sys.argv[1], sys.argv[2], sys.argv[3])
task = suites.load_suite("libero_goal").tasks[0]
env = LiberoEnv(configured.assets)
env.load_task(task)
env.reset(0, suites.init_states(task)[0])
env.step([0.0] * 7)
frame = env.render() if sys.argv[3] != "none" else None
result = {"shape": None, "sum": None} if frame is None else {"shape": frame.shape, "sum": int(frame.sum())}
print(json.dumps(result | {"torch": "torch" in sys.modules, "gl": configured.gl.backend}))
"""


def run_episode(assets, directory, render="cpu", before="", **environment):
    """Run `before` and one step in a fresh process: stdin closed, home, temporary and current folder empty."""
    for name in ("home", "tmp", "cwd"):
        (directory / name).mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HOME": str(directory / "home"),
        "TMPDIR": str(directory / "tmp"),
        **environment,
    }
    command = [sys.executable, "-c", before + EPISODE, str(assets), str(directory / "work"), render]
    return subprocess.run(
        command, env=env, cwd=directory / "cwd", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def test_quiet_start_in_an_empty_home(libero_assets, tmp_path):
    run = run_episode(libero_assets, tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    said = json.loads(run.stdout)
    assert (said["shape"], said["torch"]) == ([256, 256, 3], False)
    strays = [str(path) for name in ("home", "tmp", "cwd") for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert [path for path in strays if "mesa_shader_cache" not in path] == []
    assert (tmp_path / "work" / "libero" / "config.yaml").exists()


def test_without_gl_everything_but_rendering_works(libero_assets, tmp_path):
    run = run_episode(libero_assets, tmp_path, render="none", CUDA_VISIBLE_DEVICES="3", MUJOCO_EGL_DEVICE_ID="0")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["gl"] == "disable"


def test_osmesa_renders_the_same_without_egl(libero_assets, tmp_path):
    """Both are llvmpipe."""
    if not ctypes.util.find_library("OSMesa") or choose("cpu", environ={}).backend != "egl":
        pytest.skip("this machine has not both, EGL in software and OSMesa")
    said = {}
    no_egl = "from vla_common import gl; gl.egl_devices = lambda: None"
    for backend, before in (("egl", ""), ("osmesa", no_egl)):
        (tmp_path / backend).mkdir()
        run = run_episode(libero_assets, tmp_path / backend, before=before)
        assert (run.returncode, run.stderr) == (0, ""), run.stderr
        said[backend] = json.loads(run.stdout)
        assert said[backend]["gl"] == backend
    assert said["egl"]["sum"] == said["osmesa"]["sum"]


@pytest.fixture
def devices(monkeypatch):
    """Set what EGL shows."""

    def show(*found):
        monkeypatch.setattr(gl, "egl_devices", lambda: list(found))
        monkeypatch.setattr(gl, "context_error", lambda index: None)

    return show


GPU0, GPU1, SOFT = EglDevice(0, False, 1), EglDevice(1, False, 0), EglDevice(2, True, None)


def test_modes_choose_their_device(devices):
    devices(GPU0, GPU1, SOFT)
    assert choose("cpu", environ={}).device == 2
    assert choose("auto", environ={}).device == 0
    assert choose("gpu", environ={}).device == 0
    assert not choose("gpu", environ={}).software
    assert choose("none", environ={}).backend == "disable"


def test_cuda_order_is_translated_to_egls(devices):
    """CUDA's device 0 is EGL's second one here; robosuite would take the number for EGL's."""
    devices(GPU0, GPU1, SOFT)
    assert choose("gpu", environ={"CUDA_VISIBLE_DEVICES": "0"}).device == 1
    assert choose("gpu", environ={"CUDA_VISIBLE_DEVICES": "1,0"}).device == 0
    assert choose("gpu", environ={"CUDA_VISIBLE_DEVICES": "1", "MUJOCO_EGL_DEVICE_ID": "1"}).device == 1


def test_thread_settings_of_the_caller_are_kept():
    told = {"OMP_NUM_THREADS": "3", "LP_NUM_THREADS": "2"}
    assert thread_environment({"OTHER": "x", **told}).items() >= {**told, "MKL_NUM_THREADS": "1", "OTHER": "x"}.items()
    assert [thread_environment({}, many)["LP_NUM_THREADS"] for many in (0, 1, 2, 9)] == ["0", "0", "2", "4"]


@pytest.mark.parametrize("none", ["", "-1"])
def test_a_process_without_cudas_devices_draws_on_the_cpu(none, devices, monkeypatch):
    """`--gpu none` is CUDA_VISIBLE_DEVICES="" to a local process: EGL would show its GPUs all the same."""
    devices(GPU0, GPU1, SOFT)
    monkeypatch.setattr(gl, "has_nvidia_gpu", lambda: True)
    chosen = choose("auto", environ={"CUDA_VISIBLE_DEVICES": none})
    assert (chosen.device, chosen.software) == (2, True)
    assert choose("auto", environ={"CUDA_VISIBLE_DEVICES": ""}).note == "", "that is what was asked for"
    with pytest.raises(RuntimeError, match="found no GPU"):
        choose("gpu", environ={"CUDA_VISIBLE_DEVICES": none})


@pytest.mark.parametrize(
    ("visible", "turns"),
    [(None, [0, 1, 0]), ("0,1", [1, 0, 1]), ("1,0", [0, 1, 0]), ("GPU-12,GPU-13", None), ("1", None), ("", None)],
)
def test_workers_take_turns_with_the_gpus_they_were_given(visible, turns, devices):
    devices(GPU0, GPU1, SOFT)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    expected = [{"MUJOCO_EGL_DEVICE_ID": str(turn)} for turn in turns] if turns else [{}] * 3
    assert [gl.spread(worker, environ) for worker in range(3)] == expected
    for worker in range(3 if turns else 0):
        assert choose("auto", environ={**environ, **gl.spread(worker, environ)}).device == turns[worker]
        assert choose("cpu", environ={**environ, **gl.spread(worker, environ)}).device == 2
    assert gl.spread(1, {**environ, "MUJOCO_EGL_DEVICE_ID": "0"}) == {}, "the caller has chosen"


@pytest.mark.parametrize("value", ["7", "-1", "GPU-12"])
def test_a_device_that_is_missing_is_refused(value, devices):
    devices(GPU0, SOFT)
    with pytest.raises(ValueError, match="MUJOCO_EGL_DEVICE_ID"):
        choose("gpu", environ={"MUJOCO_EGL_DEVICE_ID": value})


def test_no_gpu(devices, monkeypatch):
    devices(SOFT)
    with pytest.raises(RuntimeError, match="NVIDIA_DRIVER_CAPABILITIES"):
        choose("gpu", environ={})
    monkeypatch.setattr(gl, "has_nvidia_gpu", lambda: False)
    assert choose("auto", environ={}) == gl.GlChoice("egl", 2, software=True)
    monkeypatch.setattr(gl, "has_nvidia_gpu", lambda: True)
    assert "EGL lists none" in choose("auto", environ={}).note


def test_nothing_can_draw(devices, monkeypatch):
    monkeypatch.setattr(gl.ctypes.util, "find_library", lambda name: None)
    devices(GPU0)
    with pytest.raises(RuntimeError, match="apt-get install"):
        choose("cpu", environ={})
    monkeypatch.setattr(gl, "egl_devices", lambda: None)
    for mode in ("cpu", "gpu", "auto"):
        with pytest.raises(RuntimeError, match=r"libEGL\.so\.1 is missing.*apt-get install"):
            choose(mode, environ={})


def test_unknown_mode():
    with pytest.raises(ValueError, match="auto, cpu, gpu, none"):
        choose("fast", environ={})


def test_a_process_is_configured_once(libero_runtime, tmp_path):
    assert runtime.configure(libero_runtime.assets, tmp_path, "cpu") is libero_runtime
    assert runtime.active() is libero_runtime
    with pytest.raises(RuntimeError, match="start another process"):
        runtime.configure(libero_runtime.assets, tmp_path, "none")


def test_directories_that_hold_no_assets(tmp_path):
    code = (
        "import sys; from services.libero.simulator import runtime; runtime.configure(sys.argv[1], sys.argv[1], 'none')"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, capture_output=True, text=True)
    assert "is not a LIBERO asset directory" in run.stderr


def test_importing_mujoco_first_is_caught(libero_assets, tmp_path):
    code = (
        "import sys, mujoco; from services.libero.simulator import runtime; "
        "runtime.configure(sys.argv[1], sys.argv[2], 'none')"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "MUJOCO_GL": "disable"}
    command = [sys.executable, "-c", code, str(libero_assets), str(tmp_path)]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert "imported before runtime.configure()" in run.stderr


DRAW = """
import sys
from services.libero.simulator import runtime
runtime.configure(sys.argv[1], sys.argv[2], render="cpu")
from services.libero.simulator.env import LiberoEnv
from tests.libero.test_runtime import drawn
print(drawn(LiberoEnv(sys.argv[1])))
"""


def drawn(env) -> str:
    """Return a hash over what both cameras see of three steps."""
    task, digest = suites.load_suite("libero_goal").tasks[1], hashlib.sha256()
    env.load_task(task)
    env.reset(0, suites.init_states(task)[0])
    for _ in range(3):
        env.step([0.3, -0.2, -0.4, 0, 0, 0.1, 1])
        digest.update(env.render("agentview").tobytes() + env.render("robot0_eye_in_hand").tobytes())
    return digest.hexdigest()


def test_threads_of_the_renderer_change_no_pixel(libero_env, libero_assets, tmp_path):
    """The layers of what stands still, the mirror and the moving camera: all are drawn by as many as the worker has."""
    other = "3" if os.environ["LP_NUM_THREADS"] == "0" else "0"
    done = subprocess.run(
        [sys.executable, "-c", DRAW, str(libero_assets), str(tmp_path)], cwd=ROOT, timeout=300,
        env={**ENVIRONMENT, "LP_NUM_THREADS": other}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split()[-1] == drawn(libero_env)
