"""The attack of tests/chaos itself: it repeats by its seed, knows good from bad, and finds what is wrong."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter

import msgpack
import numpy as np
import pytest

from tests.chaos import attack, bodies, pages, planted, rounds, valid
from tests.chaos.faults import KINDS, LAB_KINDS
from tests.chaos.ledger import Ledger
from tests.chaos.processes import MARK, end_all, marked
from tests.chaos.targets import Target
from tests.chaos.wire import Answer
from tests.libero.harness import wait_for
from vla_contract import InvalidObservation, PolicyInfo
from vla_contract.protocol.act_json import decode_act
from vla_contract.protocol.messages import check_needs, decode_observation
from vla_contract.protocol.parts import OSC_POSE as ACTION
from vla_evaluation.store.runstore import RunStore

INFOS = {
    "random": PolicyInfo("random", ACTION),
    "oracle": PolicyInfo("oracle", ACTION, needs_privileged=True, stateful=True),
    "replay": PolicyInfo("replay", ACTION),
    "openvla": PolicyInfo("openvla", ACTION, cameras=("agentview",), image_hw=(8, 8), unnorm_keys=("a", "b")),
}


def mutator(name: str, seed: int = 5) -> attack.Mutator:
    return attack.Mutator(name, INFOS[name].to_dict(), seed, attack.examples(name))


# --- drawing ------------------------------------------------------------------------------------------------


def test_rounds_and_requests_repeat_by_their_seed():
    assert [rounds.draw_round(3, n, True) for n in range(20)] == [rounds.draw_round(3, n, True) for n in range(20)]
    assert [mutator("oracle").draw(n) for n in range(300)] == [mutator("oracle").draw(n) for n in range(300)]
    assert mutator("oracle").draw(1) != mutator("oracle", 6).draw(1)


def test_every_kind_of_fault_comes_up():
    drawn = [rounds.draw_round(3, number, True) for number in range(len(KINDS))]
    assert {fault.kind for one in drawn for fault in one.faults} == set(KINDS)
    without = [rounds.draw_round(3, number, False) for number in range(len(KINDS))]
    assert not {fault.kind for one in without for fault in one.faults} & set(LAB_KINDS)


# --- good and bad -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INFOS)
def test_valid_requests_are_valid_by_both_rules(name):
    info = INFOS[name]
    for number in range(20):
        body = mutator(name).valid(number)
        assert valid.acceptable_v1(body.data, info.to_dict()) is None
        check_needs(decode_observation(body.data), info)
    if name == "openvla":
        data = json.dumps(bodies.valid_json(info.to_dict(), random.Random(0))).encode()
        assert valid.acceptable_act(data, info.to_dict()) is None


@pytest.mark.parametrize("name", ["random", "oracle", "openvla"])
def test_what_the_contract_lets_in_is_what_the_rules_let_in(name):
    """Said twice, by code that shares nothing, over thousands of mutated bodies."""
    info, answers = INFOS[name], Counter()
    for number in range(3000):
        body = mutator(name).draw(number)
        if body.route not in ("/v1/act", "/act") or body.method != "POST" or body.how == "type":
            continue
        try:
            if body.route == "/v1/act":
                check_needs(decode_observation(body.data), info)
            else:
                check_needs(decode_act(body.data, info, "s")[0], info)
        except InvalidObservation:
            answers["refused"] += 1
            continue
        except Exception as error:
            assert type(error).__name__ == "Problem", (body, error)
            continue
        answers["taken"] += 1
        rule = valid.acceptable_v1 if body.route == "/v1/act" else valid.acceptable_act
        assert rule(body.data, info.to_dict()) is None, body
    assert answers["refused"] > 500 and answers["taken"] > 10


def test_answers_are_judged():
    info = INFOS["random"].to_dict()
    body, bad = mutator("random").valid(0), bodies.Body("/v1/act", b"\xc1", bodies.MSGPACK, "")

    def chunk(*numbers: float) -> bytes:
        raw = np.array([numbers], np.float32)
        return msgpack.packb({"actions": {"__nd__": ["<f4", list(raw.shape), raw.tobytes()]}})

    good = Answer(200, {}, chunk(0, 0, 0, 0, 0, 0, 1))
    assert attack.fault(body, good, info) is None
    assert "200 for a bad body" in attack.fault(bad, good, info)
    assert "nan" in attack.fault(body, Answer(200, {}, chunk(0, 0, 0, 0, 0, 0, np.nan)), info)
    assert attack.fault(bad, Answer(422, {}, b""), info) is None
    assert attack.fault(bad, Answer(500, {}, b"oops"), info).startswith("500")
    assert attack.fault(bad, Answer(503, {}, b""), info).startswith("503")
    assert attack.fault(bad, Answer(503, {"retry-after": "1"}, b""), info) is None
    assert attack.fault(bad, Answer(0, {}, b""), info) and attack.fault(bad, Answer(-1, {}, b""), info)


def test_a_page_that_gives_something_away_is_found(tmp_path):
    guarded = Target("ws_mdl", None, "", tmp_path, guarded=True)
    asked = bodies.Body("/api/contents", b"", "", "", "GET")
    assert "without the token" in pages.fault(guarded, asked, Answer(200, {}, b"{}"))
    assert pages.fault(guarded, asked, Answer(403, {}, b"")) is None
    assert pages.fault(guarded, bodies.Body("/api", b"", "", "", "GET"), Answer(200, {}, b"{}")) is None
    assert "handed out" in pages.fault(guarded, asked, Answer(403, {}, b"x" + pages.SECRET.encode()))


# --- counting -----------------------------------------------------------------------------------------------

PLAN = [(0, 0), (0, 1), (7, 0)]


@pytest.fixture
def run(tmp_path):
    """Return a function that makes a finished run as the evaluator leaves it."""

    def make(name: str, lose: int = 0, shift: float = 0.0):
        directory = tmp_path / name
        (directory / "episodes").mkdir(parents=True)
        lines = []
        with RunStore.create(
            directory / "run.sqlite", suite="libero_goal", config_hash="0" * 16, plan=PLAN, meta={}
        ) as store:
            invocation = store.begin_invocation(1.0)
            for _ in PLAN[lose:]:
                lease = store.lease("worker-0", invocation, 1.0, 30.0)
                np.savez(
                    directory / "episodes" / f"{lease.task:02d}-{lease.episode:02d}.npz",
                    actions=np.zeros((2, 7)) + shift,
                    states=np.zeros((2, 3)),
                )
                result = {"success": True, "steps": 2, "start_hash": "a", "end_hash": "b", "actions_hash": "c"}
                assert store.finish(lease, result, 2.0)
                lines.append(json.dumps({"task": lease.task, "episode": lease.episode}))
        (directory / "episodes.jsonl").write_text("\n".join(lines))
        (directory / "summary.json").write_text(json.dumps({"episodes": len(lines), "successes": len(lines)}))
        return directory

    return make


class Left:
    """A stage whose processes have ended."""

    mark, lab = "nobody", "lab"

    def __init__(self, directory, output=""):
        self.directory, self._output = directory, output

    def output(self):
        return self._output


def test_a_run_like_the_undisturbed_one_holds(run):
    assert rounds.after_all(Left(run("mine")), run("calm")) is None


def test_what_is_wrong_with_a_run_is_found(run):
    calm, mine = run("calm"), run("mine")
    assert "planned" in rounds.after_all(Left(run("lost", lose=1)), calm)
    assert "recording" in rounds.after_all(Left(run("other", shift=1e-9)), calm)
    assert "traceback" in rounds.after_all(
        Left(mine, "Traceback (most recent call last):\n  File\nValueError: x"), calm
    )
    assert rounds.after_all(Left(mine, "Traceback (most recent call last):\n  File\nKeyboardInterrupt\n"), calm) is None
    (mine / "episodes" / ".07-00.npz.token").touch()
    assert "left behind" in rounds.after_all(Left(mine), calm)
    lines = (calm / "episodes.jsonl").read_text()
    doubled = run("doubled")
    (doubled / "episodes.jsonl").write_text(f"{lines}\n{lines.splitlines()[0]}")
    assert "episodes.jsonl" in rounds.after_all(Left(doubled), calm)
    miscounted = run("miscounted")
    (miscounted / "summary.json").write_text(json.dumps({"episodes": 3, "successes": 2}))
    assert "summary.json" in rounds.after_all(Left(miscounted), calm)


def test_a_process_left_behind_is_found_and_ended():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], env={**os.environ, MARK: "left"}):
        wait_for(lambda: marked("left"), "the process", 10)
        end_all("left")
    assert not marked("left")


def test_a_canary_tells_that_it_was_touched(tmp_path):
    canary = planted.Canary(tmp_path / "outside")
    assert canary.look() == canary.before
    canary.file.chmod(0o777)
    assert canary.look() != canary.before
    canary.file.chmod(0o640)
    canary.ran.touch()
    assert canary.look() != canary.before


def test_a_clock_that_jumps_jumps_in_every_process_that_is_reported_to(tmp_path):
    directory = rounds.__file__.replace("rounds.py", "clock")
    (tmp_path / "clock").write_bytes(np.float64(-5000.0).tobytes())
    env = {**os.environ, "PYTHONPATH": directory, "CHAOS_CLOCK": str(tmp_path / "clock")}
    said = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], env=env, capture_output=True)
    assert -5100 < float(said.stdout) - time.time() < -4900


def test_the_table_counts_and_its_report_is_what_the_sum_reads(tmp_path, capsys):
    ledger = Ledger("./lab test chaos --seed 1")
    for number in range(30):
        ledger.count("good", True)
        ledger.count("bad", False, f"story {number}")
    ledger.skip("gr00t", "no GPU")
    ledger.show()
    ledger.write(tmp_path / "report.json")
    out = capsys.readouterr().out
    assert "--seed 1" in out and "NOT HELD" in out and "story 0" in out and "story 29" not in out
    counts = json.loads((tmp_path / "report.json").read_text())
    assert counts == {"passed": 1, "failed": 1, "skipped": 1, "reasons": {"chaos, gr00t: no GPU": 1}}


def test_what_is_planted_touches_nothing_outside_by_itself(tmp_path):
    links = 0
    for number in range(300):
        here = tmp_path / str(number)
        (here / "volume").mkdir(parents=True)
        canary = planted.Canary(here / "outside")
        links += sum(word.startswith("link") for word in planted.plant(here / "volume", canary, random.Random(number)))
        assert canary.look() == canary.before, number
    assert links > 100


def test_no_change_makes_a_body_that_cannot_be_written():
    """Deep nesting put into deep nesting was too much for the attack's own copying and packing."""
    for seed in range(500):  # seven of them, where deep ones are put into each other
        draw, tree = random.Random(seed), {"a": [1, {"b": [2, 3]}], "c": {"d": "x"}}
        for _ in range(5):
            bodies.changed(tree, draw)
        assert bodies.pack(tree) and bodies.depth(tree) <= bodies.DEEP + 400
