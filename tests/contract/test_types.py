"""Values are checked when they are made, and the errors name field, value and expectation."""

import dataclasses
import json

import numpy as np
import pytest
from fakes import PARTS, STATE, chunk_of, observe, picture

from vla_contract import ActionChunk, Checkpoint, InvalidObservation, Part, Policy, PolicyInfo
from vla_contract.protocol.errors import did_you_mean

GOOD = [
    {},
    {"images": {}},
    {"images": {"agentview": picture(), "wrist": picture(1, 1, 1)}},
    {"images": {"agentview": picture()[::-1, ::-1]}},
    {"state": np.zeros(8, np.float32)},
    {"state": np.zeros(0, np.float32)},
    {"step": 519},
    {"unnorm_key": "libero_goal"},
    {"privileged": {"bodies": {"bowl": np.eye(4)}, "names": ["a", "b"], "n": 3, "x": 0.5, "ok": True, "none": None}},
    {"privileged": {"scalars": [np.float32(1), np.int64(2), np.bool_(True)], "empty": np.zeros((0, 3))}},
]

BAD = [
    ({"images": [picture()]}, "mapping of camera name"),
    ({"images": {"agentview": picture().astype(np.float32)}}, "float32 [16, 24, 3]; expected a uint8 array"),
    ({"images": {"agentview": picture()[..., 0]}}, "[16, 24]; expected [H, W, 3]"),
    ({"images": {"agentview": picture()[..., :1]}}, "[16, 24, 1]"),
    ({"images": {"agentview": np.zeros((0, 4, 3), np.uint8)}}, "[0, 4, 3]"),
    ({"images": {"agentview": np.zeros((5000, 1, 3), np.uint8)}}, "sides from 1 to 4096"),
    ({"images": {"agentview": picture().tolist()}}, "is a list"),
    ({"images": {"": picture()}}, "camera's name"),
    ({"images": {3: picture()}}, "camera's name"),
    ({"state": [0.0] * 8}, "state is a list"),
    ({"state": np.zeros(8)}, "float64"),
    ({"state": np.zeros((2, 4), np.float32)}, "[2, 4]"),
    ({"state": np.array([0, np.nan], np.float32)}, "state[1] is nan"),
    ({"state": np.array([np.inf, 0], np.float32)}, "state[0] is inf"),
    ({"instruction": ""}, "instruction is ''"),
    ({"instruction": None}, "instruction is None"),
    ({"instruction": "x" * 5000}, "5000 characters"),
    ({"session": 7}, "session is 7"),
    ({"step": -1}, "step is -1"),
    ({"step": 1.0}, "step is 1.0"),
    ({"step": True}, "step is True"),
    ({"step": 2**31}, "step is 2147483648"),
    ({"unnorm_key": ""}, "unnorm_key"),
    ({"privileged": [1]}, "privileged is a list"),
    ({"privileged": {1: 2}}, "has the key 1"),
    ({"privileged": {"x": {"y": object()}}}, "privileged['x']['y'] is a object"),
    ({"privileged": {"x": np.array([None])}}, "privileged['x'] has dtype object"),
    ({"privileged": {"x": np.zeros(1, "datetime64[s]")}}, "datetime64"),
    ({"privileged": {"x": np.zeros(1, [("a", "f4")])}}, "expected one of"),
    ({"privileged": {"x": b"bytes"}}, "is a bytes"),
    ({"privileged": {"x": {1, 2}}}, "is a set"),
    ({"privileged": {"x": [0] * 5000}}, "5000 items"),
    ({"privileged": {"x": np.zeros((1,) * 9)}}, "9 dimensions"),
]


@pytest.mark.parametrize("changes", GOOD)
def test_good_observations_are_taken(changes):
    observation = observe(**changes)
    for name, value in changes.items():
        assert getattr(observation, name) is value


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_observations_are_named(changes, text):
    with pytest.raises(InvalidObservation) as caught:
        observe(**changes)
    assert text in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_deep_trees_are_refused():
    tree = {}
    for _ in range(30):
        tree = {"x": tree}
    with pytest.raises(InvalidObservation, match="nested deeper"):
        observe(privileged=tree)


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        observe().step = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        chunk_of(0).actions = None


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ([[0.0] * 7], "list"),
        (np.zeros((1, 7)), "float64"),
        (np.zeros(7, np.float32), "[7]"),
        (np.zeros((1, 0), np.float32), "[1, 0]"),
        (np.zeros((0, 7), np.float32), "[0, 7]"),
        (np.full((2, 7), np.nan, np.float32), "actions[0, 0] is nan"),
        (np.array([[0, 0, 0, 0, 0, 0, np.inf]], np.float32), "actions[0, 6] is inf"),
    ],
)
def test_bad_actions_are_named(actions, text):
    with pytest.raises(ValueError) as caught:
        ActionChunk(actions)
    assert text in str(caught.value)


@pytest.mark.parametrize("timings", [{"infer": -1.0}, {"infer": float("nan")}, {3: 1.0}, {"infer": "1"}, [1.0]])
def test_bad_timings_are_refused(timings):
    with pytest.raises(ValueError, match="timings_ms"):
        ActionChunk(np.zeros((1, 7), np.float32), timings)


def test_info_survives_json():
    info = PolicyInfo(
        "openvla", [*PARTS], [*STATE], Checkpoint("a/b", "c0ffee", "12ab"), "int4", "cuda:0", ["agentview"],
        [224, 224], False, 8, ("libero_goal",), ("libero_goal",), 8, True, "openvla", "ff", {"attention": "sdpa"},
    )  # fmt: skip
    assert PolicyInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
    assert PolicyInfo.from_dict({**info.to_dict(), "from_a_newer_server": 1}) == info
    bare = PolicyInfo("random", PARTS)
    assert PolicyInfo.from_dict(json.loads(json.dumps(bare.to_dict()))) == bare


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""}, {"horizon": 0}, {"horizon": 1.0}, {"max_batch": 0}, {"cameras": "agentview"},
        {"needs_privileged": 1}, {"image_hw": (224,)}, {"image_hw": (0, 224)}, {"action": ()}, {"action": ("arm",)},
        {"state": None}, {"profile": ""},
        {"suites": ("",)}, {"stateful": None},
    ],
)  # fmt: skip
def test_bad_info_is_named(changes):
    with pytest.raises(ValueError) as caught:
        PolicyInfo(**{"name": "x", "action": PARTS, **changes})
    assert next(iter(changes)) in str(caught.value)


def test_info_knows_how_many_numbers_its_parts_have():
    info = PolicyInfo("x", (Part("wheels", 2, "rad", "left, right"),), STATE)
    assert (info.action_size, info.state_size, info.needs_state) == (2, 8, True)
    assert not PolicyInfo("x", PARTS).needs_state


def test_a_part_of_a_newer_server_is_read_without_what_is_unknown_here():
    told = PolicyInfo("x", PARTS).to_dict()
    newer = {**told, "action": [{**part, "from_a_newer_server": 1} for part in told["action"]]}
    assert PolicyInfo.from_dict(newer) == PolicyInfo("x", PARTS)


def test_a_close_name_is_suggested():
    assert did_you_mean("zzz", ["a"]) == ". Known: a"
    assert did_you_mean("LIBERO_GOAL", ["libero_goal"]) == "; did you mean 'libero_goal'? Known: libero_goal"


def test_a_policy_needs_no_more_than_info_and_act():
    class Least(Policy):
        def info(self):
            return PolicyInfo("least", PARTS)

        def act(self, observations):
            return []

    least = Least()
    assert least.example() is None and least.counters() == {}
    for call in (least.settle, least.close, lambda: least.reset("s")):
        assert call() is None
    with pytest.raises(TypeError, match="act"):
        type("Less", (Policy,), {"info": Least.info})()
