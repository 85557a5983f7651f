"""LIBERO-plus: its names and numbers, noise and camera by its own functions, files that assets lack, difficulty."""

import ast
import collections
import hashlib
import http.server
import json
import re
import threading
import zlib
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, zoom
from scipy.spatial.transform import Rotation

from bench.parts import plus_files
from services.libero.assets import plus as plus_assets
from services.libero.assets.official import DownloadError
from services.libero.benchmark import BENCHMARK
from services.libero.simulator import noise, plus, suites
from tests.libero.invented import make_run
from tests.libero.test_sharding import assert_same_start, our_start, reference_starts, small_stock
from vla_contract import PolicyInfo
from vla_evaluation import report
from vla_evaluation.benchmark import Assets, require_assets, sensed
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import describe, make_plan, specify
from vla_evaluation.rollout import Timings, observe

COUNTS = {  # of its task_classification.json, by category
    "libero_spatial": (376, 350, 390, 292, 258, 351, 385),
    "libero_object": (396, 398, 354, 297, 248, 422, 403),
    "libero_goal": (408, 409, 410, 279, 281, 379, 425),
    "libero_10": (419, 393, 383, 274, 289, 449, 312),
}


def tasks_of(suite):
    return suites.load_suite(suite).tasks


def from_its_source(*path, names, **known):
    """Functions and classes of LIBERO-plus's by name, run without what their module imports."""
    tree = ast.parse(plus.file(*path).read_text(encoding="utf-8"))
    tree.body = [one for one in tree.body if getattr(one, "name", None) in names]
    found = dict(known)
    exec(compile(tree, path[-1], "exec"), found)
    return SimpleNamespace(**{name: found[name] for name in names})


# --- suites and words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", plus.BASES)
def test_every_task_is_of_the_kind_that_its_authors_count_it_under(base):
    every = tasks_of(f"{base}_plus")
    counted = collections.Counter(task.kind for task in every)
    assert tuple(counted[kind] for kind in plus.KINDS) == COUNTS[base]
    assert [task.index for task in every] == list(range(len(every)))
    for kind in plus.KINDS:
        alone = tasks_of(f"{base}_plus_{kind}")
        assert [task.name for task in alone] == [task.name for task in every if task.kind == kind]
        assert [task.index for task in alone] == list(range(len(alone)))


def test_a_name_says_what_is_disturbed():
    read = plus.read_name("libero_goal", "turn_on_the_stove_view_15_345_125_350_10_initstate_0")
    assert (read.kind, read.bddl, read.states) == ("camera", "turn_on_the_stove", "libero_goal/turn_on_the_stove")
    assert read.disturbance == plus.Disturbance(15, 345, 1.25, 350, 10)
    assert plus.read_name("libero_goal", "a_view_0_0_100_0_0_initstate_0_noise_42").disturbance.noise == 42
    name = "pick_up_the_black_bowl_from_table_center_and_place_it_on_the_plate_table_7"
    read = plus.read_name("libero_spatial", name)
    assert (read.kind, read.bddl) == ("background", name) and read.states.endswith("center_and_place_it_on_the_plate")
    assert (
        plus.read_name("libero_10", "a_moved_level2_sample1").states == "libero_newobj/libero_10/a_moved_level2_sample1"
    )
    with pytest.raises(ValueError, match="'turn_on_the_stove' is not a task name of LIBERO-plus"):
        plus.read_name("libero_goal", "turn_on_the_stove")


def test_a_policy_is_reported_what_the_file_says(libero_runtime):
    from libero.libero.envs import bddl_utils

    for suite in plus.VARIANTS:
        for task in tasks_of(suite)[:: 1 + len(tasks_of(suite)) // 3]:
            assert task.instruction == bddl_utils.get_problem_info(str(task.bddl_path))["language_instruction"]
            assert not re.search(r"initstate|noise \d|_", task.instruction)
    words = {task.instruction for task in tasks_of("libero_goal_plus_language")}
    assert len(words) > 300


def test_how_many_tasks_are_reported_other_words_than_policies_learned():
    other, count = collections.Counter(), 0
    for base in plus.BASES:
        named = sorted((one.name for one in tasks_of(base)), key=len, reverse=True)
        for task in tasks_of(f"{base}_plus"):
            if task.kind != "language":
                learned = suites.instruction_of(next(name for name in named if task.name.startswith(name))).lower()
                other[base] += task.instruction != learned
                count += 1
    assert count == 8493 and dict(other) == {
        "libero_spatial": 2012, "libero_object": 2164, "libero_goal": 1169, "libero_10": 0,
    }  # fmt: skip


def test_starts_are_liberos_but_for_what_was_moved():
    for base in plus.BASES:
        moved, camera = tasks_of(f"{base}_plus_layout")[::150], tasks_of(f"{base}_plus_camera")[0]
        assert all(len(suites.init_states(task)) == 1 for task in moved)
        mine = next(one for one in tasks_of(base) if camera.name.startswith(one.name))
        assert np.array_equal(suites.init_states(camera), suites.init_states(mine))


def test_a_task_is_tried_once_unless_asked_otherwise():
    assert make_plan(BENCHMARK, EvalConfig("libero_goal_plus_layout", tasks="0-3")).episodes == [0]
    assert make_plan(BENCHMARK, EvalConfig("libero_goal_plus_noise", tasks="0", trials=3)).episodes == [0, 1, 2]
    assert len(make_plan(BENCHMARK, EvalConfig("libero_goal_swap", tasks="0")).episodes) == 50
    with pytest.raises(ValueError, match="requests episode 1, but a task has init states 0-0"):
        make_plan(BENCHMARK, EvalConfig("libero_goal_plus_layout", tasks="0-3", trials=2))


def test_an_environment_without_the_files_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(plus, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(ValueError, match=r"LIBERO-plus file .* not found.*`\./lab env libero`"):
        plus.file("bddl_files", "libero_goal", "x.bddl")


# --- camera, arm, scene -------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", plus_files.BASE_SCENES)
def test_the_camera_stands_where_its_own_code_puts_it(problem, libero_runtime):
    from services.libero.simulator import plus_scenes

    path = ("envs", "problems", f"{problem}.py")
    turns = ("scale_distance_from_pivot", "rotate_around_y", "rotate_around_z")
    base = next(one for one in ast.parse(plus.file(*path).read_text().split("\n@register_problem\n", 2)[1]).body)
    setup = next(one for one in base.body if getattr(one, "name", "") == "_setup_camera")
    theirs = vars(from_its_source(*path, names=turns, np=np, Rotation=Rotation))
    exec(compile(ast.Module([setup], []), problem, "exec"), theirs)
    fields = ("horizon_view", "vertical_view", "scale_factor", "end_point_rot", "end_point_vertical")
    placed = {}
    arena = SimpleNamespace(set_camera=lambda camera_name, pos, quat: placed.setdefault(camera_name, (pos, quat)))
    view = {setup_at.targets[0].id: ast.literal_eval(setup_at.value) for setup_at in setup.body[:2]}
    seen = {task.disturbance for base in plus.BASES for task in tasks_of(f"{base}_plus_camera")[::40]}
    for how in seen | {plus.Disturbance(), plus.Disturbance(350, 345, 0.8, 10, 350)}:
        placed.clear()
        told = zip(fields, (how.azimuth, how.elevation, how.distance, how.pan, how.tilt), strict=True)
        theirs["_setup_camera"](SimpleNamespace(**dict(told)), arena)
        assert plus_scenes.move_camera(np.array(view["pos_av"]), np.array(view["quat_av"]), how) == placed["agentview"]


def test_postures_are_the_same_on_both_mounts_and_another_is_refused(libero_runtime):
    from services.libero.simulator import robots

    text = plus.file("envs", "robots", "on_the_ground_panda.py").read_text(encoding="utf-8")
    theirs = re.findall(r"^class OnTheGroundPanda(\d+)\(.*?np\.array\(\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert {int(n): tuple(map(float, angles.split(","))) for n, angles in theirs} == plus.postures()
    assert set(plus.postures()) == set(range(1, 501)) and all(len(posture) == 7 for posture in plus.postures().values())
    with pytest.raises(ValueError, match="posture 501 not found; LIBERO-plus has 1 to 500"):
        robots.panda("", 501)


@pytest.mark.parametrize("robot", ["", "robosuite-1.4.1"])
def test_the_arm_starts_as_the_stock_loop_leaves_it(robot, libero_env):
    """The posture is the controller's: the init state puts the joints themselves where LIBERO has them."""
    from services.libero.simulator import robots

    task = tasks_of("libero_goal_plus_robot")[200]
    libero_env.load_task(task, seed=0, robot=robot)
    starts = suites.init_states(task)
    stock = small_stock(task, robots=[robots.panda(robot, task.disturbance.posture)])
    expected = reference_starts(stock, starts, episodes=1)
    stock.close()
    assert_same_start(expected[0], our_start(libero_env, 0, starts[0]))
    assert np.array_equal(libero_env.domain.robots[0].init_qpos, plus.postures()[task.disturbance.posture])


def test_every_scene_is_known_and_places_things_as_its_problem_does():
    samplers = plus.file("envs", "regions", "__init__.py").read_text(encoding="utf-8")
    by_problem = dict(re.findall(r'"(libero_\w+)":\s*\{\s*("\w+":\s*\w+)\s*\}', samplers))
    for base in plus.BASES:
        for kind in ("light", "background"):
            for task in tasks_of(f"{base}_plus_{kind}")[::5]:
                text = task.written()
                problem, scene = plus.problem_of(text)
                assert scene and plus.scene_of(text) is not None
                assert by_problem[f"{problem}{scene}".lower()] == by_problem[problem.lower()]
                assert plus.problem_of(task.bddl()) == (problem, "")
    with pytest.raises(ValueError, match="Tabletop_Manipulation_moon .* not defined"):
        plus.scene_of("(define (problem Libero_Tabletop_Manipulation_moon)")
    with pytest.raises(ValueError, match="no LIBERO problem"):
        plus.scene_of("")


@pytest.mark.parametrize("category", ["bag_of_yeast", "box_of_yogurt__1", "can_of_soda__1", "canned_food__1"])
def test_its_objects_are_made_of_their_files(category, libero_runtime, monkeypatch, tmp_path):
    from libero.libero.envs.base_object import OBJECTS_DICT

    from services.libero.simulator import plus_scenes

    plus_scenes.register()
    monkeypatch.setattr(plus_scenes.runtime, "active", lambda: SimpleNamespace(assets=tmp_path))
    path = tmp_path / plus.objects()[category]
    path.parent.mkdir(parents=True)
    made = []
    for number in (0, 1):  # its body in another, and alone
        path.write_text(plus_files._object("x", number))
        thing = OBJECTS_DICT[category](name="it")
        assert thing.bottom_offset[2] == -0.04 and thing.horizontal_radius > 0 and thing.joints == ["it_joint0"]
        parts = [(part.tag, part.get("name"), part.get("group")) for part in thing.get_obj().iter()]
        made.append([part for part in parts if part[0] != "site" or part[1] == "it_default_site"])
    assert made[0] == made[1] and [tag for tag, *_ in made[0]] == ["body", "geom", "geom", "joint", "site"]


def test_what_its_tasks_name_and_liberos_assets_lack_is_reported_with_the_way_out(tmp_path):
    light, added = tasks_of("libero_10_plus_light")[:3], tasks_of("libero_goal_plus_layout")[:1]
    for tasks in (light, added):
        with pytest.raises(
            ValueError, match=rf"{len(tasks)} of {len(tasks)} tasks need .* files .*assets\.zip.*--assets DIR"
        ):
            require_assets(BENCHMARK, tasks, Assets("folder", tmp_path, "d"))
    for kind in ("camera", "robot", "language", "noise"):
        require_assets(BENCHMARK, tasks_of(f"libero_10_plus_{kind}"), Assets("folder", tmp_path, "d"))


def test_how_many_tasks_the_kit_has_all_files_for(libero_assets):
    if not (libero_assets / "KIT").is_file():
        pytest.skip("these are not the kit")
    built = {kind: good for kind, (good, _) in plus_assets.buildable(libero_assets).items()}
    every = {kind: sum(counts) for kind, counts in zip(plus.KINDS, zip(*COUNTS.values(), strict=True), strict=True)}
    assert sum(every.values()) == 10_030 and built == {**every, "light": 0, "background": 28, "layout": 696}


# --- noise --------------------------------------------------------------------------------------------------

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
MOTION = (  # crc32 of PICTURE, seeds 1 to 10, in LIBERO-plus's motion_blur with ImageMagick 6.9.11-60 through Wand
    1566951475, 4102313145, 3990772948, 4116373784, 260062823,
    2156632632, 2911770626, 3626843809, 3382993150, 3741845274,
)  # fmt: skip


def its_noise():
    """Its own functions but for motion blur; 224 and 256 pixels, which the wheel has written in, are this size."""

    def gaussian(image, sigma, channel_axis):  # skimage's, in scipy's words
        return gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4.0)

    names = ("gaussian_blur", "clipped_zoom", "zoom_blur", "plasma_fractal", "fog", "glass_blur")
    source = plus.file("envs", "env_wrapper.py").read_text(encoding="utf-8").replace("224 - c[1]", "len(x) - c[1]")
    tree = ast.parse(source.replace("[:256, :256]", "[:len(x), :len(x)]"))
    tree.body = [one for one in tree.body if getattr(one, "name", None) in names]
    found = {"np": np, "scizoom": zoom, "gaussian": gaussian}
    exec(compile(tree, "env_wrapper.py", "exec"), found)
    return {kind: found[name] for kind, name in enumerate(("gaussian_blur", "zoom_blur", "fog", "glass_blur"), 1)}


@pytest.mark.parametrize("strength", range(1, 11))
def test_noise_is_its_own_functions_to_the_bit(strength):
    before = np.random.get_state()
    try:
        for kind, theirs in its_noise().items():
            np.random.seed(strength)
            with np.errstate(all="ignore"):
                expected = theirs(PICTURE.copy(), severity=strength).astype(np.uint8)
            got = noise.disturb(PICTURE, 10 * kind + strength, np.random.RandomState(strength))
            assert got.dtype == np.uint8 and np.array_equal(got, expected), noise.KINDS[kind].__name__
    finally:
        np.random.set_state(before)
    blurred = noise.disturb(PICTURE, strength, np.random.RandomState(strength))
    assert zlib.crc32(np.ascontiguousarray(blurred).tobytes()) == MOTION[strength - 1]


def test_noise_leaves_the_image_that_was_drawn_and_refuses_other_numbers():
    kept = PICTURE.copy()
    for number in range(1, 51, 7):
        assert not np.array_equal(noise.disturb(PICTURE, number, np.random.RandomState(0)), PICTURE)
    assert np.array_equal(kept, PICTURE) and noise.disturb(PICTURE, 0, np.random.RandomState(0)) is PICTURE
    for number in (-1, 51):
        with pytest.raises(ValueError, match="LIBERO-plus has 1 to 50"):
            noise.disturb(PICTURE, number, np.random.RandomState(0))
    wide = np.zeros((300, 300, 3), np.uint8)
    assert noise.disturb(wide, 35, np.random.RandomState(0)).shape == wide.shape  # its own clouds end at 256 pixels


def test_a_policy_sees_the_noise_and_the_video_does_not(libero_env):
    task = next(one for one in tasks_of("libero_goal_plus_noise") if one.disturbance.noise > 30)
    info = PolicyInfo("vla", BENCHMARK.action, cameras=("agentview", "robot0_eye_in_hand"))
    spec = specify(make_plan(BENCHMARK, EvalConfig(task.suite, tasks="0")), info)
    spec = replace(
        spec, protocol=replace(spec.protocol, rotate_180=False, upright=False, jpeg_quality=None, crop_area=None)
    )

    def look(episode, steps):
        libero_env.load_task(task, seed=0)
        libero_env.reset(episode, suites.init_states(task)[0])
        for _ in range(steps):
            libero_env.step(np.zeros(7))
        seen, drawn = observe(libero_env, spec, "s", 0, Timings())
        return seen.images["agentview"], seen.images["robot0_eye_in_hand"], drawn

    clear = sensed(SimpleNamespace(), "agentview", PICTURE)
    assert clear is PICTURE, "an environment without a sense delivers what it draws"
    first, _, drawn = look(0, 1)
    again, *_ = look(0, 1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, look(0, 2)[0]) and not np.array_equal(first, look(1, 1)[0])
    disturbed = libero_env.sense("agentview", drawn["agentview"])
    assert not np.array_equal(disturbed, drawn["agentview"])
    assert libero_env.sense("robot0_eye_in_hand", drawn["agentview"]) is drawn["agentview"]


# --- difficulty ---------------------------------------------------------------------------------------------


@pytest.fixture
def volume(tmp_path, monkeypatch):
    """A volume whose list of difficulties has every second task of libero_goal, by turns from 1 to 5."""
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path))
    told = {base: [] for base in plus.BASES}
    for number, one in enumerate(plus.listed("libero_goal")):
        told["libero_goal"].append({"name": one.name, "difficulty_level": 1 + number % 5 if number % 2 else None})
    plus.levels_path().parent.mkdir(parents=True)
    plus.levels_path().write_text(json.dumps(told))
    suites.load_suite.cache_clear()
    yield tmp_path
    suites.load_suite.cache_clear()


def test_report_and_summary_have_a_rate_for_every_level(volume):
    tasks = tasks_of("libero_goal_plus_noise")[:40]
    about = describe(
        make_plan(BENCHMARK, EvalConfig("libero_goal_plus_noise", tasks="0-39")), Assets("kit", volume, "d")
    )
    assert [one.get("level", 0) for one in about["tasks"][:40]] == [task.level for task in tasks]
    changes = {"suite": "libero_goal_plus_noise", "tasks": list(range(40))}
    directory, store = make_run(
        volume, "run", lambda task, _: tasks[task].level == 1, trials=1, task_count=40, **changes
    )
    report.build(directory, store)
    summary = json.loads((directory / "summary.json").read_text())
    known = collections.Counter(task.level for task in tasks if task.level)
    assert {int(level): one["episodes"] for level, one in summary["levels"].items()} == known
    assert [one["successes"] for one in summary["levels"].values()] == [known[1], 0, 0, 0, 0]
    assert list(summary["kinds"]) == ["noise"] and "Levels of difficulty" in (directory / "report.html").read_text()
    rows = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    assert collections.Counter(row["level"] for row in rows if "level" in row) == known


def test_without_the_list_nothing_is_graded_and_a_list_that_is_none_is_refused(volume):
    plus.levels_path().unlink()
    assert plus.levels() == {} and not any(task.level for task in tasks_of("libero_goal_plus_noise"))
    impossible = json.dumps({base: [{"name": "a", "difficulty_level": 9}] for base in plus.BASES})
    for text in ("{", "[]", '{"libero_goal": 3}', '{"libero_spatial": [{"name": "a"}]}', impossible):
        plus.levels_path().write_text(text)
        with pytest.raises(ValueError, match=r"is not LIBERO-plus's task_classification\.json"):
            plus.levels()


@contextmanager
def serving(body):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/task_classification.json"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def test_the_list_is_fetched_once_and_another_file_is_not_kept(tmp_path, monkeypatch):
    target = plus.levels_path(tmp_path)
    for body, words in ((b"", "could not be downloaded"), (b"other", "has the wrong content")):
        with serving(body) as url:
            monkeypatch.setattr(plus_assets, "LEVELS_URL", url)
            with pytest.raises(DownloadError, match=rf"{words}.*copy it to {re.escape(str(target))}"):
                plus_assets.fetch_levels(tmp_path)
        assert not target.exists()
    body, said = b'{"libero_goal": []}', []
    monkeypatch.setattr(plus_assets, "LEVELS_SHA256", hashlib.sha256(body).hexdigest())
    with serving(body) as url:
        monkeypatch.setattr(plus_assets, "LEVELS_URL", url)
        assert plus_assets.fetch_levels(tmp_path, said.append).read_bytes() == body
    assert plus_assets.fetch_levels(tmp_path, said.append) == target and len(said) == 1, "nothing is fetched again"
    assert [path.name for path in target.parent.iterdir()] == [target.name]
