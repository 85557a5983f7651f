"""The routes over real HTTP: readiness, conventions, and every way to be refused."""

import json
import socket
import threading
import time

import httpx
import numpy as np
import pytest
from fakes import (
    STATE,
    BrokenLoader,
    EchoPolicy,
    GatedPolicy,
    PerRequestPolicy,
    PickyPolicy,
    chunk_of,
    observe,
    picture,
)

import vla_contract
from vla_contract import PolicyClient, PolicyLost, PolicyRefused, PolicyUnavailable, create_app
from vla_contract.protocol.codec import MEDIA_TYPE
from vla_contract.protocol.messages import decode_chunk, encode_observation
from vla_contract.protocol.problems import KINDS, TYPE_PREFIX

PACKED = {"Content-Type": MEDIA_TYPE}
TOKEN = "correct-horse-battery"


def post(url, body=None, headers=PACKED, **kwargs):
    body = encode_observation(observe()) if body is None else body
    return httpx.post(url + "/v1/act", content=body, headers=headers, **kwargs)


def assert_problem(answer, status, kind, *texts):
    members = answer.json()
    assert answer.status_code == status == members["status"]
    assert answer.headers["content-type"] == "application/problem+json"
    assert members["type"] == TYPE_PREFIX + kind
    assert members["title"] == KINDS[kind][1]
    assert "Traceback" not in answer.text
    for text in texts:
        assert text in members["detail"]
    return members


def test_an_action_comes_back(service, client):
    policy = EchoPolicy(horizon=3)
    chunk = client(service(policy).url).act(observe(step=5))
    assert np.array_equal(chunk.actions, np.full((3, 7), 5, np.float32))
    assert {"decode", "queue", "infer", "encode", "round_trip"} <= set(chunk.timings_ms)
    assert np.array_equal(policy.batches[-1][0].images["agentview"], picture())
    assert len(policy.threads) == 1 and threading.get_ident() not in policy.threads


def test_an_inline_policy_is_loaded_on_one_thread_and_asked_on_another(service, client):
    policy = EchoPolicy(horizon=3)
    c = client(service(policy, inline=True).url)
    loading = set(policy.threads)
    assert [c.act(observe("s", step)).actions[0, 0] for step in range(3)] == [0, 1, 2]
    c.reset("s")
    assert len(loading) == 1 and len(policy.threads - loading) == 1
    assert [len(batch) for batch in policy.batches] == [1] * 4 and policy.resets == ["warm-up", "s"]


def test_info_is_what_the_policy_says(service, client):
    policy = EchoPolicy(state=STATE, suites=("libero_goal",), details={"attention": "none"})
    assert client(service(policy).url).info() == policy.info()


def test_request_ids_are_kept_or_made(service):
    url = service(EchoPolicy()).url
    assert post(url, headers={**PACKED, "X-Request-Id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    for bad in ("a b", "x" * 65, "<script>"):
        made = post(url, headers={**PACKED, "X-Request-Id": bad}).headers["x-request-id"]
        assert made != bad and len(made) == 32


def test_it_is_alive_while_it_loads_and_ready_only_after_a_warm_inference(service):
    release, warming = threading.Event(), threading.Event()

    class Warm(EchoPolicy):
        def act(self, observations):
            warming.set()
            assert release.wait(20)
            return super().act(observations)

    policy = Warm(cameras=("agentview", "wrist"), state=STATE, unnorm_keys=("a", "b"))
    running = service(lambda: policy, wait=False)
    assert warming.wait(20)
    assert httpx.get(running.url + "/livez").status_code == 200
    for route in ("/readyz", "/v1/info"):
        answer = httpx.get(running.url + route)
        assert_problem(answer, 503, "loading", "a first inference is running", "wait for /readyz")
        assert int(answer.headers["Retry-After"]) >= 1
    assert_problem(post(running.url), 503, "loading")
    release.set()
    with PolicyClient(running.url) as client:
        client.wait_ready(20)
    assert httpx.get(running.url + "/readyz").json() == {"status": "ready", "policy": "echo"}
    assert httpx.get(running.url + "/v1/info").json()["version"] == vla_contract.__version__
    warm = policy.batches[0][0]
    assert set(warm.images) == {"agentview", "wrist"} and warm.state.shape == (8,) and warm.unnorm_key == "a"
    assert policy.resets == [warm.session]


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a"], ids=["lists", "maps"])
def test_values_of_any_depth_are_refused(nest, service):
    url = service(EchoPolicy(cameras=())).url
    usual = {"images": b"\x80", "instruction": b"\xa1x", "session": b"\xa1s", "step": b"\x00", "unnorm_key": b"\xc0"}
    for depth in (12, 500, 900, 980, 990, 1000, 1010, 1020):
        deep = nest * depth + b"\xc0"
        for field in usual:
            body = b"".join(
                bytes([0xA0 + len(name)]) + name.encode() + (deep if name == field else value)
                for name, value in usual.items()
            )
            assert_problem(post(url, b"\x85" + body), 422, "invalid-observation")


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (BrokenLoader(), "RuntimeError: weights.safetensors is 3 bytes long; expected 15 GB"),
        (lambda: PickyPolicy(stateful="yes"), "stateful"),
        (lambda: object(), "the loader returned a object; expected a vla_contract.Policy"),
        (lambda: PerRequestPolicy({"warm up": [1, 2]}), "returned a list; expected an ActionChunk"),
        (lambda: PerRequestPolicy({"warm up": ZeroDivisionError("boom")}), "ZeroDivisionError: boom"),
    ],
)
def test_a_failed_start_is_reported(either_service, client, loader, text):
    failed = threading.Event()
    url = either_service(loader, wait=False, on_failure=failed.set).url
    assert failed.wait(20)
    assert_problem(httpx.get(url + "/readyz"), 503, "load-failed", text)
    assert httpx.get(url + "/livez").status_code == 200
    with pytest.raises(PolicyUnavailable, match="could not be loaded") as waited:
        client(url).wait_ready(20)
    assert "not ready after" not in str(waited.value)
    with pytest.raises(PolicyUnavailable, match="could not be loaded") as asked:
        client(url).act(observe())
    assert "tries" not in str(asked.value), "waiting would not help"


def test_an_example_warms_a_policy_that_needs_privileged_state(service):
    class Exemplary(EchoPolicy):
        def example(self):
            return observe(session="mine", privileged={"bowl": np.zeros(3)})

    warmed, unwarmed = Exemplary(needs_privileged=True), EchoPolicy(needs_privileged=True)
    service(warmed), service(unwarmed)
    assert [batch[0].session for batch in warmed.batches] == ["mine"] and warmed.resets == ["mine"]
    assert unwarmed.batches == []


def test_the_policy_is_closed_at_the_end():
    from tests.running import running

    closed = threading.Event()
    policy = EchoPolicy()
    policy.close = closed.set
    with running(policy):
        assert not closed.is_set()
    assert closed.is_set()


def test_a_policy_settles_once_its_answer_is_out(either_service, client):
    """It has as long as it likes: the answer does not wait for it. A fault there is logged and harms nobody."""
    answered, settled = threading.Event(), threading.Event()

    class Settling(EchoPolicy):
        def settle(self):
            if self.batches[-1][0].session != "warm-up":
                settled.in_time = answered.wait(10)
                settled.set()
                raise ZeroDivisionError("settling failed")

    c = client(either_service(Settling()).url)
    c.act(observe(step=1))
    answered.set()
    assert settled.wait(10) and settled.in_time
    assert c.act(observe(step=2)).actions[0, 0] == 2


NEEDS = {
    "camera": ({"cameras": ("wrist",)}, {}, "no image of camera 'wrist' (sent: agentview)"),
    "size": ({"image_hw": (16, 16)}, {}, "images['agentview'] is 16x24; policy 'echo' takes 16x16"),
    "state": ({"state": STATE}, {}, "needs 8 as float32: position [3], rotation [3], fingers [2]"),
    "state's size": ({"state": STATE}, {"state": np.zeros(7, np.float32)}, "state is 7 numbers"),
    "privileged": ({"needs_privileged": True}, {}, "privileged is missing"),
    "no key": ({"unnorm_keys": ("a", "b")}, {}, "choose one of a, b"),
    "wrong key": ({"unnorm_keys": ("libero_goal",)}, {"unnorm_key": "libero_gaol"}, "did you mean 'libero_goal'"),
    "unwanted key": ({}, {"unnorm_key": "x"}, "unknown unnorm_key 'x'"),
}


@pytest.mark.parametrize(("info", "changes", "text"), NEEDS.values(), ids=list(NEEDS))
def test_what_the_policy_needs_is_requested(service, client, info, changes, text):
    url = service(EchoPolicy(**info)).url
    members = assert_problem(post(url, encode_observation(observe(**changes))), 422, "invalid-observation", text)
    if "unnorm_keys" in info:
        assert members["unnorm_keys"] == list(info["unnorm_keys"])
    with pytest.raises(PolicyRefused) as caught:
        client(url).act(observe(**changes))
    assert text in str(caught.value) and caught.value.status == 422


def test_malformed_bodies_are_refused_and_harm_nobody(either_service, client):
    from test_codec import MALFORMED

    url = either_service(EchoPolicy()).url
    for body in MALFORMED.values():
        assert_problem(post(url, body), 422, "invalid-observation")
    assert client(url).act(observe(step=3)).actions[0, 0] == 3


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/json"}, {"Content-Type": "msgpack"}])
def test_wrong_types_are_refused(service, headers):
    url = service(EchoPolicy()).url
    assert_problem(post(url, headers=headers), 415, "wrong-type", "expected application/msgpack")
    assert post(url, headers={"Content-Type": "Application/MsgPack; charset=binary"}).status_code == 200


def test_unknown_routes_and_methods_are_problems(service):
    url = service(EchoPolicy()).url
    assert_problem(httpx.get(url + "/v2/act"), 404, "not-found", "'/v2/act'", "/v1/act")
    answer = httpx.get(url + "/v1/act")
    assert_problem(answer, 405, "method-not-allowed", "POST")
    assert answer.headers["allow"] == "POST"


def chunked(size, piece=65536):
    for _ in range(size // piece):
        yield b"\0" * piece


@pytest.mark.parametrize("body", [b"\0" * 300_000, lambda: chunked(300_000), lambda: chunked(100_000_000)])
def test_too_large_bodies_are_cut_off(service, client, body):
    url = service(EchoPolicy(), max_body_bytes=200_000).url
    body = body() if callable(body) else body
    try:
        answer = post(url, body)
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
        assert not isinstance(body, bytes)  # an endless sender is cut off before it reads the answer
    else:
        members = assert_problem(answer, 413, "too-large", "expected at most 200000")
        assert members["max_body_bytes"] == 200_000
    with pytest.raises(PolicyRefused, match="413"):
        client(url).act(observe(images={"agentview": picture(0, 400, 400)}))
    assert client(url).act(observe()).actions.shape == (1, 7)


def test_a_claimed_length_is_refused_before_the_body(service):
    answer = exchange(service(EchoPolicy()).url, HEAD + b"Content-Length: 99999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413") and b"connection: close" in answer.lower()


def exchange(url, head, *pieces, pause_s=0.0):
    """Returns what a server answers to raw bytes sent in pieces."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as raw:
        for piece in (head, *pieces):
            raw.sendall(piece)
            time.sleep(pause_s)
        answer = b""
        while data := raw.recv(65536):
            answer += data
        return answer


HEAD = b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/msgpack\r\n"


def test_a_body_that_comes_too_slowly_is_given_up(service):
    running = service(EchoPolicy(), request_timeout_s=0.3)
    answer = exchange(running.url, HEAD + b"Content-Length: 9000\r\n\r\n", b"abc")
    assert answer.startswith(b"HTTP/1.1 408") and b"slow-request" in answer and b"connection: close" in answer.lower()
    assert post(running.url).status_code == 200


def test_a_body_in_many_pieces_is_one(service):
    body = encode_observation(observe(step=5))
    pieces = [body[i : i + 300] for i in range(0, len(body), 300)]
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = exchange(service(EchoPolicy()).url, head, *pieces, pause_s=0.01)
    assert answer.startswith(b"HTTP/1.1 200")
    assert decode_chunk(answer.partition(b"\r\n\r\n")[2]).actions[0, 0] == 5


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [({"token": TOKEN}, {}, 401), ({}, {"Content-Type": "text/plain"}, 415), ({"max_body_bytes": 10**6}, {}, 413)],
)
def test_a_refused_body_is_read_so_that_the_answer_is_seen(service, settings, headers, status):
    with httpx.Client() as client:
        url = service(EchoPolicy(), **settings).url
        for _ in range(5):
            answer = client.post(url + "/v1/act", content=b"x" * 3_000_000, headers={**PACKED, **headers})
            assert answer.status_code == status and "connection" not in answer.headers


def test_a_connection_cut_in_mid_body_harms_nobody(service, client):
    url = service(EchoPolicy()).url
    host, port = url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port)), 10) as raw:
            raw.sendall(HEAD + b"Content-Length: 90000\r\n\r\nxx")
    assert client(url).act(observe()).actions.shape == (1, 7)


def test_a_token_guards_all_but_the_probes(service, client):
    url = service(EchoPolicy(), token=TOKEN).url
    for route in ("/livez", "/readyz"):
        assert httpx.get(url + route).status_code == 200
    wrong = (TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer{TOKEN}", f"Basic {TOKEN}", "Basic abc")
    for sent in (None, "", *wrong):
        headers = {} if sent is None else {"Authorization": sent}
        for answer in (
            httpx.get(url + "/v1/info", headers=headers),
            httpx.get(url + "/metrics", headers=headers),
            httpx.post(url + "/act", json={}, headers=headers),
            httpx.post(url + "/v1/reset", content=b"", headers=headers),
            post(url, headers={**PACKED, **headers}),
        ):
            assert_problem(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text
    for wrong in (None, TOKEN + "x"):
        with pytest.raises(PolicyRefused, match="401"):
            client(url, token=wrong).act(observe())
    assert httpx.get(url + "/v1/info", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    with client(url, token=TOKEN) as right:
        assert right.info().name == "echo" and right.act(observe()).actions.shape == (1, 7)


@pytest.mark.parametrize("token", ["", "short", "two words here", "ünicode-token", "new\nline-token"])
def test_unusable_tokens_are_refused_at_start(token):
    with pytest.raises(ValueError, match="token") as caught:
        create_app(EchoPolicy(), token=token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "setting", [{"max_batch": 0}, {"max_wait_ms": -1}, {"queue_size": 0}, {"max_body_bytes": 10}, {"max_wait_ms": 1e9}]
)
def test_bad_settings_are_refused_at_start(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        create_app(EchoPolicy(), **setting)


def bad_outputs():
    spoiled = chunk_of(0)
    spoiled.actions[0, 3] = np.nan  # after it was checked
    return {
        "NaN": (spoiled, "invalid-action", "actions[0, 3] is nan"),
        "six numbers": (chunk_of(0, size=6), "invalid-action", "[1, 6]; expected [T, 7]"),
        "longer than the horizon": (chunk_of(0, 5), "invalid-action", "horizon 1"),
        "an array": (np.zeros((1, 7), np.float32), "invalid-action", "ndarray"),
        "an exception": (RuntimeError("/secret"), "policy-failed", "RuntimeError"),
    }


@pytest.mark.parametrize(("result", "kind", "text"), bad_outputs().values(), ids=list(bad_outputs()))
def test_bad_output_is_never_sent(either_service, client, result, kind, text):
    class Returns(EchoPolicy):
        def answer(self, observation):
            return result if observation.instruction == "bad" else super().answer(observation)

    url = either_service(Returns()).url
    answer = post(url, encode_observation(observe(instruction="bad")))
    assert_problem(answer, 500, kind, text)
    assert "secret" not in answer.text
    with pytest.raises(PolicyUnavailable, match="500"):
        client(url).act(observe(instruction="bad"))
    assert client(url).act(observe(step=2)).actions[0, 0] == 2


@pytest.mark.parametrize("results", [[], [chunk_of(0)] * 2, None, iter([chunk_of(0)])])
def test_a_wrong_number_of_results_is_never_sent(either_service, results):
    class Miscounts(EchoPolicy):
        def act(self, observations):
            return super().act(observations) if observations[0].session == "warm-up" else results

    assert_problem(post(either_service(Miscounts()).url), 500, "invalid-action", "for 1 observations")


def test_failures_are_logged_with_their_traceback(either_service, caplog):
    url = either_service(PickyPolicy()).url
    assert_problem(post(url, encode_observation(observe(instruction="bad"))), 500, "policy-failed")
    assert any("secret path" in str(record.exc_info) for record in caplog.records)


def test_metrics_count_what_happened(either_service, client):
    url = either_service(EchoPolicy()).url
    for step in range(3):
        client(url).act(observe(step=step))
    post(url, b"nonsense")
    page = httpx.get(url + "/metrics").text
    assert 'vla_requests_total{route="/v1/act",status="200"} 3.0' in page
    assert 'vla_requests_total{route="/v1/act",status="422"} 1.0' in page
    for stage in ("decode", "queue", "infer", "encode"):
        assert f'vla_latency_seconds_count{{stage="{stage}"}} 3.0' in page
    assert "vla_batch_size_count 3.0" in page and "vla_ready 1.0" in page and "vla_queue_length 0.0" in page


def test_each_service_has_metrics_of_its_own(service):
    first, second = service(EchoPolicy()), service(EchoPolicy())
    post(first.url)
    assert "/v1/act" not in httpx.get(second.url + "/metrics").text


def test_images_and_chunks_of_any_size_travel(service, client):
    policy = EchoPolicy(horizon=50)
    c = client(service(policy).url)
    for height, width in ((1, 1), (224, 224), (256, 256), (720, 1280)):
        sent = observe(images={"agentview": picture(1, height, width)})
        assert c.act(sent).actions.shape == (50, 7)
        assert np.array_equal(policy.batches[-1][0].images["agentview"], sent.images["agentview"])


def test_stopping_fails_what_waits_and_finishes_what_runs(client):
    from tests.running import running

    policy, outcome = GatedPolicy(), []
    with running(policy) as it:
        c = client(it.url, retries=0)
        thread = threading.Thread(target=lambda: outcome.append(c.act(observe(step=4))))
        thread.start()
        assert policy.entered.wait(10)
        threading.Timer(0.3, policy.gate.set).start()
    thread.join(10)
    assert outcome[0].actions[0, 0] == 4


def test_an_inference_that_does_not_end_is_reported(service):
    policy = GatedPolicy()
    running = service(policy)
    running.app.state.engine.stuck_s = 0.2
    thread = threading.Thread(target=lambda: post(running.url, timeout=30))
    thread.start()
    assert policy.entered.wait(10)
    time.sleep(0.4)
    assert_problem(httpx.get(running.url + "/readyz"), 503, "stuck", "restart")
    assert httpx.get(running.url + "/livez").status_code == 200
    policy.gate.set()
    thread.join(10)
    assert httpx.get(running.url + "/readyz").status_code == 200


def test_problem_bodies_are_json(service):
    answer = post(service(EchoPolicy()).url, b"\xc1", headers={**PACKED, "X-Request-Id": "r1"})
    assert json.loads(answer.content)["request_id"] == "r1" == answer.headers["x-request-id"]


class LeavingPolicy(EchoPolicy):
    """Asks a server that goes away when it is told to."""

    gone = False

    def answer(self, observation):
        self.gone = self.gone or observation.instruction == "leave"
        if self.gone:
            raise PolicyLost("nobody answers at ws://h:1")
        return super().answer(observation)


def test_a_policy_whose_server_has_gone_reports_it_and_ends_its_service(service, client):
    ended = threading.Event()
    url = service(LeavingPolicy(), on_failure=ended.set).url
    caller = client(url, retries=0)
    with pytest.raises(PolicyUnavailable, match="nobody answers at ws://h:1") as raised:
        caller.act(observe(instruction="leave"))
    assert raised.value.status == 503 and raised.value.problem["type"].endswith("policy-lost")
    assert ended.wait(10)
    with pytest.raises(PolicyUnavailable, match="nobody answers at ws://h:1"):
        caller.wait_ready(0.0)


def test_what_a_policy_lacks_at_its_start_is_reported_without_a_traceback(service, client, caplog):
    ended = threading.Event()

    def load():
        raise PolicyLost("nobody answers at ws://h:1 (waited 3 s)")

    url = service(load, wait=False, on_failure=ended.set).url
    assert ended.wait(10)
    with pytest.raises(PolicyUnavailable, match=r"could not be loaded: nobody answers at ws://h:1 \(waited 3 s\)$"):
        client(url).wait_ready(0.0)
    assert [record.exc_info for record in caplog.records if "could not be loaded" in record.message] == [None]
