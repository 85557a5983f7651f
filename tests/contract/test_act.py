"""`POST /act` as OpenVLA's own clients use it: requests with json_numpy, plain and doubly encoded."""

import base64
import json

import json_numpy
import numpy as np
import pytest
import requests
from fakes import PARTS, STATE, EchoPolicy, PerRequestPolicy, chunk_of, observe, picture
from PIL import Image
from test_app import assert_problem

from vla_contract import ActionChunk, Part, PolicyInfo
from vla_contract.protocol.act_json import decode_act, to_json

ACTION = np.array([0.1, -0.2, 0.3, 0.0, 1e-5, -1.0, 0.996], np.float32)


def policy(**info):
    answer = {"pick up the bowl": ActionChunk(np.stack([ACTION, -ACTION]))}
    return PerRequestPolicy(answer, **{"name": "fake", "horizon": 2, **info})


@pytest.fixture
def patched():
    """json_numpy in the way its users patch it: json.dumps and json.loads of the whole process."""
    before = json.dumps, json.loads
    json_numpy.patch()
    yield
    json.dumps, json.loads = before


def test_an_old_client_gets_an_action(either_service, patched):
    fake = policy()
    image = picture(3, 256, 256)
    answer = requests.post(
        either_service(fake).url + "/act", json={"image": image, "instruction": "pick up the bowl"}, timeout=10
    )
    action = answer.json()
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert isinstance(action, np.ndarray) and action.dtype == np.float64 and action.shape == (7,)
    assert np.array_equal(action, ACTION.astype(np.float64))
    assert np.array_equal(fake.batches[-1][0].images["agentview"], image)


def test_an_old_client_may_encode_twice(service, patched):
    fake = policy(unnorm_keys=("bridge_orig", "libero_goal"))
    image = picture(4, 256, 256)
    payload = {"image": image, "instruction": "pick up the bowl", "unnorm_key": "bridge_orig"}
    answer = requests.post(service(fake).url + "/act", json={"encoded": json_numpy.dumps(payload)}, timeout=10)
    action = json_numpy.loads(answer.json())
    assert answer.status_code == 200 and np.array_equal(action, ACTION.astype(np.float64))
    assert fake.batches[-1][0].unnorm_key == "bridge_orig"
    assert np.array_equal(fake.batches[-1][0].images["agentview"], image)


def test_the_bytes_are_those_json_numpy_writes(service):
    answer = requests.post(
        service(policy()).url + "/act",
        json={"image": to_json(picture()), "instruction": "pick up the bowl"},
        timeout=10,
    )
    raw = base64.b64encode(ACTION.astype("<f8").tobytes()).decode()
    assert answer.json() == {"__numpy__": raw, "dtype": "<f8", "shape": [7]}
    assert json_numpy.loads(answer.text).tolist() == ACTION.astype(np.float64).tolist()


def test_another_robots_action_has_its_own_size(service, client):
    url = service(EchoPolicy(action=(Part("wheels", 2, "rad/s", "left, right"),))).url
    answer = requests.post(url + "/act", json=GOOD, timeout=10)
    assert json_numpy.loads(answer.text).tolist() == [0.0, 0.0]
    assert client(url).act(observe(step=3)).actions.tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("dtype", ["|u1", "|b1", "<i8", "<f4", "<f8"])
def test_arrays_are_written_as_json_numpy_writes_them(dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    for view in (array, array.T, array[:, ::-1]):
        assert json.loads(json_numpy.dumps(view)) == to_json(view)


OTHER_IMAGES = {
    "grey": picture(6, 6, 8)[:, :, 0],
    "RGBA": np.dstack([picture(7, 6, 8), picture(8, 6, 8)[:, :, :1]]),
}


@pytest.mark.parametrize("image", OTHER_IMAGES.values(), ids=list(OTHER_IMAGES))
def test_images_that_are_not_rgb_are_converted_as_upstream_does(service, image):
    fake = policy()
    body = {"image": to_json(image), "instruction": "pick up the bowl"}
    answer = requests.post(service(fake).url + "/act", json=body, timeout=10)
    assert answer.status_code == 200, answer.text
    seen = fake.batches[-1][0].images["agentview"]
    assert np.array_equal(seen, np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("RGB")))
    assert len(np.unique(seen)) > 1


IMAGE = to_json(picture())
GOOD = {"image": IMAGE, "instruction": "x"}
BAD = {
    "no image": ({"instruction": "x"}, "no 'image'"),
    "OFT's fields": ({"full_image": IMAGE, "wrist_image": IMAGE, "instruction": "x"}, "it has 'full_image'"),
    "base64 JPEG": ({**GOOD, "image": "/9j/4AAQSkZJRg=="}, "json_numpy"),
    "data URL": ({**GOOD, "image": "data:image/png;base64,iVBORw0KGgo="}, "json_numpy"),
    "channels first": ({**GOOD, "image": to_json(np.zeros((3, 8, 8), np.uint8))}, "image is uint8 [3, 8, 8]"),
    "batch of two": ({**GOOD, "image": to_json(np.zeros((2, 8, 8, 3), np.uint8))}, "image is uint8 [2, 8, 8, 3]"),
    "list of 256": ({**GOOD, "image": [[[0, 1, 256]]]}, "image is a list"),
    "list of floats": ({**GOOD, "image": [[[0.5, 0.5, 0.5]]]}, "image is a list"),
    "ragged list": ({**GOOD, "image": [[[0, 1, 2]], [[0, 1]]]}, "image is a list"),
    "no instruction": ({"image": IMAGE}, "no 'instruction'"),
    "image is a list of texts": ({**GOOD, "image": [["x"]]}, "image is a list"),
    "image of floats": ({**GOOD, "image": to_json(np.zeros((2, 2, 3)))}, "float64"),
    "RGBA of floats": ({**GOOD, "image": to_json(np.zeros((2, 2, 4)))}, "float64"),
    "five channels": ({**GOOD, "image": to_json(np.zeros((2, 2, 5), np.uint8))}, "[2, 2, 5]"),
    "a row of pixels": ({**GOOD, "image": to_json(np.zeros(12, np.uint8))}, "[12]"),
    "grey without pixels": ({**GOOD, "image": to_json(np.zeros((0, 4), np.uint8))}, "[0, 4, 3]"),
    "grey of floats": ({**GOOD, "image": to_json(np.full((2, 2), 0.5))}, "expected uint8 [H, W, 3] with values from 0"),
    "grey and alpha": ({**GOOD, "image": to_json(np.zeros((2, 2, 2), np.uint8))}, "[2, 2, 2]"),
    "one channel": ({**GOOD, "image": to_json(np.zeros((2, 2, 1), np.uint8))}, "[2, 2, 1]"),
    "instruction is null": ({**GOOD, "instruction": None}, "instruction is None"),
    "wrong shape": ({**GOOD, "image": {**IMAGE, "shape": [1, 2, 3]}}, "came with 1152 bytes; expected 6"),
    "object dtype": ({**GOOD, "image": {**IMAGE, "dtype": "|O"}}, "dtype '|O'"),
    "structured dtype": ({**GOOD, "image": {**IMAGE, "dtype": [["a", "<f4"]]}}, "expected one of"),
    "no base64": ({**GOOD, "image": {**IMAGE, "__numpy__": "***"}}, "not base64"),
    "base64 with a line break": ({**GOOD, "image": {**IMAGE, "__numpy__": IMAGE["__numpy__"] + "\n"}}, "not base64"),
    "base64 with a hole": ({**GOOD, "image": {**IMAGE, "__numpy__": "!" + IMAGE["__numpy__"][1:]}}, "not base64"),
    "base64 ends twice": ({**GOOD, "image": {**IMAGE, "__numpy__": "AA==" + IMAGE["__numpy__"][4:]}}, "not base64"),
    "base64 is not ASCII": ({**GOOD, "image": {**IMAGE, "__numpy__": "ü" + IMAGE["__numpy__"][1:]}}, "not base64"),
    "data is a number": ({**GOOD, "image": {**IMAGE, "__numpy__": 3}}, "__numpy__"),
    "no dtype": ({**GOOD, "image": {"__numpy__": "", "shape": [0]}}, "expected __numpy__, dtype and shape"),
    "misspelt key": ({**GOOD, "unnorm_keys": "x"}, "did you mean 'unnorm_key'"),
    "unknown unnorm key": ({**GOOD, "unnorm_key": "bridge"}, "did you mean 'bridge_orig'"),
    "encoded and more": ({"encoded": "{}", "image": IMAGE}, "'encoded' alone"),
    "encoded is no text": ({"encoded": {}}, "'encoded' alone"),
    "encoded is no JSON": ({"encoded": "{"}, "not valid JSON"),
    "encoded holds nothing": ({"encoded": "{}"}, "no 'image'"),
    "a list": ([1], "is a list"),
}


@pytest.mark.parametrize("form", [lambda a: a.tolist(), lambda a: to_json(a[None])], ids=["list", "batch of one"])
def test_unambiguous_forms_of_an_image_are_accepted(service, form):
    image = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    fake = EchoPolicy()
    answer = requests.post(service(fake).url + "/act", json={**GOOD, "image": form(image)}, timeout=10)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(fake.batches[-1][0].images["agentview"], image)


@pytest.mark.parametrize(("body", "text"), BAD.values(), ids=list(BAD))
def test_bad_requests_are_not_answered_with_200(service, body, text):
    url = service(policy(unnorm_keys=("bridge_orig",))).url
    assert_problem(requests.post(url + "/act", json=body, timeout=10), 422, "invalid-observation", text)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b'{"image": NaN}', b"[" * 50_000, b"[" * 900, b'"' + b"x" * 100, b"1" * 9000]
)
def test_what_is_not_json_is_refused(service, body):
    headers = {"Content-Type": "application/json"}
    answer = requests.post(service(policy()).url + "/act", data=body, headers=headers, timeout=10)
    assert_problem(answer, 422, "invalid-observation")


def test_forms_are_refused(service):
    assert_problem(requests.post(service(policy()).url + "/act", data={"a": "b"}, timeout=10), 415, "wrong-type")


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ({"needs_privileged": True}, "needs privileged simulator state"),
        ({"stateful": True}, "keeps state per session"),
        ({"cameras": ("agentview", "wrist")}, "no image of camera 'wrist'"),
        ({"state": STATE}, "state is missing"),
    ],
)
def test_policies_that_need_more_report_it(service, info, text):
    answer = requests.post(service(policy(**info)).url + "/act", json=GOOD, timeout=10)
    assert_problem(answer, 422, "invalid-observation", text)


def test_unknown_fields_are_ignored_as_upstream_does(service):
    answer = requests.post(service(EchoPolicy()).url + "/act", json={**GOOD, "wrist_image": None}, timeout=10)
    assert answer.status_code == 200


def test_state_may_come_along():
    info = PolicyInfo("x", PARTS, STATE)
    body = json.dumps({**GOOD, "state": to_json(np.arange(8.0))}).encode()
    observation, _ = decode_act(body, info, "s")
    assert observation.state.dtype == np.float32 and observation.state.shape == (8,)


def test_another_dialect_can_take_the_route(service):
    def decode(body, info, session):
        observation, _ = decode_act(json.dumps(GOOD).encode(), info, session)
        return observation, lambda chunk: b'{"said": "' + body + b'"}'

    url = service(EchoPolicy(), decode_act=decode).url
    answer = requests.post(url + "/act", data=b"hi", headers={"Content-Type": "application/json"}, timeout=10)
    assert answer.json() == {"said": "hi"}


def test_bad_output_is_an_error_here_too(either_service):
    spoiled = chunk_of(0)
    spoiled.actions[0, 0] = np.inf
    url = either_service(PerRequestPolicy({"x": spoiled})).url
    assert_problem(requests.post(url + "/act", json=GOOD, timeout=10), 500, "invalid-action", "is inf")


@pytest.mark.parametrize("where", ["instruction", "unnorm_key"])
@pytest.mark.parametrize("encoded", [False, True])
def test_half_a_surrogate_pair_is_not_text(service, where, encoded):
    """`"\\ud800"` is valid JSON, and no UTF-8 can hold what it means."""
    payload = {"image": to_json(picture()), "instruction": "pick up the bowl", where: "pick \ud800 up"}
    body = json.dumps({"encoded": json.dumps(payload)} if encoded else payload)
    answer = requests.post(
        service(policy(unnorm_keys=("bridge_orig",))).url + "/act",
        data=body,
        headers={"Content-Type": "application/json"},
        timeout=10,
    )
    assert_problem(answer, 422, "invalid-observation", where, "surrogate")
