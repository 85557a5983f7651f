"""A foreign policy server behind the contract, over real sockets: what it is sent, and what it does wrong in words."""

import pickle
import shutil
import ssl
import subprocess
import threading

import msgpack
import numpy as np
import pytest
from websockets.sync.server import serve

from services.bridge.connection import IncompatibleServer, OpenpiServer, check_address
from services.bridge.policy import BridgePolicy, wait_for
from services.bridge.robots import LIBERO
from services.bridge.wire import pack, unpack
from services.libero.benchmark import BENCHMARK
from tests.running import running
from vla_contract import ActionChunk, Observation, Policy, PolicyClient, PolicyInfo, PolicyLost, PolicyUnavailable
from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE
from vla_evaluation.agreement import check_policy, choose_profile

ZEROS = {"actions": np.zeros((10, 7)), "state": np.zeros(8), "server_timing": {"infer_ms": 1.0}}


def answering(answers, metadata=None, asked=None):
    """Returns a handler of openpi's protocol: `answers` one after the other, the last one for ever."""
    left = [pack(answer) if isinstance(answer, dict) else answer for answer in answers]

    def handle(connection):
        connection.send(pack(metadata or {}))
        for frame in connection:
            if asked is not None:
                asked.append(unpack(frame))
            answer = left.pop(0) if len(left) > 1 else left[0]
            connection.send(answer)
            if isinstance(answer, str):
                return  # as openpi's does

    return handle


def bridge(url: str, **settings) -> BridgePolicy:
    server = OpenpiServer(url, **{"hello_s": 5.0, "answer_s": 5.0, **settings})
    return BridgePolicy(server, server.connect(), LIBERO)


def observation(step: int = 0, **changed) -> Observation:
    draw = np.random.default_rng(step)
    images = {name: draw.integers(0, 256, (224, 224, 3), np.uint8) for name in LIBERO.images.values()}
    given = {"images": images, "state": draw.normal(size=8).astype(np.float32), "instruction": "put the bowl away"}
    return Observation(**{**given, "session": "run.0.0.1.x", "step": step, **changed})


def test_the_server_is_sent_what_openpis_client_sends(foreign):
    asked, sent = [], observation(3)
    policy = bridge(foreign(answering([ZEROS], {"reset_pose": [0.0]}, asked)))
    (chunk,) = policy.act([sent])
    assert chunk.actions.shape == (10, 7) and chunk.actions.dtype == np.float32
    got = asked[-1]
    assert sorted(got) == ["observation/image", "observation/state", "observation/wrist_image", "prompt"]
    assert np.array_equal(got["observation/image"], sent.images["agentview"])
    assert np.array_equal(got["observation/wrist_image"], sent.images["robot0_eye_in_hand"])
    assert got["observation/state"].dtype == np.float64 and np.array_equal(got["observation/state"], sent.state)
    assert got["prompt"] == "put the bowl away"
    policy.close()


def test_the_policy_says_what_the_evaluator_compares(foreign):
    info = bridge(foreign(answering([{"actions": np.zeros((50, 7), np.float32)}], {"a": 1}))).info()
    assert (info.horizon, info.profile, info.image_hw) == (50, "openpi", (224, 224))
    assert (info.details["protocol"], info.details["metadata"]) == ("openpi", '{"a": 1}')
    for part in ("0.05 m", "axis-angle", "gripper [1] (unit 1, -1 open, 1 closed)", "profile openpi"):
        assert part in info.details["assumed"]
    profile = BENCHMARK.profiles[choose_profile(info, BENCHMARK, None)]
    check_policy(info, BENCHMARK, "libero_10", profile)
    assert profile.execute == 5
    assert PolicyInfo.from_dict(info.to_dict()) == info


SHAPES = "serve a model of this robot"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"actions": np.zeros((10, 32))}, rf"float64 \[10, 32\]; expected floats \[T, 7\]: .*{SHAPES}"),
        ({"actions": np.zeros(7)}, rf"float64 \[7\].*{SHAPES}"),
        ({"actions": np.zeros((10, 7), np.int64)}, rf"int64 \[10, 7\].*{SHAPES}"),
        ({"actions": [[0.0] * 7]}, rf"a list.*{SHAPES}"),
        ({"actions": np.zeros((0, 7))}, "0 actions; expected 1 to"),
        ({"actions": np.full((2, 7), np.nan)}, "nan"),
        ({"actions": np.full((2, 7), 1e300)}, "inf"),
        ({"action": np.zeros((2, 7))}, "no 'actions'; did you mean 'action'"),
        ({}, "no 'actions'"),
        (pickle.dumps(ZEROS), "a pickle"),
        (b"\xc1", "msgpack message"),
        ("Traceback (most recent call last):\n  …\nKeyError: 'observation/image'", "failed: KeyError: 'observation/im"),
    ],
)
def test_invalid_first_answer_raises_at_the_start(foreign, answer, says):
    url = foreign(answering([answer]))
    with pytest.raises(IncompatibleServer, match=says) as raised:
        bridge(url)
    assert url in str(raised.value) and "\n" not in str(raised.value)


def test_server_without_metadata_raises_after_the_timeout(foreign):
    url = foreign(lambda connection: connection.recv())
    with pytest.raises(IncompatibleServer, match=r"sent no metadata, .* within 0\.3 s: .*another protocol"):
        bridge(url, hello_s=0.3)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("hello", "sends its metadata first: .*text frame"),
        (pickle.dumps({}), "a pickle"),
        (msgpack.packb([1, 2]), "the message is a list"),
    ],
)
def test_server_of_another_protocol_raises_with_its_answer(foreign, first, says):
    url = foreign(lambda connection: connection.send(first))
    with pytest.raises(IncompatibleServer, match=says):
        bridge(url)


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", IncompatibleServer, "HTTP 200.*websocket"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", IncompatibleServer, "HTTP 404.*websocket"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", IncompatibleServer, "set VLALAB_BRIDGE_KEY"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", PolicyLost, "HTTP 503"),
        (b"220 mail.example ESMTP\r\n", IncompatibleServer, "websocket"),
        (b"", PolicyLost, "closed the connection"),
    ],
)
def test_server_without_websocket_raises_with_its_answer(tcp, words, kind, says):
    with pytest.raises(kind, match=says) as raised:
        bridge(tcp(words))
    assert "\n" not in str(raised.value)


class Still(Policy):
    """Does nothing."""

    def info(self):
        return PolicyInfo("still", (*OSC_POSE, GRIPPER_CLOSES))

    def act(self, observations):
        return [ActionChunk(np.zeros((1, 7), np.float32)) for _ in observations]


def test_address_of_a_lab_service_suggests_its_http_address():
    with running(Still, wait=False) as service, pytest.raises(IncompatibleServer, match=r"own contract.*http://127\.0"):
        bridge(service.url.replace("http", "ws"))


NO_ADDRESS = ["", "host:1", "http://h:1", "ws://", "ws://h:0", "ws://h:99999", "ws://u:p@h:1", "ws://h /"]


@pytest.mark.parametrize("url", NO_ADDRESS)
def test_what_is_not_an_address_is_reported(url):
    with pytest.raises(ValueError, match="expected for example ws://host:8000"):
        check_address(url)


def test_wait_for_a_server_that_is_not_running_yet(foreign):
    gone = "ws://127.0.0.1:9"
    said: list[str] = []
    with pytest.raises(PolicyLost, match=r"127\.0\.0\.1:9: Connection refused \(waited 1\.5 s\)"):
        wait_for(lambda: bridge(gone), 1.5, said.append)
    assert said == ["waiting up to 1.5 s: no answer from ws://127.0.0.1:9: Connection refused"]
    assert wait_for(lambda: bridge(foreign(answering([ZEROS]))), 0.0).horizon == 10


def test_observation_is_resent_after_a_reconnect(foreign):
    """openpi's servers keep nothing between observations, so nothing is lost with a connection."""
    asked: list[dict] = []

    def one_each(connection):
        connection.send(pack({}))
        asked.append(unpack(connection.recv()))
        connection.send(pack(ZEROS))

    with running(lambda: bridge(foreign(one_each))) as service, PolicyClient(service.url) as client:
        for step in (0, 5, 10):
            assert client.act(observation(step)).actions.shape == (10, 7)
        metrics = client._transport.request("GET", "/metrics", 5.0, {}).body.decode()
    assert len(asked) == 5  # one to learn from, the warm-up, and three
    assert 'event="reconnected"} 4' in metrics


def test_what_goes_wrong_later_fails_its_request_and_reports_it(foreign):
    nan, broken = {"actions": np.full((10, 7), np.nan)}, "Traceback:\n  …\nRuntimeError: out of memory"
    answers = [ZEROS, ZEROS, nan, broken, {"actions": np.zeros((11, 7))}, b"\xc1", ZEROS]
    with (
        running(lambda: bridge(foreign(answering(answers)))) as service,
        PolicyClient(service.url, retries=0) as client,
    ):
        for says in ("nan", "failed: RuntimeError: out of memory", "horizon 10", "msgpack message"):
            with pytest.raises(PolicyUnavailable, match=says) as raised:
                client.act(observation())
            assert raised.value.status == 500
        assert client.act(observation()).actions.shape == (10, 7)


def test_a_server_that_stays_away_ends_the_service():
    """It is started anew by whoever looks after it, and waits for the server then."""
    ended = threading.Event()

    def twice(connection):
        connection.send(pack({}))
        for _ in range(2):
            connection.recv()
            connection.send(pack(ZEROS))
        server.shutdown()

    with serve(twice, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with (
            running(lambda: bridge(url), on_failure=ended.set) as service,
            PolicyClient(service.url, retries=0) as client,
        ):
            thread.join(10)
            with pytest.raises(PolicyUnavailable, match="answer.* ws") as raised:
                client.act(observation())
            assert raised.value.status == 503
            assert ended.wait(10)
            with pytest.raises(PolicyUnavailable, match="does not answer any more"):
                client.wait_ready(0.0)


def test_another_server_at_the_same_address_is_not_an_answer(foreign):
    names = iter([{"name": "a"}, {"name": "b"}])

    def changing(connection):
        connection.send(pack(next(names, {"name": "b"})))
        connection.recv()
        connection.send(pack(ZEROS))

    policy = bridge(foreign(changing))
    (error,) = policy.act([observation()])
    assert isinstance(error, PolicyLost) and "metadata" in str(error)


def test_slow_answer_is_not_requested_twice(foreign):
    asked: list[dict] = []

    def slow(connection):
        connection.send(pack({}))
        for frame in connection:
            asked.append(unpack(frame))
            if len(asked) == 1:
                connection.send(pack(ZEROS))

    policy = bridge(foreign(slow), answer_s=0.3)
    (error,) = policy.act([observation()])
    assert isinstance(error, PolicyLost) and "gave no answer within 0.3 s" in str(error)
    assert len(asked) == 2


def test_the_key_travels_as_openpis_client_sends_it(foreign):
    seen: list[str] = []

    def look(connection):
        seen.append(connection.request.headers.get("Authorization", ""))
        answering([ZEROS])(connection)

    bridge(foreign(look), key="secret")
    assert seen == ["Api-Key secret"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not here")
def test_tls_is_spoken_with_who_is_trusted(stack, tmp_path, monkeypatch):
    words = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=localhost -addext"
    command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = stack.enter_context(serve(answering([ZEROS]), "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    stack.callback(thread.join, 10)
    stack.callback(server.shutdown)
    url = f"wss://127.0.0.1:{server.socket.getsockname()[1]}"
    with pytest.raises(IncompatibleServer, match="TLS"):
        bridge(url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    policy = bridge(url)
    assert policy.horizon == 10
    policy.close()
