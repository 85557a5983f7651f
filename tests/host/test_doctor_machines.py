"""Every recorded machine: the checks say of it what is true of it, in words that name the cause, and how to mend it.

machines/workstation.json is one on which all is well; the others say what is different from it, and what is expected.
"""

import json
import os
from pathlib import Path

import pytest

from tests.host.recorded_machine import Recorded
from vlalab.doctor import output, runner
from vlalab.doctor.check import (
    FAIL,
    GROUPS,
    PASS,
    SKIP,
    TORCH,
    VERDICTS,
    WARN,
    Check,
    CheckResult,
    Context,
    Finding,
    ok,
)
from vlalab.host import paths

MACHINES = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))
# The JSON's fields and their types, on which other programs count.
SCHEMA = {"schema": int, "host": str, "environments": list, "exit_code": int, "verdict": str, "seconds": float,
          "checks": list}  # fmt: skip
SCHEMA_OF_A_CHECK = {
    **dict.fromkeys(("id", "group", "title", "verdict", "why", "fix", "hint", "meaning", "severity", "error"), str),
    "facts": dict, "seconds": float,
}  # fmt: skip
PARTS = ("files", "commands", "programs", "disks", "answers", "variables")
# What looks at this very clone, its environments, its volume or the processes that run here.
OF_THIS_CLONE = {
    "egl", "renderer", "environments", "images", "settings", "volume", "volume-owner", "checkpoints",
    "gpu-in-container",
}  # fmt: skip


def recorded(name: str) -> Recorded:
    """Returns a recorded machine; a value of null takes something away."""
    here = json.loads((MACHINES / f"{name}.json").read_text())
    base = json.loads((MACHINES / f"{here['like']}.json").read_text()) if "like" in here else {}
    parts = {part: {**base.get(part, {}), **here.get(part, {})} for part in PARTS}
    kept = {part: {key: value for key, value in found.items() if value is not None} for part, found in parts.items()}
    more = {part: here.get(part, base.get(part)) for part in ("nvml", "time")}
    return Recorded(**kept, **{part: value for part, value in more.items() if value is not None})


def expected(name: str) -> dict[str, str]:
    return json.loads((MACHINES / f"{name}.json").read_text()).get("expect", {})


def examined(name: str) -> dict[str, Finding]:
    chosen = [one for one in runner.checks() if one.id not in OF_THIS_CLONE]
    case = Context(recorded(name), volume=Path("/srv/lab/volume"))
    return {one.check.id: one.finding for one in runner.run(chosen, case)}


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_machine_is_seen_for_what_it_is(name):
    found = examined(name)
    for check, says in expected(name).items():
        verdict, _, words = says.partition(": ")
        assert found[check].verdict == verdict, found[check]
        assert words in found[check].text, found[check]
    named = {check for check, says in expected(name).items() if not says.startswith((PASS, SKIP))}
    related = {
        "disk-full": {"docker-disk"},
        "inodes": {"disk-clone"},
    }
    others = {check for check, one in found.items() if one.verdict in (WARN, FAIL)} - named - related.get(name, set())
    assert not others, {check: found[check] for check in others}


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_wrong_has_a_way_out(name):
    for check, one in examined(name).items():
        assert one.verdict in VERDICTS and one.reason and "\n" not in one.text, check
        if one.verdict in (WARN, FAIL):
            assert one.fix or one.hint, (check, one)
        assert "secret" not in one.text


def test_many_kinds_of_machines_are_recorded():
    assert len(NAMES) > 50 and expected("workstation") == {}
    asked = {check for name in NAMES for check in expected(name)}
    assert {one.id for one in runner.checks()} - OF_THIS_CLONE - asked == set()


def test_checks_are_data():
    checks = runner.checks()
    assert len({one.id for one in checks}) == len(checks) > 30
    for one in checks:
        assert one.group in GROUPS and one.title and one.meaning.endswith(".") and one.severity in VERDICTS
        assert one.fix or one.severity == PASS


@pytest.mark.parametrize("name", NAMES)
def test_no_check_says_worse_than_its_severity(name):
    worst = {one.id: VERDICTS.index(one.severity) for one in runner.checks()}
    for check, one in examined(name).items():
        assert VERDICTS.index(one.verdict) <= max(worst[check], VERDICTS.index(SKIP)), check


# --- environments -------------------------------------------------------------------------------------------


def test_what_concerns_no_environment_that_was_requested_does_not_apply():
    with_torch = {one.id for one in runner.checks() if TORCH in one.requires}
    case = Context(recorded("driver-old"), environments=("ui",), volume=Path("/srv/lab/volume"))
    results = runner.run([one for one in runner.checks() if one.id in with_torch], case)
    assert {result.finding.verdict for result in results} == {SKIP} and output.exit_status(results) == 0


@pytest.mark.parametrize(("asked", "verdict"), [((), PASS), (("libero",), PASS), (("libero", "openvla"), WARN)])
def test_one_gpu_that_is_to_draw_and_to_compute_is_a_warning(asked, verdict):
    (found,) = runner.run(runner.checks_by_id(["one-gpu"]), Context(recorded("workstation"), environments=asked))
    assert found.finding.verdict == verdict and ("--render cpu" in found.finding.fix) == (verdict == WARN)


# --- side by side -------------------------------------------------------------------------------------------


def check(id: str, probe, **more) -> Check:
    return Check(id, id, FAIL, "mend it", probe, "Something.", "host", **more)


def test_a_check_that_breaks_or_hangs_spoils_no_other(tmp_path):
    import threading

    never = threading.Event()
    checks = [
        check("breaks", lambda case: 1 / 0),
        check("hangs", lambda case: never.wait() and ok(""), limit_s=0.2),
        check("well", lambda case: ok("fine")),
    ]
    results = {one.check.id: one for one in runner.run(checks, Context(Recorded()))}
    never.set()
    assert list(results) == ["breaks", "hangs", "well"]
    assert (
        results["breaks"].error == "ZeroDivisionError: division by zero" and results["breaks"].finding.verdict == WARN
    )
    assert results["hangs"].finding.reason == "no answer within 0.2 s"
    assert results["well"].finding == ok("fine", "") and not results["well"].error


# --- telling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("workstation", 0), ("ufw", 1), ("driver-mismatch", 2)])
def test_the_exit_code_is_the_worst_finding(name, code):
    chosen = [one for one in runner.checks() if one.id not in OF_THIS_CLONE]
    results = runner.run(chosen, Context(recorded(name), volume=Path("/srv/lab/volume")))
    assert output.exit_status(results) == code
    told = output.as_json(results, (), 1.0)
    assert (told["schema"], told["exit_code"], told["verdict"]) == (1, code, output.verdict(results))
    assert {field: type(value) for field, value in json.loads(json.dumps(told)).items()} == SCHEMA
    for row in json.loads(json.dumps(told))["checks"]:
        assert {field: type(value) for field, value in row.items()} == SCHEMA_OF_A_CHECK
        assert row["group"] in GROUPS and row["verdict"] in VERDICTS and row["severity"] in VERDICTS


@pytest.mark.parametrize("width", [60, 80])
def test_the_table_fits_its_width_and_ends_with_what_to_do(width):
    chosen = [one for one in runner.checks() if one.id not in OF_THIS_CLONE]
    results = runner.run(chosen, Context(recorded("driver-mismatch"), volume=Path("/srv/lab/volume")))
    lines = output.lines(results, 1.0, width)
    assert all(len(line) <= width for line in lines if not line.startswith("   $ "))
    assert [line for line in lines if line == "What to do:" or line.startswith("   $ ")][:2] == [
        "What to do:",
        "   $ sudo reboot",
    ]
    assert any(line.startswith("not ready (local)") for line in lines[-4:])


def found(**verdicts: str) -> list[CheckResult]:
    """Return a result per check id (with _ for -), every other check in order."""
    wanted = {name.replace("_", "-"): verdict for name, verdict in verdicts.items()}
    assert set(wanted) <= {one.id for one in runner.checks()}
    return output.judge(
        [CheckResult(one, Finding(wanted.get(one.id, PASS), "why", "fix"), 0.0) for one in runner.checks()]
    )


def test_the_runtime_that_would_be_used_is_judged(monkeypatch):
    monkeypatch.setenv("VLALAB_UID", str(os.geteuid() + 1))
    monkeypatch.setenv("VLALAB_GID", "1")
    without_images = {"images": SKIP}
    cases = [
        (found(), 0, "ready (docker)"),
        (found(docker_disk=FAIL), 2, "not ready (docker)"),
        (found(**without_images), 0, "ready (local)"),
        (found(docker_engine=WARN, **without_images), 1, "ready (local); Docker: 1 thing missing"),
        (found(docker_engine=WARN, volume_owner=FAIL, **without_images), 1, "ready (local); Docker: 2 things missing"),
        (found(docker_disk=FAIL, images=WARN, docker_engine=WARN), 1, "ready (local); Docker: 3 things missing"),
        (found(network_hub=WARN, **without_images), 1, "ready (local), with warnings"),
        (found(volume=FAIL, **without_images), 2, "not ready (local)"),
    ]
    for results, code, verdict in cases:
        assert (output.exit_status(results), output.verdict(results)) == (code, verdict)
    assert {one.id for one in runner.checks()} >= output.FOR_CONTAINERS


def test_every_field_of_the_json_is_documented():
    page = (paths.ROOT / "docs/doctor.md").read_text()
    told = output.as_json(runner.run([check("well", lambda case: ok("fine"))], Context(Recorded())), (), 1.0)
    for field in (*told, *told["checks"][0]):
        assert f"`{field}`" in page, field
