"""`./lab audit` over real HTTP: planted faults are named, healthy policies are not accused, bad input stops."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from bench.parts import audit_world
from bench.parts.audit_faults import BY_NAME, Wrapped
from services.libero.benchmark import BENCHMARK
from tests import axe
from tests.browser import Browser
from tests.running import running
from vla_contract import InvalidObservation, PolicyClient
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE, Part
from vla_datasets import libero
from vla_datasets.errors import DatasetError
from vla_datasets.loader import open_dataset
from vla_evaluation.audit import outputs, program
from vla_evaluation.audit.asking import AuditStopped
from vla_evaluation.audit.findings import ADVICE
from vla_evaluation.audit.moments import AROUND, Moments
from vla_evaluation.audit.run import audit
from vla_evaluation.offline.policy_view import view_as
from vla_evaluation.progress import FAILING, Pace

CAMERAS = {camera: libero.video_key(camera) for camera in libero.CAMERAS}


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    root = tmp_path_factory.mktemp("volume")
    audit_world.record(root / "datasets" / "cubes")
    return root


@pytest.fixture(scope="module")
def dataset(volume):
    return open_dataset(volume / "datasets" / "cubes")


def audited(dataset, policy, budget=1500, timeout_s=30.0, familiar=True):
    with running(policy, wait=False) as service, PolicyClient(service.url, None, timeout_s, timeout_s, 0) as client:
        client.wait_ready(30.0)
        view = view_as(dataset, client.info(), BENCHMARK.profiles, CAMERAS, {})
        return audit(client, view, 20, 5, budget, familiar)


def wrapped(dataset, *names):
    values = dataset.statistics()[libero.ACTION]
    faults = tuple(BY_NAME[name] for name in names)
    return Wrapped(audit_world.LookingPolicy(), faults, np.stack([values["min"], values["max"]]))


def findings(result):
    return {finding for verdict in result.wrong for finding in verdict.findings}


def verdict_of(result, convention):
    return next(verdict for verdict in result.verdicts if verdict.convention == convention)


CATALOGUE = json.loads((Path(outputs.__file__).parent / "korean.json").read_text(encoding="utf-8"))
PATTERNS = [
    re.compile("(.+?)".join(map(re.escape, english.split("{}"))), re.DOTALL)
    for english in CATALOGUE
    if english != "{}; {}"
]
SAME = ("BGR", "NaN", "/v1/info")  # in every language


def texts_of(verdict):
    return [verdict.convention, *verdict.findings, verdict.evidence, *sum(verdict.advice, ())]


def is_in_korean(text):
    if text in SAME or any(pattern.fullmatch(text) for pattern in PATTERNS):
        return True
    return "; " in text and all(map(is_in_korean, text.split("; ")))


def test_every_advice_is_in_korean():
    assert [text for advice in ADVICE.values() for text in advice if not is_in_korean(text)] == []


@pytest.mark.parametrize(
    "names",
    [
        ("images upside down", "sign of z"),
        ("BGR",),
        ("state in degrees", "gripper range"),
        ("stale images",),
        ("tool frame", "NaN in rare cases"),
        ("reset ignored", "x and y exchanged"),
        ("chunk reversed", "instruction truncated"),
    ],
    ids=" and ".join,
)
def test_planted_faults_are_named(dataset, names):
    result = audited(dataset, wrapped(dataset, *names))
    for name in names:
        assert findings(result) & set(BY_NAME[name].found_as), (name, findings(result))
    assert all(verdict.advice for verdict in result.wrong)
    assert result.requests <= 1500
    assert [text for verdict in result.verdicts for text in texts_of(verdict) if not is_in_korean(text)] == []


@pytest.mark.parametrize(
    ("names", "requests", "code"), [((), 900, 0), (("sign of z",), 400, 1)], ids=["healthy", "faulty"]
)
def test_the_program_ends_with_1_if_something_is_wrong(volume, dataset, names, requests, code):
    policy = wrapped(dataset, *names) if names else audit_world.LookingPolicy(noise=0.3)
    with running(policy) as service:
        arguments = ["--dataset", "cubes", "--policy-url", service.url, "--json", "--requests", str(requests)]
        done = subprocess.run(
            [sys.executable, "-m", "services.libero.audit", *arguments], capture_output=True, text=True,
            env={**os.environ, "VLALAB_VOLUME": str(volume)},
        )  # fmt: skip
    assert done.returncode == code, done.stderr
    printed = json.loads(done.stdout)
    assert bool(printed["wrong"]) == bool(code) and printed["requests"] <= requests
    assert all(set(BY_NAME[name].found_as) & set(printed["wrong"]) for name in names)
    assert [verdict["verdict"] for verdict in printed["verdicts"]].count("fine") > (5 if code else 15)
    page = (volume / "logs/audit/cubes-looking/audit.html").read_text().split("<script")[0]
    assert ("nothing wrong was found" in page) == (not code) and page.count("data:image/png") > 3


@axe.in_a_browser
def test_the_page_is_in_korean_on_request(dataset, tmp_path):
    with running(wrapped(dataset, "sign of z")) as service, PolicyClient(service.url) as client, Browser() as shown:
        view = view_as(dataset, client.info(), BENCHMARK.profiles, CAMERAS, {})
        (tmp_path / "audit.html").write_text(program.render(audit(client, view, 20, 5, 400, True), view))
        shown.go(f"{(tmp_path / 'audit.html').as_uri()}?language=ko")
        shown.until("document.documentElement.lang == 'ko'")
        cells = shown.js("[...document.querySelectorAll('table td:not(:first-child)')].map((cell) => cell.innerText)")
        assert len(cells) > 40 and [text for text in cells if not re.search("[가-힣]", text)] == []
        assert axe.violations(shown) == [] and shown.errors == []


class BlindPolicy(audit_world.LookingPolicy):
    """Announces cameras, and ignores them."""

    def find(self, seen, state):
        return np.zeros(2)


def test_a_blind_policy_is_told_apart_from_wrong_images(dataset):
    result = audited(dataset, BlindPolicy())
    assert findings(result) == {"ignores the images"}
    for convention in ("orientation of images", "colours", "crop"):
        assert verdict_of(result, convention).verdict == "cannot tell"


@dataclass
class Replaying(audit_world.LookingPolicy):
    """Refuses another instruction than the first one of an episode, as a policy that replays recordings does."""

    known: dict = field(default_factory=dict)

    def act(self, observations):
        return [super(Replaying, self).act([seen])[0] if self.knows(seen) else InvalidObservation("another task")
                for seen in observations]  # fmt: skip

    def knows(self, seen):
        return self.known.setdefault(seen.session.rsplit(".", 1)[0], seen.instruction) == seen.instruction


def test_a_policy_may_refuse_what_was_never_recorded(dataset):
    result = audited(dataset, Replaying())
    assert findings(result) == set()
    assert verdict_of(result, "instruction used").verdict == "cannot tell"
    assert "with a change were refused" in verdict_of(result, "finite answers").evidence


def test_images_of_the_kit_do_not_accuse_a_policy_that_may_not_know_them(dataset):
    result = audited(dataset, wrapped(dataset, "images upside down"), familiar=False)
    verdict = verdict_of(result, "orientation of images")
    assert verdict.verdict == "cannot tell" and "flipped vertically" in verdict.evidence


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("regressed", [False, True])
def test_poor_actions_are_not_accused(noise, regressed):
    """Answers that are mostly noise, or smaller by as much as a regression makes them, in no other convention."""
    random = np.random.default_rng(int(10 * noise))
    for _ in range(5):
        walk = np.cumsum(random.normal(size=(60, 14, 7)), 1) / 4 + random.normal(size=(60, 1, 7))
        answers = walk[:, AROUND:-AROUND] + noise * walk.std() * random.normal(size=(60, 8, 7))
        answers[..., :6] /= 1 + noise**2 if regressed else 1
        walk[..., 6], answers[..., 6] = np.sign(walk[..., 6]), np.sign(answers[..., 6])
        poses = random.normal(size=(60, 14, 6))
        moments = Moments((), (), walk, poses, np.stack([walk.min((0, 1)), walk.max((0, 1))]))
        found = outputs.check(audit_world.LookingPolicy().info(), moments, answers)
        assert [verdict for verdict in found.verdicts if verdict.verdict == "wrong"] == []


class Refusing(audit_world.LookingPolicy):
    """Answers only its first inference."""

    asked = 0

    def act(self, observations):
        self.asked += 1
        return super().act(observations) if self.asked == 1 else [self.refused() for _ in observations]

    def refused(self):
        return InvalidObservation("state has 3 numbers too few")


class Hanging(Refusing):
    def refused(self):
        time.sleep(0.6)
        return self.plan(self.example())


@dataclass
class Other(audit_world.LookingPolicy):
    """A policy with another description."""

    changes: tuple = ()

    def info(self):
        return replace(super().info(), **dict(self.changes))

    def plan(self, seen):
        return np.zeros((1, self.info().action_size), np.float32)


@pytest.mark.parametrize(
    ("policy", "error", "said"),
    [
        (Refusing(), AuditStopped, "answered no request .5 sent.: .*3 numbers too few; it refuses .*--dataset NAME"),
        (Hanging(), AuditStopped, "answered no request .1 sent.: .*no answer within.*--act-timeout-s"),
        (Other(changes=(("cameras", ("side",)),)), DatasetError, "has no video 'side'.*--cameras side=VIDEO"),
        (Other(changes=(("needs_privileged", True),)), ValueError, "needs the simulator's state.*another policy"),
        (
            Other(changes=(("action", (*OSC_POSE, GRIPPER_CLOSES, Part("base", 2, "m", "wheels"))),)),
            DatasetError, "has 7 numbers.*has 9.*trained on this robot",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_stops_with_the_way_forward(dataset, policy, error, said):
    with pytest.raises(error, match=f"(?s){said}"):
        audited(dataset, policy, timeout_s=0.3 if isinstance(policy, Hanging) else 30.0)


def test_eval_offers_the_audit_once_when_the_first_episodes_fail():
    counts = {0: {"planned": 50, "done": FAILING, "successes": 0, "steps": 900, "steps_of_done": 900}}
    pace = Pace({0: {**counts[0], "done": 0, "steps": 0}}, 0.0)
    assert pace.offer(pace.totals({0: {**counts[0], "done": FAILING - 1}}, 9.0)) is None
    assert "./lab audit POLICY" in pace.offer(pace.totals(counts, 9.0))
    assert pace.offer(pace.totals(counts, 9.0)) is None
    lucky = Pace({0: {**counts[0], "done": 0, "steps": 0}}, 0.0)
    assert lucky.offer(lucky.totals({0: {**counts[0], "successes": 1}}, 9.0)) is None
