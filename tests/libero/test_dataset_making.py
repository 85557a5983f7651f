"""Recordings and runs become data sets: the same numbers and pictures, whoever draws, however often it is stopped."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vla_datasets.scenes
from services.libero.datasets import convert
from services.libero.datasets import scenes as free
from services.libero.datasets.__main__ import make
from services.libero.datasets.config import DatasetConfig
from services.libero.oracle.scene import World
from services.libero.simulator import suites
from tests import data_sets
from tests.libero.harness import Evaluation, Recording
from tests.libero.test_policies import oracle  # noqa: F401  a fixture
from vla_common.volume import Volume
from vla_datasets import conversion, libero, metadata
from vla_datasets.checks import faults
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_datasets.writing import draft
from vla_evaluation.recording import demonstrations, sources

ROOT = Path(__file__).resolve().parents[2]
CAMERAS, SIZE = ("agentview", "robot0_eye_in_hand"), 64
STEPS = 6


@pytest.fixture(scope="module")
def volume(tmp_path_factory, libero_assets, oracle):  # noqa: F811
    """A volume with a recording of two tasks, one of wide starts, and a run; a few steps each."""
    root = tmp_path_factory.mktemp("volume")
    common = ("--assets", str(libero_assets), "--workers", "1", "--policy-url", oracle.base_url)
    few = ("--max-steps", str(STEPS), *common)
    kept = ("--episodes", "2", "--attempts", "1", "--keep-failures", "--tasks", "5,7")
    with Recording(root / "demonstrations", "goal", *few, *kept) as run:
        run.end()
    wide = ("--episodes", "1", "--attempts", "1", "--keep-failures", "--tasks", "1", "--starts", "wide")
    with Recording(root / "demonstrations", "wide", *few, *wide) as run:
        run.end()
    with Evaluation(root / "runs", "goal-run", *few, "--tasks", "7", "--trials", "2", "--video", "none") as run:
        run.end()
    return Volume(root)


def made(found, directory, layout="lerobot", cameras=CAMERAS):
    return convert.convert(found, sources.choose(found, True), directory, layout, cameras, SIZE, 1)


@pytest.fixture(scope="module")
def recorded(volume):
    return sources.find("goal", volume, "cpu")


@pytest.fixture(scope="module")
def dataset(recorded, volume):
    """The recording as a LeRobot set."""
    return open_dataset(made(recorded, volume.datasets / "goal"))


def test_a_recording_becomes_a_set_in_order(dataset, recorded):
    assert faults(dataset.directory) == []
    assert [(e.tasks, e.length) for e in dataset.episodes] == [((one.instruction,), STEPS) for one in recorded.all]
    for one in recorded.all:
        columns = dataset.columns(one.index)
        np.testing.assert_array_equal(columns[libero.STATE], one.states)
        np.testing.assert_array_equal(columns[libero.ACTION][:, :6], one.actions[:, :6])
        assert set(columns[libero.ACTION][:, 6]) <= {0.0, 1.0}
        np.testing.assert_array_equal(data_sets.gripper_closes(columns[libero.ACTION]), one.actions)
        for camera in CAMERAS:
            drawn = one.frames(camera, SIZE)[:, ::-1, ::-1]
            assert np.abs(dataset.frames(one.index, libero.video_key(camera)).astype(int) - drawn).mean() < 6


def test_scenes_say_where_the_named_things_are(recorded, volume):
    directory = volume.datasets / "seen"
    convert.convert(recorded, sources.choose(recorded, True), directory, "lerobot", CAMERAS, SIZE, 1, scenes=4)
    assert faults(directory) == []
    first, second = vla_datasets.scenes.read(directory, [0, 1])
    assert [str(each["instruction"]) for each in (first, second)] == [one.instruction for one in recorded.all]
    assert first["images"].shape == (4, 2, SIZE, SIZE, 3) and first["state"].shape == (4, 8)
    assert first["places"].shape == (4, 2, 3) and first["pixels"].shape == (4, 2, 2, 2)
    assert len(np.unique(first["places"][:, 0], axis=0)) > 1  # things are moved
    demo = recorded.all[0]
    rendering = demonstrations.renderer(demo.source, SIZE)
    demo.reset_scene(rendering)
    env, name = rendering.env, rendering.env.domain.parsed_problem["goal_state"][0][1]
    world = World.from_static(env.privileged(True)["static"])
    state, at = demo.sim_states[0].copy(), 1 + free.objects(env.domain)[name]
    shown = []
    for x, y in ((0.0, 0.0), (-0.1, 0.25)):
        state[at : at + 2] = x, y
        env.restore(state)
        shown.append(env.render(CAMERAS[0])[::-1, ::-1].astype(int))
        ((right, down),) = free.in_image(env.domain, CAMERAS[0], free.named_places(env, world)[:1])
        there = (np.array([down, right]) + 1) / 2 * SIZE
    changed = np.argwhere(np.abs(shown[1] - shown[0]).sum(-1) > 60)
    assert np.linalg.norm(changed - there, axis=1).min() < 3  # where it is now
    assert np.linalg.norm(changed - there, axis=1).max() > 8  # and where it was


def test_a_set_can_be_scenes_and_numbers_alone(recorded, volume, capsys):
    directory = volume.datasets / "bare"
    convert.convert(
        recorded, sources.choose(recorded, True), directory, "lerobot", CAMERAS, SIZE, 1, scenes=2, videos=False
    )
    assert faults(directory) == [] and not (directory / "videos").exists()
    bare, demo = open_dataset(directory), recorded.all[0]
    assert not bare.video_keys and "4 scenes to render" in capsys.readouterr().out
    np.testing.assert_array_equal(bare.columns(0)[libero.STATE], demo.states)
    scenes = next(iter(vla_datasets.scenes.read(directory, [0])))
    assert scenes["images"].shape == (2, 2, SIZE, SIZE, 3) and scenes["steps"].shape == (STEPS, 2, 3)
    rendering = demonstrations.renderer(demo.source, SIZE)
    demo.reset_scene(rendering)
    rendering.env.restore(demo.sim_states[-1])
    world = World.from_static(rendering.env.privileged(True)["static"])
    np.testing.assert_allclose(scenes["steps"][-1], free.named_places(rendering.env, world), atol=1e-6)


def test_the_named_place_of_a_drawer_is_its_handle(recorded):
    env = demonstrations.renderer(recorded.all[0].source, SIZE).env
    task = suites.load_suite("libero_goal").tasks[0]
    assert task.instruction == "open the middle drawer of the cabinet"
    env.load_task(task, 0)
    env.reset(0, env.start(0))
    inside = env.domain.sim.data.get_site_xpos("wooden_cabinet_1_middle_region").copy()
    world = World.from_static(env.privileged(True)["static"])
    handle, cabinet = free.named_places(env, world)
    out = handle - inside
    assert 0.05 < np.linalg.norm(out[:2]) < 0.2 and abs(out[2]) < 0.03
    turned = (handle - cabinet)[:2]  # which way the drawer opens
    assert turned @ out[:2] > 0.95 * np.linalg.norm(turned) * np.linalg.norm(out[:2])
    state, joint = env.sim_state(), env.domain.sim.model.get_joint_qpos_addr("wooden_cabinet_1_middle_level")
    state[1 + joint] -= 0.1
    env.restore(state)
    opened, wider_cabinet = free.named_places(env, world)
    np.testing.assert_allclose(opened - handle, 0.1 * out / np.linalg.norm(out), atol=0.02)
    np.testing.assert_allclose(wider_cabinet - cabinet, (opened - handle) / 2, atol=0.06)


def test_furniture_moves_in_half_of_the_scenes_of_wide_starts(volume):
    (demo,) = sources.find("wide", volume, "cpu").all
    assert demo.instruction == "put the bowl on the stove"
    made = free.render(demo, CAMERAS, SIZE, 6)
    stove = made["places"][:, 1]
    assert np.ptp(stove[:3], axis=0).max() < 1e-6 and len(np.unique(stove.round(3), axis=0)) == 4
    inside = np.abs(made["pixels"][:, 0, 1]).max(-1) <= 1
    assert inside.sum() >= 4  # the front camera sees most of these places


def test_a_set_says_where_it_is_from(dataset, recorded):
    source = dataset.source
    assert (source["recording"], source["starts"], source["suite"]) == ("goal", "drawn", "libero_goal")
    assert [one["seed"] for one in source["episodes"]] == [one.seed for one in recorded.all]
    assert source["cameras"] == {libero.video_key(camera): camera for camera in CAMERAS}
    assert source["action"][-1]["convention"] == "0 closed, 1 open"
    assert dataset.modality["annotation"] == {libero.LANGUAGE: {"original_key": "task_index"}}


def test_one_that_was_stopped_continues_and_ends_with_the_same_bytes(dataset, recorded, volume):
    directory, chosen = volume.datasets / "stopped", sources.choose(recorded, True)
    source = convert.describe(recorded, chosen, CAMERAS, SIZE, "lerobot")
    writer = convert.make_writer(directory, "lerobot", CAMERAS, SIZE, source, chosen)
    metadata.write_json(writer.draft / "pieces" / convert.PLAN, source)
    drawn = {camera: chosen[1].frames(camera, SIZE) for camera in CAMERAS}
    convert.put(writer, convert.episode_slots(chosen, convert._file_of), None, chosen[1], drawn)
    assert writer.written() == {1}
    with pytest.raises(DatasetError, match=r"started with different cameras.*remove .*\.stopped\.partial"):
        made(recorded, directory, cameras=CAMERAS[:1])
    made(recorded, directory)
    assert not draft(directory).exists()
    names = sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    assert names == sorted(
        path.relative_to(dataset.directory) for path in dataset.directory.rglob("*") if path.is_file()
    )
    for name in names:
        assert (directory / name).read_bytes() == (dataset.directory / name).read_bytes(), name


def test_liberos_own_files_hold_the_same(dataset, recorded, volume, libero_env):
    files = open_dataset(made(recorded, volume.datasets / "files", "hdf5"))
    assert [str(fault) for fault in faults(files.directory)] == []
    for mine, theirs in zip(files.episodes, dataset.episodes, strict=True):
        assert mine == theirs
        for key in (libero.STATE, libero.ACTION):
            np.testing.assert_allclose(files.columns(mine.index)[key], dataset.columns(mine.index)[key], atol=1e-7)
        one = recorded.all[mine.index]
        drawn = one.frames(CAMERAS[0], SIZE)[:, ::-1, ::-1]
        np.testing.assert_array_equal(files.frames(mine.index, dataset.video_keys[0]), drawn)
    import h5py

    names = sorted(path.name for path in files.directory.glob("*.hdf5"))
    assert names == ["push_the_plate_to_the_front_of_the_stove_demo.hdf5", "turn_on_the_stove_demo.hdf5"]
    with h5py.File(files.directory / names[1]) as file:
        data, demo = file["data"], file["data/demo_0"]
        assert json.loads(data.attrs["problem_info"])["language_instruction"] == "turn on the stove"
        assert data.attrs["num_demos"] == 1 and data.attrs["macros_image_convention"] == "opengl"
        np.testing.assert_array_equal(demo["states"][0], demo.attrs["init_state"])
        np.testing.assert_allclose(demo["obs/joint_states"][:], demo["states"][:, 1:8], atol=0.01)
        np.testing.assert_allclose(np.linalg.norm(demo["robot_states"][:, 5:], axis=1), 1)
        assert demo["dones"][:].tolist() == [0] * (STEPS - 1) + [1] and demo["actions"].dtype == np.float64
    from services.libero.simulator import suites

    libero_env.load_task(suites.load_suite("libero_goal").tasks[5])
    assert list(libero_env.domain.robots[0]._ref_joint_pos_indexes) == list(range(7))


def test_a_runs_episodes_are_played_again_to_the_bit(volume):
    found = sources.find("goal-r", volume, "cpu")
    assert found.name == "goal-run" and [one.steps for one in found.all] == [STEPS, STEPS]
    dataset = open_dataset(made(found, volume.datasets / "of-a-run", cameras=CAMERAS[:1]))
    assert dataset.source["starts"] == "evaluation" and dataset.source["run"] == "goal-run"
    assert faults(dataset.directory) == []
    for one in found.all:
        with np.load(one.path) as kept:
            np.testing.assert_array_equal(one.arrays["sim_states"], kept["states"][:-1])
            np.testing.assert_array_equal(dataset.columns(one.index)[libero.ACTION][:, :6], kept["actions"][:, :6])


def test_an_episode_that_goes_otherwise_is_refused(volume, tmp_path):
    one = sources.find("goal-run", volume, "cpu").all[0]
    with np.load(one.path) as kept:
        arrays = dict(kept)
    arrays["actions"][2, 0] += 0.5
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(ValueError, match="the replay differs from the run at step 3"):
        dataclasses.replace(one, path=tmp_path / "other.npz").frames("agentview", SIZE)
    (tmp_path / "other.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"other\.npz cannot be read"):
        dataclasses.replace(one, path=tmp_path / "other.npz").frames("agentview", SIZE)


def test_only_successes_are_taken_unless_asked(recorded):
    with pytest.raises(ValueError, match="recording goal: none of its 2 episodes succeeded"):
        sources.choose(recorded, False)


def test_a_set_is_written_again_from_another_layout(tmp_path):
    files = open_dataset(data_sets.hdf5(tmp_path / "files"))
    again = conversion.recode(files, tmp_path / "again")
    assert faults(again.directory) == [] and len(again) == len(files)
    np.testing.assert_allclose(again.columns(2)[libero.ACTION], files.columns(2)[libero.ACTION], atol=1e-7)
    assert np.abs(again.frames(2, again.video_keys[0]).astype(int) - files.frames(2, files.video_keys[0])).mean() < 8


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"size": 65}, "must be an even number.*65"),
        ({"size": 8}, "size is 8; expected 32 to 1024"),
        ({"cameras": "agentvew"}, "did you mean 'agentview'"),
        ({"cameras": ","}, "--cameras is empty"),
        ({"workers": 0}, "expected 1 or more"),
        ({"name": "../x"}, "name"),
    ],
)
def test_invalid_flags_report_value_and_choices(flags, words):
    with pytest.raises(ValueError, match=words):
        DatasetConfig("goal", "lerobot", **flags)


def program(volume, *words, **variables):
    """Return what the program said, and its exit code."""
    command = [sys.executable, "-m", "services.libero.datasets", *words]
    path = os.pathsep.join([str(ROOT), *(str(one) for one in (ROOT / "shared").iterdir())])
    environment = {**os.environ, "VLALAB_VOLUME": str(volume.root), "PYTHONPATH": path, **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_program_makes_checks_and_shows(dataset, volume):
    code, said = program(
        volume, "goal", "--format", "lerobot", "--name", "two", "--size", "32", "--keep-failures", "--workers", "2",
        "--check", "--show",
    )  # fmt: skip
    assert code == 0 and "no faults" in said and "12 steps to render, about" in said, said
    page = (volume.root / "logs" / "datasets" / "two.html").read_text()
    assert page.count("<video") == 4 and "push the plate to the front of the stove" in page and "http" not in page
    (volume.datasets / "two" / metadata.TASKS).unlink()
    code, said = program(volume, "two", "--check")
    assert code == 1 and "tasks.jsonl is missing" in said


REFUSED = [
    (("nothing", "lerobot"), "'nothing' is neither a recording nor a run"),
    (("goal", "lerobot"), "goal already exists; choose another --name"),
    (("goal", "lerobot", "x"), "so there is no data to convert"),
    (("small", "hdf5"), "for HDF5, name a recording or a run"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_what_cannot_be_made(dataset, volume, monkeypatch, given, words):
    monkeypatch.setenv("VLALAB_VOLUME", str(volume.root))
    if given[0] == "small" and not (volume.datasets / "small").exists():
        data_sets.lerobot(volume.datasets / "small")
    with pytest.raises(ValueError, match=words):
        make(DatasetConfig(*given))


def test_a_set_elsewhere_is_made_again_by_its_path(volume, monkeypatch, tmp_path):
    monkeypatch.setenv("VLALAB_VOLUME", str(volume.root))
    directory = make(DatasetConfig(str(data_sets.hdf5(tmp_path / "elsewhere")), "lerobot"))
    assert directory == volume.datasets / "elsewhere" and faults(directory) == []


def test_version_3_holds_the_same_and_comes_back(dataset, recorded, volume, monkeypatch):
    """From a recording and from a set; an unfinished set of the other version is not continued."""
    monkeypatch.setenv("VLALAB_VOLUME", str(volume.root))
    code, said = program(
        volume, "goal", "--format", "lerobot-v3.0", "--size", str(SIZE), "--keep-failures", "--workers", "1", "--check"
    )
    assert code == 0 and "no faults" in said and "LeRobot v3.0" in said, said
    new = open_dataset(volume.datasets / "goal-v3.0")
    old = open_dataset(make(DatasetConfig(str(new.directory), "lerobot", "back")))
    assert old.info["codebase_version"] == "v2.1" and faults(old.directory) == []
    for other in (new, old):
        assert other.episodes == dataset.episodes and other.source == dataset.source
        for episode in dataset.episodes:
            for key, values in dataset.columns(episode.index).items():
                np.testing.assert_array_equal(other.columns(episode.index)[key], values)
    frames = dataset.frames(1, dataset.video_keys[0])
    np.testing.assert_array_equal(new.frames(1, dataset.video_keys[0]), frames)  # encoded once, with the same settings
    with pytest.raises(DatasetError, match=r"goal-v3\.0 already exists; choose another --name"):
        make(DatasetConfig("goal", "lerobot-v3.0"))
    chosen = sources.choose(recorded, True)
    source = convert.describe(recorded, chosen, CAMERAS, SIZE, "lerobot")
    partial = draft(volume.datasets / "other")
    metadata.write_json(partial / "pieces" / convert.PLAN, source | {"format": "lerobot-v3.0"})
    with pytest.raises(DatasetError, match="started with different format"):
        made(recorded, volume.datasets / "other")
