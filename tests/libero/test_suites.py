"""Every registered suite and task, held against LIBERO's own benchmark module; init states; task selection."""

import os
import pickle
import sys
import zipfile

import numpy as np
import pytest

from fast_libero import initstates
from services.libero.simulator import suites
from vla_evaluation.plan import select_tasks

TEN = [name for name in suites.SUITES if name != "libero_90"]
ALL = [task for name in suites.SUITES for task in suites.load_suite(name).tasks]


@pytest.fixture(scope="module")
def stock_benchmark(libero_runtime):
    """LIBERO's benchmark module."""
    from libero.libero import benchmark

    return benchmark


# Upstream's example, as students paste it. The file it runs from, HOME and the variables are as in a new shell.
UPSTREAM = """
import os, sys
from libero.libero import benchmark, get_libero_path
from libero.libero.envs import OffScreenRenderEnv

suite = benchmark.get_benchmark_dict()["libero_goal"]()
task = suite.get_task(0)
bddl = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
env = OffScreenRenderEnv(bddl_file_name=bddl, camera_heights=128, camera_widths=128)
env.seed(0)
env.reset()
states = suite.get_task_init_states(0)
env.set_init_state(states[0])
frame = env.step([0.0] * 7)[0]["agentview_image"]
print(states.shape, states.sum(), frame.shape, frame.std() > 10, "torch" in sys.modules)
"""


def test_upstreams_example_runs_without_a_question_or_torch(libero_assets, tmp_path):
    import subprocess

    kept = {name: value for name, value in os.environ.items() if name != "LIBERO_CONFIG_PATH"}
    env = kept | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(tmp_path), "MUJOCO_GL": "egl"}
    env |= {"VLALAB_LIBERO_ASSETS": str(libero_assets)}
    command = [sys.executable, "-c", UPSTREAM]
    run = subprocess.run(command, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    states = suites.init_states(suites.load_suite("libero_goal").tasks[0])
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == f"{states.shape} {states.sum()} (128, 128, 3) True False"


@pytest.mark.parametrize("name", suites.SUITES)
def test_suite_is_the_benchmarks(name, stock_benchmark):
    stock = stock_benchmark.get_benchmark(name)()
    suite = suites.load_suite(name)
    assert len(suite.tasks) == stock.get_num_tasks() == (90 if name == "libero_90" else 10)
    for index, task in enumerate(suite.tasks):
        expected = stock.get_task(index)
        assert (task.suite, task.index) == (name, index)
        assert (task.name, task.instruction) == (expected.name, expected.language)
        assert task.bddl_path.samefile(stock.get_task_bddl_file_path(index))
        assert task.init_states_path.name == expected.init_states_file


def test_reading_suites_imports_neither_libero_nor_torch():
    import subprocess

    code = "from services.libero.simulator import suites; import sys; [suites.load_suite(n) for n in suites.SUITES];"
    code += "suites.init_states(suites.load_suite('libero_goal').tasks[0]);"
    code += "print([m for m in ('torch', 'libero.libero', 'robosuite', 'mujoco') if m in sys.modules])"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert (run.stdout.strip(), run.stderr) == ("[]", "")


@pytest.mark.parametrize("task", ALL, ids=lambda task: f"{task.suite}-{task.index}")
def test_init_states_of_every_task(task):
    states = suites.init_states(task)
    assert states.dtype == np.float64 and states.ndim == 2 and states.flags.c_contiguous
    assert len(states) == 50
    assert np.isfinite(states).all() and (states[:, 0] >= 0).all()


def write_archive(path, content: bytes, member="archive/data.pkl"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


class Evil:
    """Unpickles to the result of a system call."""

    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("content", [Evil(), {"a": Evil()}, np.array([Evil()], dtype=object), np.random.RandomState(0)])
def test_pickles_that_are_more_than_an_array_are_refused(content, tmp_path):
    path = write_archive(tmp_path / "x.pruned_init", pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match="not allowed|expected a float array"):
        initstates.read_init_states(path)


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros((2, 3), dtype=np.int64), np.full((2, 3), np.nan), "text", [[1.0, 2.0]], None]
)
def test_other_content_is_refused(array, tmp_path):
    with pytest.raises(ValueError, match=r"x\.pruned_init"):
        initstates.read_init_states(write_archive(tmp_path / "x.pruned_init", pickle.dumps(array, protocol=2)))


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_plain_array_is_read(protocol, tmp_path):
    array = np.random.RandomState(0).rand(4, 6).astype(np.float32)
    path = write_archive(tmp_path / "x.pruned_init", pickle.dumps(array, protocol=protocol))
    read = initstates.read_init_states(path)
    assert read.dtype == np.float64 and np.array_equal(read, array)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(ValueError, match="not found"):
        initstates.read_init_states(tmp_path / "missing.pruned_init")
    (tmp_path / "x.pruned_init").write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="cannot be read"):
        initstates.read_init_states(tmp_path / "x.pruned_init")
    with pytest.raises(ValueError, match="cannot be read"):
        initstates.read_init_states(write_archive(tmp_path / "y.pruned_init", b"", member="archive/other"))
    half = pickle.dumps(np.zeros((3, 3)), protocol=2)[:40]
    with pytest.raises(ValueError, match="cannot be read"):
        initstates.read_init_states(write_archive(tmp_path / "z.pruned_init", half))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.pruned_init", "y.pruned_init", "z.pruned_init"]


@pytest.mark.parametrize("typo", ["libero_goall", "libero-goal", "goal", "LIBERO_GOAL"])
def test_unknown_suite_names_the_nearest(typo):
    with pytest.raises(ValueError, match="did you mean 'libero_goal'"):
        suites.load_suite(typo)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, range(10)),
        ("all", range(10)),
        ("0", [0]),
        ("0,2-4", [0, 2, 3, 4]),
        ("9,0", [0, 9]),
        (" 1 , 1-1 ", [1]),
        ("put_the_bowl_on_the_stove,0", None),
        ("0,Put the bowl on the stove.", None),
    ],
)
def test_selecting_tasks(selection, expected):
    suite = suites.load_suite("libero_goal")
    chosen = [task.index for task in select_tasks(suite.name, suite.tasks, selection)]
    if expected is None:
        names = [task.name for task in suite.tasks]
        expected = sorted({0, names.index("put_the_bowl_on_the_stove")})
    assert chosen == list(expected)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("10", "tasks 0-9"),
        ("3-1", "lower end first"),
        ("8-12", "tasks 0-9"),
        ("-1", "not found"),
        ("0,,1", "not found"),
    ],
)
def test_bad_selections(selection, words):
    with pytest.raises(ValueError, match=words):
        select_tasks("libero_goal", suites.load_suite("libero_goal").tasks, selection)


@pytest.mark.parametrize("task", [suites.load_suite(name).tasks[3] for name in TEN], ids=lambda task: task.suite)
def test_a_task_name_with_a_typo_is_recognised(task):
    with pytest.raises(ValueError, match=f"did you mean '{task.name}'"):
        select_tasks(task.suite, suites.load_suite(task.suite).tasks, task.name[:-1] + "q")
