"""Report, progress, comparison: from a store alone, no simulator."""

import io
import json
import re

import pytest
from rich.console import Console

from services.libero.benchmark import BENCHMARK
from services.libero.profiles import PROFILES
from services.libero.simulator.suites import SUITES, load_suite
from tests.libero.invented import ASSETS, IDENTITY, make_run, markup
from vla_contract import PolicyInfo
from vla_contract.protocol.parts import OSC_POSE
from vla_evaluation import evaluate, report
from vla_evaluation.config import EvalConfig
from vla_evaluation.plan import make_plan
from vla_evaluation.progress import Pace, Progress
from vla_evaluation.report import compare, data, page
from vla_evaluation.runs import __main__ as runs
from vla_evaluation.runs.directories import Run


def test_summary_json_has_the_results(tmp_path):
    directory, store = make_run(tmp_path, outcome=lambda task, episode: task != 3 and episode % 5 != 0)
    report.build(directory, store)
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["success_rate"] == 0.72 and summary["successes"] == 360 and summary["complete"]
    assert summary["wilson_95"] == pytest.approx([0.679, 0.7575], abs=1e-3)
    assert [task["success_rate"] for task in summary["tasks"]] == [0.8] * 3 + [0.0] + [0.8] * 6
    assert summary["ms_per_step"]["rendering"] == 20.0
    assert summary["provenance"]["versions"] == IDENTITY["versions"]
    rows = [json.loads(line) for line in (directory / "episodes.jsonl").read_text().splitlines()]
    assert len(rows) == 500 and rows[0]["instruction"] == load_suite("libero_goal").tasks[0].instruction


def test_the_time_adds_up(tmp_path):
    _, store = make_run(tmp_path, trials=1)
    stages = data.Summary(tmp_path / "run", store).stages()
    assert sum(share for *_, share in stages) == pytest.approx(1.0)
    assert dict((words, ms) for words, _, ms, _ in stages)["other"] == pytest.approx(2.0)


def test_page_is_self_contained(tmp_path):
    directory, store = make_run(tmp_path, trials=2, outcome=lambda task, episode: episode == 0, files=4)
    report.build(directory, store)
    html = (directory / "report.html").read_text()
    assert not re.search(r"""(src|href|poster)\s*=\s*["'](?!data:|\?language=)""", html)
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)", html)
    assert html.count("data:video/mp4;base64,") == 4 and html.count("data:image/jpeg;base64,") == 4
    assert html.count('<svg class="bar"') == 11


def test_beyond_the_budget_videos_are_linked_failures_last(tmp_path):
    directory, store = make_run(tmp_path, trials=2, outcome=lambda task, episode: episode == 0, files=20)
    sizes = [path.stat().st_size for path in directory.glob("videos/*")]
    html = page.render(directory, data.Summary(directory, store), embed_bytes=sum(sizes) * 2 // 3)
    failures, successes = html.split("<h2>Successes")
    assert failures.count("data:video/mp4") == 10, "failures are embedded first"
    assert 'src="videos/' in successes and "links into the run" in html


def test_names_from_outside_are_escaped(tmp_path):
    evil = {"policy": {"name": "<script>alert(1)</script>", "needs_privileged": False}}
    directory, store = make_run(tmp_path, trials=1, **evil)
    report.build(directory, store)
    assert "<script>" not in (directory / "report.html").read_text()


@pytest.mark.parametrize("left", [0, 7, 20])
def test_report_of_an_unfinished_run_is_marked(tmp_path, left):
    directory, store = make_run(tmp_path, trials=2, left=left)
    report.build(directory, store)
    assert ("Not complete:" in markup(directory)) == (left > 0)


# --- published figures ----------------------------------------------------------------------------------------


def test_full_run_on_official_assets_has_the_published_figure(tmp_path):
    directory, store = make_run(tmp_path)
    report.build(directory, store)
    summary = json.loads((directory / "summary.json").read_text())
    assert [row["percent"] for row in summary["published"]] == [79.2]
    assert summary["comparable_with_published"]
    assert "published: 79.2 %" in markup(directory)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"assets": {"kind": "kit", "digest": "k"}}, "assets: kit"),
        ({"assets": {"kind": "folder", "digest": "k"}}, "not verified"),
        ({"seed": 7}, "another seed"),
        ({"max_steps": 299}, "another step limit"),
        ({"episodes": "0-48"}, "not the first 50 init states"),
        ({"tasks": [0, 1]}, "not all tasks"),
        ({"execute": 1}, "another part of each action chunk"),
        ({"policy": {"name": "oracle", "needs_privileged": True}}, "privileged state"),
        ({"policy": IDENTITY["policy"] | {"suites": ["libero_10"]}}, "a checkpoint for libero_10"),
        (
            {"policy": IDENTITY["policy"] | {"details": {"variant": "cu130: torch 2.11.0"}}},
            "another torch (variant cu130: torch 2.11.0)",
        ),
        ({"unnorm_key": "libero_object"}, "un-normalised as libero_object"),
        ({"versions": IDENTITY["versions"] | {"mujoco": "3.3.3"}}, "other packages (mujoco 3.3.3, not 3.2.3)"),
        ({"versions": {}}, "mujoco None, not 3.2.3"),
        ({"off_lock": ["scipy 1.9.0 (lock: 1.8.1)"]}, "other packages (scipy 1.9.0 (lock: 1.8.1))"),
        ({"lock": None}, "packages of no lock"),
    ],
)
def test_every_departure_from_the_protocol_keeps_published_figures_away(tmp_path, changes, reason):
    directory, store = make_run(tmp_path, trials=1, **changes)
    report.build(directory, store)
    if reason == "assets: kit":
        assert "assets: kit — not comparable with published numbers" in markup(directory)
    summary = json.loads((directory / "summary.json").read_text())
    assert not summary["comparable_with_published"] and summary["published"] == []
    assert reason in summary["why_not_comparable"]
    assert "published:" not in markup(directory)


GROOT = {
    "profile": "groot-n1.5", "episodes": "0-4", "max_steps": 600, "execute": 1, "unnorm_key": None,
    "policy": IDENTITY["policy"] | {"details": {"prompt": "upstream", "denoising_steps": "8", "seed": "0"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"policy": IDENTITY["policy"]}, ""),
        ({"policy": IDENTITY["policy"] | {"details": {"prompt": "plain"}}}, "prompt plain, not upstream"),
        ({"policy": IDENTITY["policy"] | {"details": {"denoising_steps": "4"}}}, "denoising_steps 4, not 8"),
        ({"execute": None}, "another part of each action chunk"),
        ({"max_steps": 300}, "another step limit"),
    ],
)
def test_run_under_groots_profile_has_groots_figure(tmp_path, changes, reason):
    directory, store = make_run(tmp_path, trials=5, **(GROOT | changes))
    summary = report.build(directory, store)
    assert summary.comparable == (not reason) and reason in summary.comparability_problem
    assert [row.percent for row in summary.published] == ([] if reason else [86.0])


@pytest.mark.parametrize(("kind", "lines"), [("kit", 1), ("official", 0), ("folder", 0)])
def test_kit_run_ends_with_the_official_files_command(tmp_path, capsys, kind, lines):
    directory, store = make_run(tmp_path, trials=1, assets={"kind": kind, "digest": "k"})
    evaluate.print_result(Run(directory, store, resumed=False, drift=[]), report.build(directory, store))
    said = capsys.readouterr().out
    assert said.count("./lab assets libero") == lines
    assert said.splitlines()[-1].startswith("libero_goal: success rate 100.0 %"), "the result stays the last line"


def test_kit_run_starts_with_the_official_files_notice(tmp_path, capsys):
    directory, store = make_run(tmp_path, trials=1, left=10)
    plan, info = make_plan(BENCHMARK, EvalConfig(suite="libero_goal")), PolicyInfo(name="vla", action=OSC_POSE)
    evaluate.print_header(Run(directory, store, False, []), plan, info, ASSETS["kit"], 10, 1)
    assert "published numbers need LIBERO's official files: `./lab assets libero` (317 MB" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"unnorm_key": "libero_goal_no_noops"}, {"unnorm_key": None},
                                     {"policy": IDENTITY["policy"] | {"suites": ["libero_goal"]}}])  # fmt: skip
def test_permitted_settings_keep_the_published_figure(tmp_path, changes):
    directory, store = make_run(tmp_path, **changes)
    assert report.build(directory, store).comparable


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_can_be_reported(tmp_path, suite):
    tasks = len(load_suite(suite).tasks)
    changes = {"suite": suite, "tasks": list(range(tasks)), "max_steps": PROFILES["openvla"].steps_for(suite)}
    directory, store = make_run(tmp_path, trials=1, task_count=tasks, **changes)
    assert report.build(directory, store).done == tasks


# --- comparison ------------------------------------------------------------------------------------------------


def test_two_runs_are_paired_by_episode(tmp_path):
    _, a = make_run(tmp_path, "a", lambda task, episode: episode >= 10, trials=20)
    _, b = make_run(tmp_path, "b", lambda task, episode: episode >= 5, trials=20)
    result = compare.compare(a, b)
    assert (result.a.value, result.b.value, result.only_a, result.only_b) == (0.5, 0.75, 0, 50)
    assert result.difference == pytest.approx(0.25) and result.interval[0] > 0.15
    assert result.p_value < 1e-10
    back = compare.compare(b, a)
    assert back.difference == pytest.approx(-0.25)
    assert back.interval == pytest.approx((-result.interval[1], -result.interval[0]))


def test_only_common_episodes_are_paired_and_the_rest_is_counted(tmp_path):
    _, a = make_run(tmp_path, "a", trials=4)
    _, b = make_run(tmp_path, "b", trials=6, left=2)
    result = compare.compare(a, b, force=True)
    assert (result.pairs, result.left_out) == (40, 18)


@pytest.mark.parametrize(
    ("name", "value"), [("crop_area", None), ("jpeg_quality", 75), ("wait_steps", 0), ("image_size", 256)]
)
def test_changed_wait_or_images_under_one_profile_are_not_paired(tmp_path, name, value):
    protocol = vars(PROFILES["openvla"].protocol())
    _, a = make_run(tmp_path, "a", trials=1, protocol=protocol)
    _, b = make_run(tmp_path, "b", trials=1, protocol=protocol | {name: value})
    with pytest.raises(compare.Unpaired, match=f"differ in protocol.{name}: {protocol[name]} and {value or 'none|0'}"):
        compare.compare(a, b)
    _, older = make_run(tmp_path, "older", trials=1)
    assert f"protocol.{name}: not recorded → {'none' if value is None else value}" in compare.compare(older, b).beside


PROTOCOL = vars(PROFILES["openvla"].protocol())
NO_ROBOT = {name: value for name, value in PROTOCOL.items() if name != "robot"}


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ({}, {"left": 3}, "run b is not complete: 7 of 10 episodes are done"),
        ({"left": 1}, {}, "run a is not complete: 9 of 10 episodes are done"),
        ({"control_hz": 20}, {"control_hz": 10}, "control_hz: 20 and 10"),
        (
            {"protocol": NO_ROBOT},
            {"protocol": NO_ROBOT | {"robot": "robosuite-1.4.1"}},
            "protocol.robot: default and robosuite-1.4.1",
        ),
    ],
)
def test_incomparable_runs_need_force(tmp_path, capsys, a, b, reason):
    for name, changes in (("a", a), ("b", b)):
        make_run(tmp_path, name, trials=1, **changes)[1].close()
    for pair in (("a", "b"), ("b", "a")):
        assert runs.main(["--run-dir", str(tmp_path), "compare", *pair]) == 2
        said = capsys.readouterr()
        assert "McNemar" not in said.out and "--force" in said.err
    assert runs.main(["--run-dir", str(tmp_path), "compare", "a", "b", "--force"]) == 0
    said = capsys.readouterr().out
    assert f"not comparable: {'they differ in ' if 'and' in reason else ''}{reason}" in said and "McNemar" in said
    assert runs.main(["--run-dir", str(tmp_path), "compare", "a", "a"]) == 2
    assert "same run" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["upright", "seed_each", "extra_resets"])
def test_additional_protocol_setting_is_another_protocol(tmp_path, name):
    """An identity leaves these out at their default; see vla_evaluation.profiles.LATER."""
    _, a = make_run(tmp_path, "a", trials=1, protocol=NO_ROBOT | {name: 1})
    default = {key: value for key, value in NO_ROBOT.items() if key != name}
    _, b = make_run(tmp_path, "b", trials=1, protocol=default)
    for pair in ((a, b), (b, a)):
        with pytest.raises(compare.Unpaired, match=f"protocol.{name}"):
            compare.compare(*pair, force=True)


def test_other_differences_of_two_runs_are_printed(tmp_path, capsys):
    make_run(tmp_path, "a", trials=2)[1].close()
    vla = {"name": "other", "needs_privileged": False}
    make_run(tmp_path, "b", trials=1, execute=4, code="d", policy=vla, episodes="0")[1].close()
    assert runs.main(["--run-dir", str(tmp_path), "compare", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert "A and B also differ in execute: the whole chunk → 4" in said and "code: c → d" in said
    assert "policy.name" not in said and "episodes:" not in said and "policy errors" not in said


def test_a_single_pair_has_no_interval_and_a_digest_is_cut_short(tmp_path, capsys):
    for name, lock in (("a", "12345678" * 8), ("b", "87654321" * 8)):
        make_run(tmp_path, name, trials=1, task_count=1, lock=lock)[1].close()
    assert runs.main(["--run-dir", str(tmp_path), "compare", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert (
        "B − A = +0.0 points, one pair is too few for a test" in said and "1 pairs" not in said and "95 %" not in said
    )
    assert "A and B also differ in lock: 12345678 → 87654321" in said.splitlines()


def test_comparison_counts_policy_errors_separately(tmp_path, capsys):
    make_run(tmp_path, "a", trials=1)[1].close()
    _, b = make_run(tmp_path, "b", lambda task, episode: task > 1, trials=1)
    b.db.execute("UPDATE episodes SET result = json_set(result, '$.policy_error', 'nan') WHERE task = 0")
    b.close()
    assert runs.main(["--run-dir", str(tmp_path), "compare", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert "policy errors among the failures: A 0, B 1" in said and "only A succeeded in 2" in said


@pytest.mark.parametrize(
    "changes", [{"suite": "libero_10"}, {"max_steps": 9}, {"seed": 1}, {"assets": {"kind": "kit", "digest": "d"}}]
)
def test_other_protocols_are_not_paired(tmp_path, changes):
    _, a = make_run(tmp_path, "a", trials=1)
    _, b = make_run(tmp_path, "b", trials=1, **changes)
    with pytest.raises(compare.Unpaired, match=f"differ in .*{next(iter(changes))}"):
        compare.compare(a, b)


def test_episodes_that_began_differently_are_not_paired(tmp_path):
    _, a = make_run(tmp_path, "a", trials=1)
    _, b = make_run(tmp_path, "b", trials=1)
    b.db.execute("UPDATE episodes SET result = json_set(result, '$.start_hash', 'else') WHERE task = 4")
    with pytest.raises(compare.Unpaired, match="task 4 episode 0 started from different states"):
        compare.compare(a, b)


# --- progress --------------------------------------------------------------------------------------------------


def counts(done):
    row = {"planned": 10, "done": done, "successes": done // 2, "leased": 1, "pending": 9 - done, "broken": 0}
    return {0: row | steps(done * 50), 3: row | steps(0)}


def steps(of_done, under_way=0):
    return {"steps": of_done + under_way, "steps_of_done": of_done}


def test_pace_counts_this_session_only():
    pace = Pace(counts(2), now=100.0)
    totals = pace.totals(counts(4), now=110.0)
    assert (totals.done, totals.planned) == (8, 20)
    assert totals.steps_per_s == pytest.approx(10.0)
    assert totals.left_s == pytest.approx(30.0)  # 4 episodes in 10 s, 12 to go
    assert pace.totals(counts(2), now=101.0).left_s is None


def test_pace_excludes_the_start_and_counts_running_episodes():
    row = {"planned": 10, "done": 0, "successes": 0, "leased": 2, "pending": 8, "broken": 0}
    pace = Pace({0: row | steps(0)}, now=0.0)
    starting = pace.totals({0: row | steps(0)}, 30.0, workers={"a": "starting the simulator", "b": "task 0 episode 1"})
    assert starting.line == "0/10 episodes, success –, starting the simulator"
    moving = pace.totals({0: row | steps(0, 100)}, now=40.0)
    assert moving.line == "0/10 episodes, success –, 10 steps/s"
    first = pace.totals({0: row | {"done": 1} | steps(100, 100)}, now=50.0)
    # 1000 steps, 200 of them done
    assert first.line == "1/10 episodes, success 0.0 %, 10 steps/s, about 1 min 20 s left"


def test_final_video_rendering_is_displayed():
    pace = Pace(counts(0), now=0.0)
    workers = {"a": "task 3 episode 1", "b": "rendering videos"}
    assert pace.totals(counts(5), 10.0, workers=workers).line.endswith(" left")
    assert pace.totals(counts(10), 20.0, workers=workers).line.endswith("25 steps/s, rendering videos")
    ending = pace.totals(counts(10), 20.0, workers={"a": "task 3 episode 1"})
    assert ending.line.endswith("25 steps/s, stopping the workers")
    assert pace.totals(counts(10), 21.0).line.endswith("24 steps/s")


def test_long_run_prints_its_duration_once():
    pace = Pace(counts(0), now=0.0)
    assert pace.announcement(pace.totals(counts(1), now=900.0)) is None, "two episodes are no pace yet"
    line = pace.announcement(pace.totals(counts(2), now=900.0))
    assert line == "about 1 h 00 min remaining; Ctrl-C keeps finished episodes, --resume continues"
    assert pace.announcement(pace.totals(counts(5), now=901.0)) is None
    quick = Pace(counts(0), now=0.0)
    assert quick.announcement(quick.totals(counts(4), now=9.0)) is None


def test_plain_lines_for_logs():
    out = io.StringIO()
    with Progress({0: "a", 3: "b"}, counts(0), Console(file=out)) as progress:
        progress.update(counts(0), {})
        progress.update(counts(2), {})  # too soon after the last line
        progress.update(counts(10), {})
    lines = out.getvalue().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0/20", "20/20"]
    assert "success 50.0 %" in lines[1] and "\x1b" not in out.getvalue()


def test_live_table():
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=30)
    with Progress({0: "open the drawer", 3: "push the plate"}, counts(0), console) as progress:
        progress.update(counts(4), {"worker-0": "task 0 episode 3", "worker-1": "waiting for the policy (refused)"})
        progress.print_line("worker-1 was killed by SIGKILL; starting another")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    assert "open the drawer" in text and "4/10" in text and "50 %" in text
    assert "1 × waiting for the policy (refused)" in text
    assert "8/20 episodes, success 50.0 %" in text and "worker-1 was killed" in text


@pytest.mark.parametrize("width", [30, 40, 60, 80, 110])
def test_narrow_tables_shorten_text_and_never_numbers(width):
    console = Console(file=io.StringIO(), width=width, height=30)
    names = {0: "open the middle drawer of the cabinet", 33: "put the yellow and white mug in the microwave"}
    full = {"planned": 50, "done": 50, "successes": 50, "leased": 0, "pending": 0, "broken": 0} | steps(9000)
    rows = {0: full, 33: full | {"done": 9, "successes": 3}}
    progress = Progress(names, rows, console)
    console.print(progress.table(rows, {"w": "x" * 200}, progress.pace.totals(rows, 1e9)))
    lines = console.file.getvalue().splitlines()
    assert re.search(r" 50/50  100 %$", lines[0]) and re.search(r"  9/50   33 %$", lines[1])
    assert max(map(len, lines)) <= width
    bar, text = len(re.findall("[━╍─]", lines[0])), len(re.findall("[a-z…]", lines[0]))
    assert text >= 8 and bar == (24 if width >= 60 else 0)
    assert "59/100 episodes, success 89.8 %" in re.sub(r"\s+", " ", " ".join(lines))


def test_a_long_suite_fits_on_the_screen():
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=24)
    many = {task: counts(3)[0] | {"leased": int(task == 77)} for task in range(90)}
    progress = Progress({task: str(task) for task in many}, many, console)
    assert 77 in progress.visible(many) and len(progress.visible(many)) <= 16
