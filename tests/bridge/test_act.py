"""Servers of OpenVLA and OpenVLA-OFT (vla-scripts/deploy.py) as policies of the lab, over real HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from services.bridge.act import ActPolicy, check_address
from services.bridge.connection import IncompatibleServer
from services.libero.benchmark import BENCHMARK
from vla_contract import ActionChunk, Observation, PolicyClient, PolicyInfo, PolicyLost, PolicyRefused
from vla_contract.protocol.act_json import loads, to_json
from vla_contract.protocol.problems import Problem
from vla_evaluation.agreement import check_policy, choose_profile
from vla_evaluation.pictures.images import prepare
from vla_evaluation.pictures.transforms import centre_crop

ACTION = np.array([0.1, 0.2, 0.3, 0.0, 0.0, 0.5, 1.0])


class Server:
    """An HTTP server whose POST /act answers what `infer(request)` returns; GET /act is 405, as FastAPI has it."""

    def __init__(self, infer):
        self.requests, self.headers = [], []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def do_GET(self):
                self.reply(405 if self.path == "/act" else 404, b"{}")

            def do_POST(handler):
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                if handler.path != "/act":
                    return handler.reply(404, b"{}")
                self.requests.append(loads(body))
                self.headers.append(dict(handler.headers))
                status, answer = infer(self.requests[-1])
                handler.reply(status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def reply(self, status, body):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        self.address = f"act://127.0.0.1:{self.http.server_port}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)


@pytest.fixture
def server(stack):
    def start(infer):
        started = Server(infer)
        stack.callback(started.close)
        return started

    return start


def openvla(request):
    """OpenVLA's deploy.py: one action, in json_numpy's form; "error" without an image."""
    return 200, to_json(ACTION) if "image" in request else "error"


def oft(request):
    """OpenVLA-OFT's deploy.py: a list of eight actions; "error" without its own fields."""
    if not {"full_image", "wrist_image", "state", "instruction"} <= request.keys():
        return 200, "error"
    return 200, [to_json(ACTION.astype(np.float32) * scale) for scale in range(1, 9)]


def connect(server, **settings):
    return ActPolicy(server.address, None, 5.0, **settings)


def observation(policy, seed=1):
    draw = np.random.default_rng(seed)
    images = {camera: draw.integers(0, 256, (224, 224, 3), np.uint8) for camera in policy.form.images.values()}
    return Observation(images, draw.normal(size=8).astype(np.float32), "open the drawer", "run.0.0.1.x", 0)


def test_an_openvla_server_receives_image_instruction_and_statistics(server):
    there = server(openvla)
    policy = connect(there, unnorm_key="libero_goal")
    sent = observation(policy)
    (chunk,) = policy.act([sent])
    assert isinstance(chunk, ActionChunk) and np.allclose(chunk.actions, [ACTION])
    request = there.requests[-1]
    assert sorted(request) == ["image", "instruction", "unnorm_key"]
    assert np.array_equal(request["image"], sent.images["agentview"])
    assert (request["instruction"], request["unnorm_key"]) == ("open the drawer", "libero_goal")
    info = policy.info()
    assert (info.profile, info.horizon) == ("openvla", 1)
    assert (info.cameras, info.unnorm_keys) == (("agentview",), ("libero_goal",))


def test_an_oft_server_receives_both_cameras_and_the_state_and_answers_a_chunk(server):
    there = server(oft)
    policy = connect(there)
    sent = observation(policy)
    (chunk,) = policy.act([sent])
    assert chunk.actions.shape == (8, 7) and np.allclose(chunk.actions[7], 8 * ACTION)
    request = there.requests[-1]
    assert sorted(request) == ["full_image", "instruction", "state", "wrist_image"]
    assert np.array_equal(request["wrist_image"], sent.images["robot0_eye_in_hand"])
    assert request["state"].dtype == np.float64 and np.array_equal(request["state"], sent.state)
    assert (policy.info().profile, policy.info().horizon) == ("openvla-oft-server", 8)


@pytest.mark.parametrize("infer", [openvla, oft])
def test_the_evaluator_accepts_the_policy_under_its_own_protocol(server, infer):
    info = connect(server(infer)).info()
    check_policy(info, BENCHMARK, "libero_goal", BENCHMARK.profiles[choose_profile(info, BENCHMARK, None)])
    assert PolicyInfo.from_dict(info.to_dict()) == info


def test_the_crop_that_an_oft_server_does_itself_is_left_to_it():
    frame = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    client, local = BENCHMARK.profiles["openvla-oft-server"], BENCHMARK.profiles["openvla-oft"]
    assert np.array_equal(centre_crop(prepare(frame, client.protocol()), 0.9), prepare(frame, local.protocol()))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, "error"), "--unnorm-key"),
        ((500, "Internal Server Error"), "HTTP 500"),
        ((404, "{}"), "HTTP 404"),
        ((401, "{}"), "VLALAB_BRIDGE_KEY"),
        ((200, to_json(np.zeros(14))), r"shape \[14\]; expected actions \[7\]"),
        ((200, to_json(np.full(7, np.nan))), "nan"),
        ((200, b"[NaN, 0, 0, 0, 0, 0, 0]"), "NaN"),
        ((200, {"action": [0] * 7}), r"expected actions \[7\]"),
        ((200, b"<html>"), "JSON"),
    ],
)
def test_a_useless_answer_is_reported_at_the_start(server, answer, says):
    with pytest.raises(IncompatibleServer, match=says):
        connect(server(lambda request: answer))


def test_errors_during_a_run_are_the_policys_and_a_lost_server_is_not(server):
    answers = iter([(200, to_json(ACTION)), (200, "error"), (200, to_json(np.full(7, np.nan))), (200, to_json(ACTION))])
    there = server(lambda request: next(answers))
    policy = connect(there)
    outcomes = [policy.act([observation(policy, step)])[0] for step in range(3)]
    assert [outcome.kind if isinstance(outcome, Problem) else "actions" for outcome in outcomes] == [
        "policy-failed",
        "invalid-action",
        "actions",
    ]
    there.close()
    assert isinstance(policy.act([observation(policy)])[0], PolicyLost)


def test_a_key_is_sent_as_a_bearer_token(server):
    there = server(openvla)
    ActPolicy(there.address, "gateway-key", 5.0)
    assert there.headers[-1]["Authorization"] == "Bearer gateway-key"


@pytest.mark.parametrize("url", ["act://", "http://host:1", "act://host:99999", "host:1", "act://u@host:1"])
def test_an_invalid_address_is_refused(url):
    with pytest.raises(ValueError, match="expected for example"):
        check_address(url)


def test_a_client_of_the_contract_refuses_such_a_server_at_once_and_names_the_protocols(server):
    url = server(openvla).address.replace("act", "http", 1)
    with PolicyClient(url) as client, pytest.raises(PolicyRefused, match="HTTP 404.*act://.*ws://"):
        client.wait_ready(600)


def test_contract_client_rejects_a_server_without_http(tcp):
    url = tcp(b"SSH-2.0-OpenSSH_9.2\r\n").replace("ws", "http", 1)
    with PolicyClient(url) as client, pytest.raises(PolicyRefused, match="does not speak HTTP"):
        client.wait_ready(600)
