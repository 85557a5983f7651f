"""fast_libero as a user gets it: a wheel beside unchanged LIBERO and robosuite, in an environment of its own."""

import json
import os
import subprocess
import sys
import sysconfig

import pytest

from services.libero.simulator import suites
from tests.libero.harness import ROOT

UV = ROOT / ".venv" / "bin" / "uv"
STOCK = ("hf-libero==0.1.4", "robosuite==1.4.0", "bddl==1.0.1")
# openpi's and OpenVLA's own lines, with `libero.libero` replaced, then Gymnasium.
PROGRAM = """
import json, os, socket, sys
def refuse(*args, **kwargs):
    raise AssertionError("the network is wanted")
socket.socket.connect = refuse
from fast_libero import benchmark, get_libero_path
from fast_libero.envs import OffScreenRenderEnv
suite = benchmark.get_benchmark_dict()["libero_object"]()
task = suite.get_task(0)
states = suite.get_task_init_states(0)
bddl = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
env = OffScreenRenderEnv(bddl_file_name=bddl, camera_heights=64, camera_widths=64)
env.seed(0)
env.reset()
seen = env.set_init_state(states[0])
image = int(seen["agentview_image"].sum())
env.close()
import gymnasium, fast_libero.gym
env = gymnasium.make("fast_libero/libero_object-v0", task=0, size=64, render_mode="rgb_array")
seen, info = env.reset(seed=1, options={"init_state": 0})
drawn = env.render()
print(json.dumps({"image": image, "gym": int(seen["agentview_image"].sum()), "task": info["instruction"],
                  "upright": bool((drawn == seen["agentview_image"][::-1]).all()), "torch": "torch" in sys.modules,
                  "from": sys.modules["fast_libero"].__file__, "steps": env.spec.max_episode_steps}))
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """A function that runs a program as a user with nothing but the wheel and its packages."""
    directory = tmp_path_factory.mktemp("user")
    for name in ("home", "tmp", "cwd"):
        (directory / name).mkdir()
    python = directory / "venv" / "bin" / "python"

    def uv(*words):
        subprocess.run([UV, *words], check=True, capture_output=True, text=True)

    uv("build", "--quiet", "--wheel", str(ROOT / "shared" / "fast_libero"), "-o", str(directory))
    uv("venv", "--quiet", "--python", sys.executable, str(directory / "venv"))
    [wheel] = directory.glob("fast_libero-*.whl")
    uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel), *STOCK)
    [site] = (directory / "venv" / "lib").glob("python*/site-packages")
    (site / "rest.pth").write_text(sysconfig.get_path("purelib") + "\n")  # numpy, mujoco and the others

    def run(program, **variables):
        environment = {"PATH": os.environ["PATH"], "HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp")}
        done = subprocess.run(
            [python, "-c", program], env=environment | variables, cwd=directory / "cwd", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        done.files = [
            path for name in ("home", "tmp", "cwd") for path in (directory / name).rglob("*") if path.is_file()
        ]
        return done

    return run


@pytest.mark.outside
def test_the_wheel_runs_quietly_and_draws_what_stock_draws(user, libero_assets, stock_env):
    done = user(PROGRAM, FAST_LIBERO_ASSETS=str(libero_assets))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    task = suites.load_suite("libero_object").tasks[0]
    from libero.libero.envs import OffScreenRenderEnv

    stock = OffScreenRenderEnv(bddl_file_name=str(task.bddl_path), camera_heights=64, camera_widths=64)
    stock.seed(0)
    stock.reset()
    assert (
        said["image"] == said["gym"] == int(stock.set_init_state(suites.init_states(task)[0])["agentview_image"].sum())
    )
    stock.close()
    assert (said["task"], said["steps"]) == (task.instruction, 280)
    assert said["upright"] and not said["torch"] and "site-packages" in said["from"]
    files = [path.name for path in done.files if not {"mesa_shader_cache", "matplotlib"} & {*path.parts}]
    assert files == ["config.yaml"], files  # LIBERO's, in the user's cache: no question, no log
    assert "Traceback" not in done.stderr and "[robosuite" not in done.stderr


@pytest.mark.outside
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAST_LIBERO_ASSETS": "/nowhere"}, "FAST_LIBERO_ASSETS=/nowhere is not a directory of LIBERO's models"),
        ({}, "LIBERO's models are missing: "),
    ],
)
def test_without_models_it_says_what_to_do(user, variables, words):
    done = user("import sys; sys.modules['huggingface_hub'] = None\n" + PROGRAM, **variables)
    assert done.returncode == 1 and words in done.stderr, done.stderr
