"""A policy scored on recorded data over real HTTP: figures known beforehand, pages, words for what cannot be."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from services.libero.offline import main
from tests import data_sets
from tests.running import running
from vla_contract import ActionChunk, Policy, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE, Part
from vla_datasets import libero
from vla_datasets.writing import Writer

CHUNK = 4
SEVEN = (*OSC_POSE, GRIPPER_OPENS)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """A volume with LIBERO's small set, and one of a robot with a single joint and one task."""
    root = tmp_path_factory.mktemp("volume")
    data_sets.lerobot(root / "datasets" / "small")
    features = {"cam": {"dtype": "video", "shape": [32, 32, 3]}}
    features |= {name: {"dtype": "float32", "shape": [1]} for name in (libero.STATE, libero.ACTION)}
    modality = {kind: {"joint": {"start": 0, "end": 1}} for kind in ("state", "action")}
    writer = Writer(root / "datasets" / "joint", "arm", 10, features, modality)
    wave = np.sin(np.arange(9) / 3).astype(np.float32)[:, None]
    writer.add({libero.STATE: wave, libero.ACTION: wave}, {"cam": data_sets.pictures(9)}, "wave")
    writer.finish()
    return root


class RecordedPolicy(Policy):
    """Answers what was recorded, and `apart` more where it is told something else; past the end it answers 99."""

    def __init__(self, action=SEVEN, state=HAND_STATE, apart=0.0, off=0.0, chunk=CHUNK, **info):
        self.apart, self.off, self.chunk = apart, off, chunk
        given = {"cameras": data_sets.CAMERAS, "image_hw": (32, 32), "max_batch": 4, **info}
        self._info = PolicyInfo("recorded", action, state, horizon=CHUNK, **given)
        self.asked = []

    def info(self):
        return self._info

    def act(self, observations):
        return [self.answer(observation) for observation in observations]

    def answer(self, seen):
        size = self._info.action_size
        if not seen.session.startswith("offline."):
            return ActionChunk(np.zeros((1, size), np.float32))
        self.asked.append(seen)
        episode = int(seen.session.split(".")[2])
        rows = self.recorded(episode)
        rows = np.concatenate((rows, np.full((CHUNK, rows.shape[1]), 99)))[seen.step : seen.step + self.chunk]
        own = seen.instruction in ("wave", data_sets.TASKS[episode])
        return ActionChunk((rows + self.off + (0 if own else self.apart)).astype(np.float32))

    def recorded(self, episode):
        if self._info.action_size == 1:
            return np.sin(np.arange(9) / 3)[:, None]
        return data_sets.numbers(data_sets.LENGTHS[episode], episode)[libero.ACTION]


@pytest.fixture
def ask(volume, monkeypatch, capsys):
    """Return a function: policy, flags → what the program printed, its summary and the folder of its results."""
    monkeypatch.setenv("VLALAB_VOLUME", str(volume))

    def run(policy, *flags, dataset="small"):
        with running(policy) as service:
            assert main(["--dataset", dataset, "--policy-url", service.url, "--name", "out", *flags]) == 0
        directory = volume / "logs" / "offline" / "out"
        return capsys.readouterr().out, json.loads((directory / "summary.json").read_text()), directory

    return run


def test_stale_statistics_are_rejected(volume, tmp_path, monkeypatch):
    """Normalised errors are shares of them, and the gripper's convention is told by its least number."""
    directory = shutil.copytree(volume / "datasets" / "small", tmp_path / "other")
    path = directory / "meta" / "stats.json"
    stated = json.loads(path.read_text())
    stated["action"]["min"][6] = -1.0
    path.write_text(json.dumps(stated))
    monkeypatch.setenv("VLALAB_VOLUME", str(volume))
    words = r"action: min\[6\] is -1; the rows' is 0"
    with running(RecordedPolicy()) as service, pytest.raises(ValueError, match=words):
        main(["--dataset", str(directory), "--policy-url", service.url])


@pytest.mark.parametrize("layout", data_sets.LINKED)
def test_a_linked_data_set_is_scored(ask, volume, tmp_path, layout):
    directory = data_sets.linked(volume / "datasets" / "small", layout, tmp_path)
    assert ask(RecordedPolicy(), dataset=str(directory))[1]["steps"] == sum(data_sets.LENGTHS)


def test_an_episode_without_rows_is_not_scored(ask, volume, tmp_path):
    directory = data_sets.without_rows(shutil.copytree(volume / "datasets" / "small", tmp_path / "empty"))
    out, summary, _ = ask(RecordedPolicy(), dataset=str(directory))
    assert "skipped episodes without rows: 1\n" in out
    assert [one["episode"] for one in summary["episodes"]] == [0, 2]


def test_recorded_actions_have_no_error_and_padding_is_not_scored(ask):
    policy = RecordedPolicy(apart=0.5)
    _, summary, directory = ask(policy)
    assert summary["steps"] == sum(data_sets.LENGTHS)
    assert summary["overall"]["mse"] < 1e-12 and summary["overall"]["mae_normalised"] < 1e-6
    assert summary["swapped"]["mae"] == pytest.approx(0.5, abs=1e-6) == summary["moved_by_instruction"]["mae"]
    assert summary["verdict"].startswith("the policy follows") and summary["moved_by_noise"]["mae"] == 0
    assert {one.step % CHUNK for one in policy.asked} == {0}
    states = {(one.session.split(".")[2], one.step): one.state for one in policy.asked}
    assert np.array_equal(states["1", 4], data_sets.numbers(9, 1)[libero.STATE][4])
    assert "effect of the instruction" in (directory / "report.html").read_text().lower() and not list(
        directory.glob("*.png")
    )


def test_constant_error_gives_its_figures_by_dimension_key_and_episode(ask):
    out, summary, directory = ask(RecordedPolicy(off=0.1), "--plot", "--episodes", "0,2", "--execute", "3")
    assert [one["episode"] for one in summary["episodes"]] == [0, 2] and "ignores the instruction" in summary["verdict"]
    for row in (*summary["dimensions"], *summary["keys"], *summary["episodes"], summary["overall"]):
        assert row["mse"] == pytest.approx(0.01, rel=1e-5) and row["mae"] == pytest.approx(0.1, rel=1e-5)
    assert [row["key"] for row in summary["keys"]] == [part.name for part in SEVEN]
    gripper = summary["dimensions"][-1]  # from 0 to 1 in the whole set: 0.1 of that is 0.2 of [-1, 1]
    assert gripper["mae_normalised"] == pytest.approx(0.2, rel=1e-5)
    assert sorted(path.name for path in directory.glob("*.png")) == ["episode_000000.png", "episode_000002.png"]
    assert (directory / "report.html").read_text().count("data:image/png") == 2 and "episode 2: 10 steps" in out


def test_one_dimension_and_one_task_are_scored_and_plotted(ask):
    joint = (Part("joint", 1, "rad", "position"),)
    policy = RecordedPolicy(joint, joint, apart=0.5, cameras=("front",))
    _, summary, directory = ask(policy, "--plot", "--steps", "5", "--swap", "hold still", dataset="joint")
    assert summary["steps"] == 5 and summary["overall"]["mse"] < 1e-12
    assert summary["episodes"][0]["swapped"]["instruction"] == "hold still"
    assert (directory / "episode_000000.png").stat().st_size > 5000
    assert "hold still" in {one.instruction for one in policy.asked}


def test_a_gripper_in_the_other_convention_is_turned(ask):
    class Closing(RecordedPolicy):
        def recorded(self, episode):
            return data_sets.gripper_closes(super().recorded(episode))

    _, summary, _ = ask(Closing((*OSC_POSE, GRIPPER_CLOSES)))
    assert summary["overall"]["mse"] < 1e-12
    assert ["note", "gripper converted to the policy's convention: -1 open, 1 closed"] in summary["facts"]


def test_images_equal_the_evaluators(ask):
    small, turned = RecordedPolicy(profile="groot-n1.5", image_hw=(16, 16)), RecordedPolicy(profile="groot-n1.5")
    for policy in (small, turned):
        ask(policy, "--episodes", "1")
    (seen,) = [one for one in turned.asked if (one.step, one.session) == (4, "offline.0.1.0.x")][:1]
    near = np.abs(seen.images["agentview"].astype(int) - data_sets.pictures(9, 32, 1)[4])
    assert near.mean() < 12, "the film is H.264: as recorded, but for what that loses"
    assert small.asked[0].images["robot0_eye_in_hand"].shape == (16, 16, 3)


def test_one_row_has_frames_chunk_and_recorded_actions(ask):
    out, summary, directory = ask(RecordedPolicy(off=0.25), "--index", "19")
    assert "row 19: episode 1, step 7 of 9" in out and "instruction: push the plate" in out
    assert "the episode ends after 2 of the chunk's 4 actions" in out
    assert np.array(summary["predicted"]).shape == (2, 7)
    assert np.allclose(np.array(summary["predicted"]) - summary["recorded"], 0.25)
    page = (directory / "report.html").read_text()
    assert page.count("data:image/png") == 3 and "camera agentview" in page and (directory / "chunk.png").is_file()


BAD = {
    "no such set": (RecordedPolicy, ("--dataset", "smal"), "did you mean 'small'"),
    "no such film": (lambda: RecordedPolicy(cameras=("top",)), (), "--cameras top=VIDEO"),
    "no such film as told": (RecordedPolicy, ("--cameras", "agentview=nonesuch"), "has no video 'nonesuch'"),
    "another robot": (lambda: RecordedPolicy(SEVEN[:2]), (), "7 numbers .* has 6: position delta"),
    "the simulator's state": (lambda: RecordedPolicy(needs_privileged=True), (), "needs the simulator's state"),
    "a row beyond": (RecordedPolicy, ("--index", "31"), "not a row of small; expected 0 to 30"),
    "an episode beyond": (RecordedPolicy, ("--episodes", "0,3"), "no episode 3; choose from 3"),
    "fewer actions": (lambda: RecordedPolicy(chunk=2), (), "--execute 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_requests_report_the_expectation(case, ask):
    make, flags, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        ask(make(), *flags)


def test_import_keeps_the_matplotlib_backend():
    backend = "module://matplotlib_inline.backend_inline"
    code = "import vla_evaluation.offline.program, matplotlib; print(matplotlib.get_backend())"
    environ = {**os.environ, "MPLBACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.stdout.strip() == backend, done.stderr
