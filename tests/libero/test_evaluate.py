"""The evaluator as a whole: what it refuses, how a run is shared among workers, what is resumed and what is not."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.libero.benchmark import BENCHMARK
from services.libero.profiles import OPENVLA, PROFILES
from services.libero.simulator.suites import SUITES, load_suite
from tests.libero.harness import ENVIRONMENT, Evaluation, LightEvaluation, PolicyService, results
from tests.ports import refusing
from vla_contract import Part, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE
from vla_evaluation import agreement, cli, evaluate, imports, provenance
from vla_evaluation.config import EvalConfig, differences, parse_args, parse_ranges, show_ranges
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.runs import directories as rundir
from vla_evaluation.store.runstore import RunStore

# --- configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", [0]), ("0,2-4", [0, 2, 3, 4]), (" 3 - 5 , 4", [3, 4, 5]), ("7,1", [1, 7])]
)
def test_ranges(text, numbers):
    assert parse_ranges(text) == numbers
    assert parse_ranges(show_ranges(numbers)) == numbers


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1"])
def test_invalid_ranges(text):
    with pytest.raises(ValueError, match="expected for example .0,2-4."):
        parse_ranges(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["libero_goal", "--workers", "0"], "--workers 0 requires --listen"),
        (["libero_goal", "--workers", "-1"], "workers is -1; expected 0 or more"),
        (["libero_goal", "--trials", "5", "--episodes", "0"], "use one of them"),
        (["libero_goal", "--run-id", "a", "--resume", "b"], "use one of them"),
        (["libero_goal", "--run-id", "../x"], "not a valid name"),
        (["libero_goal", "--run-id", "latest"], "choose another id"),
    ],
)
def test_invalid_flags_report_value_and_choices(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        parse_args(arguments, SUITES)
    assert error.value.code == 2
    said = capsys.readouterr().err.replace("│", " ")
    assert message in " ".join(said.split())


@pytest.mark.parametrize(
    "arguments",
    [["libero_goal", "--resume"], ["--resume", "libero_goal"], ["libero_goal", "--resume", "--trials", "2"]],
)
def test_resume_without_a_name_means_the_latest(arguments):
    assert parse_args(arguments, SUITES).resume == "latest"
    assert parse_args(["libero_goal", "--resume", "x"], SUITES).resume == "x"


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_has_a_plan(suite):
    plan = evaluate.make_plan(BENCHMARK, EvalConfig(suite=suite))
    assert len(plan.units) == len(load_suite(suite).tasks) * PROFILES["openvla"].trials


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tasks": "12"}, "tasks 0-9"),
        ({"tasks": "put_the_bowl_on_the_stov"}, "did you mean 'put_the_bowl_on_the_stove'"),
        ({"trials": 51}, "init states 0-49"),
        ({"episodes": "3,60"}, "--episodes requests episode 60"),
        ({"profile": "openvlaa"}, "did you mean 'openvla'"),
        ({"suite": "libero_goall"}, "suite 'libero_goall' not found; did you mean 'libero_goal'"),
        ({"cameras": "agentveiw"}, "did you mean 'agentview'"),
    ],
)
def test_invalid_plan(flags, message):
    with pytest.raises(ValueError, match=message):
        evaluate.make_plan(BENCHMARK, EvalConfig(**{"suite": "libero_goal", **flags}))


def test_differences_are_named():
    assert differences({"a": 1, "p": {"x": [1]}}, {"a": 1, "p": {"x": [2], "y": None}}) == [
        "p.x: [1] → [2]",
        "p.y: not recorded → none",
    ]


def test_resume_command_repeats_the_typed_command(monkeypatch, tmp_path):
    run = rundir.Run(tmp_path / "goal-7", None, True, [])
    for typed, flags in (
        ("libero_goal --trials 2 --resume old --video all", "--trials 2 --video all"),
        ("libero_goal --run-id=x --token=secret --tasks '0, 2'", "--tasks '0, 2'"),
        ("--resume libero_goal --trials 2", "--trials 2"),
    ):
        monkeypatch.setenv("VLALAB_COMMAND", f"./lab eval {typed}")
        assert evaluate.resume_command(run, SUITES) == f"./lab eval libero_goal {flags} --resume goal-7"


@pytest.mark.parametrize("changes", [{"suite": "libero_10"}, {"tasks": [0]}, {"episodes": "0-3"}])
def test_allow_drift_does_not_allow_another_plan(tmp_path, changes):
    """The store's rows are the plan: they would be run as another suite's, or counted against another number."""
    identity = {"suite": "libero_goal", "tasks": [0, 1], "episodes": "0-1", "seed": 0}

    def open_run(facts):
        plan = [(task, episode) for task in (0, 1) for episode in (0, 1)]
        return rundir.open_run(tmp_path, facts, plan, run_id="run", resume=None, label="x", allow_drift=True)

    with open_run(identity):
        pass
    with open_run(identity | {"seed": 1}) as run:
        assert len(run.store.plan()) == 4
    with pytest.raises(rundir.RunUnusable, match=next(iter(changes))) as refused, open_run(identity | changes):
        pass
    assert "--allow-drift" not in str(refused.value)


# --- agreement of policy and suite ---------------------------------------------------------------------------

ACTIONS = tuple((*OSC_POSE, gripper) for gripper in (GRIPPER_CLOSES, GRIPPER_OPENS))
VLA = PolicyInfo(
    "vla", ACTIONS[0], cameras=("agentview",), suites=("libero_goal",), unnorm_keys=("libero_goal_no_noops", "bridge")
)
GROOT = PolicyInfo(
    "gr00t-n1.5", ACTIONS[1], state=HAND_STATE, profile="groot-n1.5", cameras=("agentview", "robot0_eye_in_hand"),
    image_hw=(256, 256), horizon=16,
)  # fmt: skip
RANGES = (replace(OSC_POSE[0], low=-2, high=2), OSC_POSE[1], replace(GRIPPER_OPENS, high=None))


def check(info, profile="openvla", **changes):
    agreement.check_policy(replace(info, **changes), BENCHMARK, "libero_goal", PROFILES[profile])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cameras": ("agent_view",)}, "camera 'agent_view', which LIBERO does not have; did you mean 'agentview'"),
        ({"image_hw": (240, 320)}, "images of 320×240, but profile openvla sends 224×224"),
        (
            {"action": (Part("wheels", 2, "rad", "left, right"),)},
            r"wheels \[2\].* where LIBERO expects .*actions are position",
        ),
        ({"action": OSC_POSE}, r"returns actions with nothing where LIBERO expects gripper \[1\]"),
        ({"action": (*ACTIONS[0], GRIPPER_CLOSES)}, r"with gripper \[1\].* where LIBERO expects nothing"),
        ({"action": (OSC_POSE[1], OSC_POSE[0], GRIPPER_CLOSES)}, r"rotation delta \[3\].* expects position delta"),
        ({"action": (replace(RANGES[0], unit="m"), *RANGES[1:])}, "unit m,"),
        ({"state": HAND_STATE[:2]}, r"needs a state with nothing where LIBERO has fingers \[2\]"),
    ],
)
def test_a_misfit_is_rejected_with_the_differing_part(changes, message):
    with pytest.raises(ValueError, match=message):
        check(VLA, **changes)


def test_fitting_policies_are_accepted():
    for changes in ({}, {"state": HAND_STATE}, {"action": ACTIONS[1]}, {"action": RANGES}):  # ranges are not compared
        check(VLA, **changes)
    check(GROOT, "groot-n1.5")
    for profile in PROFILES:  # without cameras every profile fits
        check(PolicyInfo("oracle", ACTIONS[0]), profile)


def test_checkpoint_for_another_suite_is_rejected():
    with pytest.raises(ValueError, match=r"made for libero_goal, not for libero_10.*--allow-other-suite"):
        agreement.check_policy(VLA, BENCHMARK, "libero_10", OPENVLA)
    agreement.check_policy(VLA, BENCHMARK, "libero_10", OPENVLA, allow_other_suite=True)


def test_default_profile_is_the_policys_own():
    assert agreement.choose_profile(GROOT, BENCHMARK, None) == "groot-n1.5"
    assert agreement.choose_profile(GROOT, BENCHMARK, "openvla") == "openvla"
    assert agreement.choose_profile(VLA, BENCHMARK, None) == "openvla"
    with pytest.raises(ValueError, match="profile 'large', which LIBERO does not have; choose one with --profile: o"):
        agreement.choose_profile(replace(GROOT, profile="large"), BENCHMARK, None)


@pytest.mark.parametrize(
    ("changes", "profile", "message"),
    [
        ({}, "openvla", "256×256, but profile openvla sends 224×224; use --profile groot-n1.5"),
        ({}, "openpi", "256×256, but profile openpi sends 224×224; use --profile groot-n1.5"),
        ({"image_hw": (224, 224)}, "openpi", "returns gripper .* profile openpi expects .*; use --profile openvla,"),
        ({"state": ()}, "groot-n1.5", "no robot state, but profile groot-n1.5 sends it; none of the profiles fits"),
        (
            {"cameras": ("agentview",), "image_hw": (224, 224)}, "openvla-oft",
            "cameras agentview, but profile openvla-oft sends agentview and robot0_eye_in_hand; use --profile openvla,",
        ),
        ({"image_hw": (99, 99)}, "lerobot", "99×99, but profile lerobot sends 360×360; none .* fits it: openvla,"),
        ({"image_hw": (360, 360)}, "lerobot", "returns gripper .* 1 open.*lerobot expects .*; none of the profiles"),
    ],
)  # fmt: skip
def test_cameras_state_and_convention_are_the_profiles(changes, profile, message):
    with pytest.raises(ValueError, match=message):
        check(GROOT, profile, **changes)


@pytest.mark.parametrize(
    ("profile", "asked", "executed"),
    [("openvla", None, None), ("openvla", 4, 4), ("groot-n1.5", None, 1), ("groot-n1.5", 16, 16)],
)
def test_execute_defaults_to_the_profile(profile, asked, executed):
    plan = make_plan(BENCHMARK, EvalConfig(suite="libero_goal", profile=profile, execute=asked))
    assert specify(plan, GROOT).execute == executed


def test_unnorm_keys():
    usual = PROFILES["openvla"].unnorm_keys_for
    assert agreement.choose_unnorm_key(VLA, usual("libero_goal")) == "libero_goal_no_noops"
    assert agreement.choose_unnorm_key(VLA, usual("libero_10"), "bridge") == "bridge"
    assert agreement.choose_unnorm_key(PolicyInfo("p", ACTIONS[0]), usual("libero_10")) is None
    with pytest.raises(ValueError, match="libero_goal_no_noops, bridge"):
        agreement.choose_unnorm_key(VLA, usual("libero_10"))
    with pytest.raises(ValueError, match="has no such keys"):
        agreement.choose_unnorm_key(PolicyInfo("p", ACTIONS[0]), usual("libero_10"), "bridge")


# --- runs that are refused before they begin -----------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    options = ("--chunk", "4", "--token", "s3cret-token", "--camera", "agentview", "--state")
    log = tmp_path_factory.mktemp("policy") / "log.txt"
    with PolicyService(log, *options) as service, pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENT, "VLALAB_TOKEN", "s3cret-token")
        yield service


@pytest.fixture
def refuse(policy, libero_assets, tmp_path, monkeypatch, capsys):
    """Run the evaluator in this process and returns why it refused."""
    monkeypatch.setenv("VLALAB_TOKEN", "s3cret-token")

    def run(*arguments, url=policy.url, root=tmp_path / "runs"):
        flags = ["--policy-url", url, "--assets", str(libero_assets), "--run-dir", str(root)]
        assert cli.main(BENCHMARK, ["libero_goal", *flags, *arguments]) == 2
        return capsys.readouterr().err

    return run


def test_policy_that_is_never_ready(refuse):
    with refusing() as nobody:
        message = refuse("--policy-timeout-s", "1", url=nobody)
    assert f"{nobody} is not ready after 1 s" in message and "refused" in message


def test_wait_for_a_policy_prints_one_line_per_reason_without_a_terminal(libero_assets, tmp_path, capsys):
    with refusing() as nobody:
        flags = ["--policy-url", nobody, "--assets", str(libero_assets), "--run-dir", str(tmp_path / "runs")]
        assert cli.main(BENCHMARK, ["libero_goal", *flags, "--policy-timeout-s", "6"]) == 2
    assert capsys.readouterr().out.count(f"waiting for the policy at {nobody}, up to 6 s") == 1


def test_invalid_token_and_asset_directory(refuse, monkeypatch, tmp_path):
    assert str(tmp_path) in refuse("--assets", str(tmp_path))
    monkeypatch.setenv("VLALAB_TOKEN", "wrong")
    assert "401" in refuse("--tasks", "0")


def test_unwritable_run_directory(refuse, tmp_path):
    (tmp_path / "file").write_text("")
    assert "another volume (VLALAB_VOLUME)" in refuse(root=tmp_path / "file")
    assert "another volume (VLALAB_VOLUME)" in refuse(root=Path("/proc/runs"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_readonly_run_directory(refuse, tmp_path):
    (tmp_path / "runs").mkdir(mode=0o555)
    assert "not writable" in refuse()


def test_full_disk_is_reported_before_the_run_starts(refuse, monkeypatch):
    monkeypatch.setattr(evaluate, "EPISODE_BYTES", 10**15)
    assert "free some space" in refuse("--tasks", "0")


def test_missing_run(refuse):
    assert "no run to resume" in refuse("--resume")
    assert "run 'goal' not found" in refuse("--resume", "goal")


# --- real episodes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sharded(policy, libero_assets, tmp_path_factory):
    """The same two tasks × three episodes by 1 and 3 workers, who share a task; the one draws every video and says what
    it imports.
    """
    root = tmp_path_factory.mktemp("sharded")
    for workers, video, verbose in ((1, "all", "1"), (3, "none", "")):
        flags = (
            "--policy-url", policy.url, "--assets", str(libero_assets), "--tasks", "1,7", "--trials", "3",
            "--max-steps", "8", "--workers", str(workers), "--video", video,
        )  # fmt: skip
        with Evaluation(root, f"by-{workers}", *flags, PYTHONVERBOSE=verbose) as run:
            run.end()
    return root


def test_episodes_do_not_depend_on_how_a_run_is_shared(sharded):
    alone = results(sharded / "by-1")
    assert sorted(alone) == [(task, episode) for task in (1, 7) for episode in range(3)]
    assert results(sharded / "by-3") == alone
    assert len({row[2] for row in alone.values()}) == 6, "every episode begins from its own state"


def test_all_workers_took_part_and_stayed_with_their_task(sharded):
    """The third begins where the two leave something, which on a busy machine may be nowhere."""
    with RunStore(sharded / "by-3" / "run.sqlite", readonly=True) as store:
        finished = store.finished()
    first = {e.worker: e.task for e in sorted(finished, key=lambda e: e.ended_at, reverse=True)}
    assert len(first) >= 2 and set(first.values()) == {1, 7}


def test_all_that_a_real_worker_imports_is_part_of_its_run(sharded):
    """See tests/libero/test_provenance.py: what is not would change results, and nobody would be told."""
    said = "".join(path.read_text() for path in (sharded / "by-1").glob("logs/*.log"))
    ours = r"^import '((?:services|vla_common|vla_contract|vla_evaluation)[\w.]*)' #"
    seen = set(re.findall(ours, said, re.MULTILINE))
    assert {"fast_libero.rendering.compositor", "vla_contract.client.client"} < seen
    counted = imports.closure((provenance.WORKER, BENCHMARK.module), BENCHMARK.uncounted)
    assert seen - {"vla_common.volume"} <= counted


def test_recordings_contain_the_executed_actions(sharded):
    with RunStore(sharded / "by-1" / "run.sqlite", readonly=True) as store:
        for episode in store.finished():
            with np.load(sharded / "by-1" / episode.result["recording"]) as recording:
                assert recording["actions"].shape == (8, 7) and recording["actions"].dtype == np.float32
                assert len(recording["states"]) == 9
                assert any(name.startswith("fixture_") for name in recording.files)


def test_videos_exist_when_requested(sharded):
    assert len(list((sharded / "by-1" / "videos").glob("*.mp4"))) == 6
    assert not list((sharded / "by-3" / "videos").iterdir())


def test_the_report_and_its_companions(sharded):
    summary = json.loads((sharded / "by-1" / "summary.json").read_text())
    assert (summary["success_rate"], summary["episodes"], summary["complete"]) == (0.0, 6, True)
    assert summary["provenance"]["policy"]["name"] == "wave"
    assert len((sharded / "by-1" / "episodes.jsonl").read_text().splitlines()) == 6
    page = (sharded / "by-1" / "report.html").read_text()
    assert page.count("data:video/mp4;base64,") == 6


def test_the_token_is_nowhere_on_disk(sharded):
    for path in sharded.rglob("*"):
        assert not path.is_file() or b"s3cret-token" not in path.read_bytes(), path


@pytest.fixture(scope="module")
def light(policy, tmp_path_factory):
    """Flags and folder of a whole run, of two tasks × two episodes, whose simulator costs next to nothing."""
    flags = ("--policy-url", policy.url, "--tasks", "1,7", "--trials", "2", "--max-steps", "8", "--workers", "1")
    with LightEvaluation(tmp_path_factory.mktemp("light"), "whole", *flags, "--video", "none") as run:
        run.end()
    return flags, run.directory


def test_changed_configuration_is_rejected_with_the_difference(light):
    flags, directory = light

    def again(*changes, code):
        with LightEvaluation(directory.parent, directory.name, *flags, *changes) as run:
            return run.end(code)

    assert "max_steps: 8 → 9" in again("--max-steps", "9", code=2)
    assert "episodes: 0-1 → 0" in again("--trials", "1", code=2)
    before = results(directory)
    assert "0 of 4 to do" in again("--workers", "2", "--video", "sample", code=0), "this changes no outcome"
    assert results(directory) == before and len(before) == 4


def test_invalid_json_result_is_reported_with_the_command_that_discards_it(light, tmp_path):
    """Machines that joined a run could store a NaN. Whether SQLite refuses it or the report does depends on SQLite."""
    flags, whole = light
    directory = tmp_path / "nan"
    shutil.copytree(whole, directory)
    with RunStore(directory / "run.sqlite") as store:
        store.db.execute(
            'UPDATE episodes SET result = replace(result, \'"requests":\', \'"x": NaN, "requests":\')'
            "WHERE task = 7 AND episode = 1"
        )
    reported = runs("--run-dir", str(tmp_path), "report", "nan")
    with LightEvaluation(tmp_path, "nan", *flags) as run:
        assert run.process.wait(300) in (1, 2)
        said = run.output
    assert reported.returncode == 2
    for message in (reported.stderr, said):
        assert "task 7 episode 1" in message and "--resume" in message and "damaged" not in message
    with sqlite3.connect(directory / "run.sqlite") as database:
        database.execute(re.search(r'sqlite3 \S+ "([^"]+)"', said)[1])
    with LightEvaluation(tmp_path, "nan", *flags, "--video", "none") as run:
        assert "1 of 4 to do" in run.end()
    assert results(directory) == results(whole)


def runs(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "vla_evaluation.runs", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, "COLUMNS": "160"}, check=False)


def test_runs_are_listed_reported_and_compared(sharded):
    listed = runs("--run-dir", str(sharded), "list")
    assert listed.returncode == 0 and listed.stdout.count("complete") == 2
    (sharded / "by-1" / "report.html").unlink()
    assert runs("--run-dir", str(sharded), "report", "by-1").returncode == 0
    assert (sharded / "by-1" / "report.html").is_file()
    compared = runs("--run-dir", str(sharded), "compare", "by-1", "by-3")
    assert "exact McNemar p = 1" in compared.stdout, compared.stderr
    unknown = runs("--run-dir", str(sharded), "compare", "by-1", "by-4")
    assert unknown.returncode == 2 and "did you mean 'by-" in unknown.stderr


def age(directory: Path) -> None:
    """Make a run's store what an earlier version wrote: it named no benchmark, and kept the tasks' names elsewhere."""
    with RunStore(directory / "run.sqlite") as store:
        identity, policy = store.meta("identity"), store.meta("identity")["policy"]
        old = {name: value for name, value in identity.items() if name not in ("benchmark", "action", "control_hz")}
        old["policy"] = {**{k: v for k, v in policy.items() if k != "action"}, "action_convention": "libero"}
        store.set_meta("identity", old)
        store.set_meta("job", {"suite": "libero_goal", "profile": "openvla", "max_steps": 8})
        store.db.execute("DELETE FROM meta WHERE key = 'about'")
        store.db.execute("UPDATE episodes SET status = 'pending', result = NULL WHERE task = 7 AND episode = 1")


def test_run_of_an_earlier_version_is_rejected_or_resumed_with_drift(light, tmp_path):
    flags, whole = light
    directory = tmp_path / "runs" / "old"
    shutil.copytree(whole, directory)
    age(directory)
    there = ("--run-dir", str(directory.parent))
    assert "3/4" in runs(*there, "list").stdout
    for words in (["report", "old"], ["compare", "old", "old"]):
        done = runs(*there, *words)
        assert done.returncode == 2 and "older version without task names" in done.stderr
    with LightEvaluation(directory.parent, "old", *flags, "--video", "none") as run:
        said = run.end(2)
    assert "benchmark: not recorded → LIBERO" in said and "--allow-drift" in said
    with LightEvaluation(directory.parent, "old", *flags, "--video", "none", "--allow-drift") as run:
        run.end()
    assert results(directory) == results(whole)
    assert runs(*there, "report", "old").returncode == 0
