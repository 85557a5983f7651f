"""`POST /act` in the form of GR00T's HTTP clients, over HTTP, for every embodiment."""

import http.client
import json
import threading
from urllib.parse import urlsplit

import numpy as np
import pytest

from services.gr00t.__main__ import prepare
from services.gr00t.service.act_json import HEALTH, decoder
from services.gr00t.service.settings import Settings
from tests.gr00t.harness import NAMES, StatePolicy, body_of, followed, layout_of, observe, post
from tests.running import running
from vla_contract import PolicyClient
from vla_contract.protocol.act_json import loads

every = pytest.mark.parametrize("name", NAMES)
TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def services():
    """Returns URL and layout of a service with an embodiment, kept up for all tests of this file."""
    up, contexts = {}, []

    def get(name):
        if name not in up:
            sizes = layout_of(name)
            contexts.append(running(StatePolicy(sizes), decode_act=decoder(sizes)))
            up[name] = contexts[-1].__enter__().url, sizes
        return up[name]

    yield get
    for context in contexts:
        context.__exit__(None, None, None)


def arrays(value):
    """Returns an answer's arrays by name."""
    return loads(json.dumps(value))


def get(url, route):
    """Returns status and JSON value of a GET without a token."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", route)
    answer = connection.getresponse()
    value = json.loads(answer.read())
    connection.close()
    return answer.status, value


def expected(observation, sizes):
    return sizes.named_actions(followed(observation, sizes))


@every
def test_an_upstream_client_gets_named_arrays(services, name):
    url, sizes = services(name)
    observation = observe(sizes, seed=3)
    status, media_type, value = post(url, {"observation": body_of(observation, sizes)})
    assert (status, media_type) == (200, "application/json")
    answer, wanted = arrays(value), expected(observation, sizes)
    assert answer.keys() == wanted.keys()
    for key, part in wanted.items():
        assert answer[key].dtype == np.float32
        assert np.array_equal(answer[key], part), key


@every
def test_a_doubly_encoded_request_is_answered_plainly(services, name):
    url, sizes = services(name)
    body = {"observation": body_of(observe(sizes, seed=4), sizes)}
    assert post(url, {"encoded": json.dumps(body)}) == post(url, body)


def test_a_batch_of_one_is_answered_as_one(services):
    url, sizes = services("libero")
    observation = observe(sizes, seed=5)
    body = body_of(observation, sizes)
    batch = {key: {**v, "shape": [1, *v["shape"]]} if isinstance(v, dict) else v for key, v in body.items()}
    status, _, value = post(url, {"observation": batch, "config": {}})
    assert status == 200
    for key, part in expected(observation, sizes).items():
        assert np.array_equal(arrays(value)[key], part[None]), key


def spoilt(body, **changes):
    return {"observation": {key: value for key, value in {**body, **changes}.items() if value is not None}}


def array(values):
    from vla_contract.protocol.act_json import to_json

    return to_json(np.asarray(values))


BAD = {
    "OpenVLA's form": (lambda b: {"image": b["video.image"], "instruction": "x"}, "OpenVLA's form"),
    "no JSON": (lambda b: b"{", "not valid JSON"),
    "a list": (lambda b: [1], "the body has list"),
    "a misspelt field": (lambda b: {**spoilt(b), "confg": {}}, "did you mean 'config'"),
    "a setting": (lambda b: {**spoilt(b), "config": {"denoising_steps": 2}}, "not supported"),
    "a missing camera": (lambda b: spoilt(b, **{"video.wrist_image": None}), "no 'video.wrist_image'"),
    "another robot's camera": (lambda b: spoilt(b, **{"video.ego_view": b["video.image"]}), "video.ego_view"),
    "a missing state": (lambda b: spoilt(b, **{"state.yaw": None}), "no 'state.yaw'"),
    "a state too long": (lambda b: spoilt(b, **{"state.yaw": array([[0.0, 1.0]])}), r"expected numbers [1, 1]"),
    "a state without time": (lambda b: spoilt(b, **{"state.yaw": array([0.0])}), "one time step"),
    "a state that is not finite": (lambda b: spoilt(b, **{"state.yaw": array([[np.nan]])}), "finite"),
    "a picture of floats": (lambda b: spoilt(b, **{"video.image": array(np.zeros((1, 96, 96, 3)))}), "uint8"),
    "a picture too small": (lambda b: spoilt(b, **{"video.image": array(np.zeros((1, 8, 8, 3), np.uint8))}), "96x96"),
    "two time steps": (
        lambda b: spoilt(b, **{"video.image": array(np.zeros((2, 96, 96, 3), np.uint8))}),
        "one time step",
    ),
    "a batch of two": (lambda b: spoilt(b, **{"state.yaw": array(np.zeros((2, 1, 1)))}), "one observation per request"),
    "a batch in part": (lambda b: spoilt(b, **{"state.yaw": array(np.zeros((1, 1, 1)))}), "all arrays"),
    "two instructions": (
        lambda b: spoilt(b, **{"annotation.human.action.task_description": ["a", "b"]}),
        "expected a string",
    ),
    "an empty instruction": (lambda b: spoilt(b, **{"annotation.human.action.task_description": ""}), "instruction"),
    "a list for an array": (lambda b: spoilt(b, **{"state.yaw": [[0.0]]}), "json_numpy"),
    "a number for a picture": (lambda b: spoilt(b, **{"video.image": 3}), "expected an array"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_a_request_is_reported(services, case):
    url, sizes = services("libero")
    spoil, words = BAD[case]
    status, media_type, problem = post(url, spoil(body_of(observe(sizes), sizes)))
    assert (status, media_type) == (422, "application/problem+json")
    assert words in problem["detail"], problem["detail"]


def test_upstreams_probe_is_answered_without_the_token_once_there_is_a_model():
    sizes, may_load = layout_of("libero"), threading.Event()

    def load():
        may_load.wait(60)
        return StatePolicy(sizes)

    with running(load, wait=False, token=TOKEN, probes=HEALTH) as service:
        assert get(service.url, "/health")[0] == get(service.url, "/readyz")[0] == 503
        may_load.set()
        with PolicyClient(service.url, token=TOKEN) as client:
            client.wait_ready(30)
        assert get(service.url, "/health") == (200, {"status": "healthy", "model": "GR00T"})


def test_the_program_serves_upstreams_probe(tiny_checkpoints):
    _, options = prepare(Settings(checkpoint=str(tiny_checkpoints("libero").directory)))
    assert options["probes"] == HEALTH


def test_the_token_is_requested():
    sizes = layout_of("libero")
    body = {"observation": body_of(observe(sizes), sizes)}
    with running(StatePolicy(sizes), decode_act=decoder(sizes), token=TOKEN) as service:
        assert post(service.url, body)[0] == 401
        assert post(service.url, body, {"Authorization": "Bearer wrong"})[0] == 401
        assert post(service.url, body, {"Authorization": f"Bearer {TOKEN}"})[0] == 200
