"""vla-eval's protocol both ways, over real sockets: what is sent, and what is wrong in words."""

import io
import itertools
import math
import pickle

import msgpack
import numpy as np
import pytest
from PIL import Image
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from services.bridge import wire
from services.bridge.connection import IncompatibleServer
from services.bridge.vla_eval import messages
from services.bridge.vla_eval.connection import ModelServer, answers_health
from services.bridge.vla_eval.messages import Message, pack, unpack
from services.bridge.vla_eval.policy import VlaEvalPolicy
from services.bridge.vla_eval.robots import LIBERO
from services.bridge.wire import ProtocolError
from services.libero.benchmark import BENCHMARK
from tests.bridge.test_server import Wave, door
from tests.libero.harness import wait_for
from tests.running import running
from vla_contract import Observation, PolicyClient, PolicyInfo, PolicyLost, PolicyUnavailable
from vla_contract.protocol.errors import UnknownSession
from vla_contract.protocol.parts import GRIPPER_OPENS, HAND_STATE
from vla_evaluation.agreement import check_policy as check_fit
from vla_evaluation.agreement import choose_profile
from vla_evaluation.pictures import images

ASKS = {"send_wrist_image": True, "send_state": True, "quat_no_antipodal": True}
SPEC = {"gripper": {"name": "gripper", "dims": 1, "format": "binary_close_positive"}}
ZEROS = {"actions": np.zeros(7)}


def png(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    kept = io.BytesIO()
    Image.fromarray(pixels).save(kept, format=kind)
    return kept.getvalue()


def array(**changed) -> dict:
    return {"__ndarray__": True, "data": bytes(8), "dtype": "<f4", "shape": [2], **changed}


def image_hwc(**changed) -> dict:
    data = png(np.zeros((4, 6, 3), np.uint8))
    return {"__image__": True, "format": "png", "data": data, "shape": [4, 6, 3], **changed}


def frame(payload: object, **changed) -> bytes:
    return msgpack.packb({"type": "action", "payload": payload, "seq": 1, "timestamp": 0.0, **changed})


# --- messages ----------------------------------------------------------------------------------------------------


def test_arrays_and_images_survive_a_round_trip():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    sent = {"a": pixels, "b": [np.arange(3.0)], "c": "stack · 積む", "d": np.float32(0.5)}
    found = unpack(pack(Message("observation", sent, 7)))
    assert (found.type, found.seq, found.payload["c"], found.payload["d"]) == ("observation", 7, "stack · 積む", 0.5)
    assert np.array_equal(found.payload["a"], pixels) and np.array_equal(found.payload["b"][0], np.arange(3.0))
    raw = image_hwc(format="raw", data=pixels.tobytes(), dtype="|u1", shape=[5, 7, 3])
    for one in (raw, image_hwc(data=png(pixels), shape=[5, 7, 3])):
        assert np.array_equal(unpack(frame({"x": one})).payload["x"], pixels)


def without_bytes(value: object) -> str | None:
    """Returns a test's name for bytes: messages carry the time."""
    return "bytes" if isinstance(value, bytes) else None


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ("hello", "text frame"),
        (pickle.dumps({"type": "hello"}), "a pickle"),
        (b"\xc1", "msgpack message"),
        (msgpack.packb({"type": "hello", "seq": 1}), "no 'payload'"),
        (frame({}, type="hallo"), "of type 'hallo'; expected one of hello"),
        (frame([1]), "the payload of action is a list"),
        (frame({}, seq="1"), "the seq of action is a str"),
        (frame({"x": array(dtype="|O")}), "has dtype '|O'"),
        (frame({"x": array(shape=[3])}), "came with 8 bytes; expected 12"),
        (frame({"x": image_hwc(format="tiff")}), "'tiff'.*expected png"),
        (frame({"x": image_hwc(data=b"x" * 50)}), "png file"),
        (frame({"x": image_hwc(data=png(np.zeros((4, 6, 3), np.uint8), "BMP"))}), "png file"),
        (frame({"x": image_hwc(shape=[4000, 6, 3])}), r"RGB \[4, 6\].*\[4000, 6, 3\]"),
        (frame({"x": image_hwc(data=png(np.zeros((4, 6), np.uint8)))}), r"is L \[4, 6\]"),
        (frame({"x": image_hwc(data="text")}), "of a str"),
    ],
)
def test_invalid_message_raises_a_one_line_error(sent, says):
    with pytest.raises(ProtocolError, match=says) as raised:
        unpack(sent)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


# --- their server, our policy ------------------------------------------------------------------------------------


def answering(answers=(ZEROS,), said=None, asked=None):
    """Returns a handler of vla-eval's protocol: `answers` one after the other, the last one for ever."""
    left = list(answers)

    def handle(connection):
        for received in connection:
            message = unpack(received)
            if asked is not None:
                asked.append(message)
            if message.type == "hello":
                connection.send(pack(Message("hello", messages.hello(**(said or {})), message.seq)))
            elif message.type == "observation":
                answer = left.pop(0) if len(left) > 1 else left[0]
                is_error = isinstance(answer, dict) and "error" in answer
                told = Message("error" if is_error else "action", answer, message.seq)
                connection.send(pack(told) if isinstance(answer, dict) else answer)

    return handle


def bridge(url: str, **settings) -> VlaEvalPolicy:
    return VlaEvalPolicy(ModelServer(url, **{"hello_s": 5.0, "answer_s": 5.0, **settings}), LIBERO)


def observation(step: int = 0, session: str = "run.0.0.1.x", **changed) -> Observation:
    draw = np.random.default_rng(step)
    shown = {name: draw.integers(0, 256, (256, 256, 3), np.uint8) for name in LIBERO.images.values()}
    given = {"images": shown, "state": draw.normal(size=8).astype(np.float32), "instruction": "put the bowl away"}
    return Observation(**{**given, "session": session, "step": step, **changed})


def test_a_session_is_an_episode_on_a_connection_of_its_own(foreign):
    asked: list[Message] = []
    policy = bridge(foreign(answering([{"actions": [0.1, 0, 0, 0, 0, 0, 0.2]}], {"observation_params": ASKS}, asked)))
    wait_for(lambda: asked[-1].type == "episode_end", "the warm-up's end")
    asked.clear()
    chunks = policy.act([observation(), observation(session="run.0.1.1.y")])
    assert all(np.array_equal(chunk.actions, np.float32([[0.1, 0, 0, 0, 0, 0, 1]])) for chunk in chunks)
    policy.act([observation(1)])
    policy.reset("run.0.0.1.x")
    assert isinstance(policy.act([observation(2)])[0], UnknownSession)
    policy.close()
    wait_for(lambda: "episode_end" in [one.type for one in asked], "the episode's end")
    kinds = [one.type for one in asked]
    assert kinds.count("hello") == kinds.count("episode_start") == 2 and kinds.count("observation") == 3
    assert kinds.count("episode_end") == 1
    sent, got = observation(1), [one for one in asked if one.type == "observation"][-1].payload
    assert sorted(got) == ["images", "states", "task_description"] and got["task_description"] == "put the bowl away"
    assert list(got["images"]) == ["agentview", "wrist"]
    for key, camera in LIBERO.images.items():
        assert np.array_equal(got["images"][key], sent.images[camera])
    assert got["states"].dtype == np.float64 and np.array_equal(got["states"], sent.state)


def test_the_policy_says_what_the_evaluator_compares(foreign):
    alone = bridge(foreign(answering())).info()
    assert (alone.cameras, alone.state, alone.horizon, alone.stateful) == (("agentview",), (), 1, True)
    info = bridge(
        foreign(answering(said={"observation_params": ASKS, "action_spec": SPEC, "model_server": "A"}))
    ).info()
    assert info.cameras == ("agentview", "robot0_eye_in_hand") and info.state == HAND_STATE
    assert info.details["protocol"] == "vla-eval" and '"model_server": "A"' in info.details["metadata"]
    actions = "position delta_xyz, rotation axis_angle"
    assert alone.details["assumed"].startswith(f"{actions}, gripper binary_close_positive: ")
    assert info.details["assumed"].startswith(f"{actions}, state eef_pos3_axisangle3_gripper2: ")
    profile = BENCHMARK.profiles[choose_profile(info, BENCHMARK, None)]
    for one in (alone, info):
        check_fit(one, BENCHMARK, "libero_10", profile)
    assert profile.name == "vla-eval" and PolicyInfo.from_dict(info.to_dict()) == info


def test_rotation_is_limited_to_half_a_turn_by_default(foreign):
    asked: list[Message] = []
    policy = bridge(foreign(answering(said={"observation_params": {"send_state": True}}, asked=asked)))
    axis = np.array([0.0, 0.6, 0.8])
    state = np.concatenate([[1, 2, 3], axis * 4.0, [0.04, -0.04]]).astype(np.float32)
    policy.act([observation(state=state)])
    policy.act([observation(1, state=state * 0.5)])
    policy.close()
    told, half = [one.payload["states"] for one in asked if one.type == "observation"][-2:]
    assert np.allclose(told[3:6], axis * (4.0 - 2 * math.pi), atol=1e-6) and np.array_equal(told[:3], state[:3])
    assert np.array_equal(half, state * 0.5)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"actions": np.zeros((10, 7))}, r"float64 \[10, 7\]; expected 7 numbers: position delta"),
        ({"actions": np.zeros(8)}, r"float64 \[8\]; expected 7"),
        ({"actions": "up"}, "is a str; expected 7"),
        ({"actions": {"x": 1}}, "is a dict; expected 7"),
        ({}, "is a NoneType; expected 7"),
        ({"actions": np.full(7, np.nan)}, "is not finite"),
        ({"error": "predict failed\nKeyError: 'state'"}, "failed: KeyError: 'state'"),
        (pickle.dumps(ZEROS), "a pickle"),
        ("oops", "text frame"),
        (pack(Message("action", ZEROS, 99)), "action number 99; expected.* 3"),
        (pack(Message("hello", {}, 3)), "hello number 3"),
    ],
    ids=without_bytes,
)
def test_invalid_first_answer_raises_at_the_start(foreign, answer, says):
    url = foreign(answering([answer]))
    with pytest.raises(IncompatibleServer, match=says) as raised:
        bridge(url)
    assert url in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"protocol_version": 2}, "speaks version 2 of vla-eval's protocol .*, not 1"),
        ({"protocol_version": None}, "speaks version None of"),
        ({"observation_params": {"absolute_action": True}}, "answers absolute poses"),
        (
            {"action_spec": {"rotation": {"format": "rot6d_interleaved"}}},
            "answers rotation as 'rot6d_interleaved'",
        ),
        ({"action_spec": {"gripper": {"format": "continuous_01"}}}, "answers gripper as 'continuous_01'"),
        ({"observation_spec": {"state": {"format": "joint_positions"}}}, "needs state as 'joint_positions'"),
    ],
)
def test_server_of_another_version_or_robot_raises_with_the_mismatch(foreign, said, says):
    url = foreign(answering(said=said))
    with pytest.raises(IncompatibleServer, match=says) as raised:
        bridge(url)
    assert url in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (
            wire.pack({"policy": "pi0"}),
            "vla-eval's protocol.*'type'",
        ),
        (pickle.dumps({}), "a pickle"),
        (pack(Message("action", {}, 1)), "its first message is of type action"),
    ],
    ids=without_bytes,
)
def test_server_of_another_protocol_raises_with_its_answer(foreign, first, says):
    with pytest.raises(IncompatibleServer, match=says):
        bridge(foreign(lambda connection: (connection.send(first), connection.recv())))


def test_server_without_a_hello_raises_after_the_timeout(foreign):
    with pytest.raises(IncompatibleServer, match=r"answered no hello, .* within 0\.3 s: .*another protocol"):
        bridge(foreign(lambda connection: [None for _ in connection]), hello_s=0.3)


OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"


def test_the_protocol_is_known_by_the_probe_that_a_server_answers(tcp, foreign):
    said = b'{"status": "ok"}\n'
    assert answers_health(tcp(OK % (len(said), said)), None)
    for other in (OK % (2, b"OK"), OK % (2, b"[]"), b"HTTP/1.1 426 No\r\nContent-Length: 0\r\n\r\n", b"220 ESMTP\r\n"):
        assert not answers_health(tcp(other), "key")
    assert not answers_health(foreign(lambda connection: None), None)
    with pytest.raises(PolicyLost, match=r"answer.* ws://127\.0\.0\.1:9: Connection refused"):
        answers_health("ws://127.0.0.1:9", None)


def test_what_goes_wrong_later_fails_its_request_and_a_lost_episode_begins_again(foreign):
    count = itertools.count()

    def handle(connection):
        answering([{"error": "KeyError: 'wrist'"}] if next(count) == 2 else [ZEROS])(connection)

    with running(lambda: bridge(foreign(handle))) as service, PolicyClient(service.url, retries=0) as client:
        with pytest.raises(PolicyUnavailable, match="failed: KeyError: 'wrist'") as raised:
            client.act(observation())
        assert raised.value.status == 500
        assert client.act(observation(session="run.0.0.2.z")).actions.shape == (1, 7)


def test_a_lost_connection_is_a_lost_episode_and_a_lost_server_all_of_them(foreign):
    """A server that is there is asked for the next episode; without one the service ends, to be started anew."""
    count = itertools.count()

    def handle(connection):
        if next(count) == 2:  # the second episode's; the first connection is the start's
            hello = unpack(connection.recv())
            connection.send(pack(Message("hello", messages.hello(), hello.seq)))
            return
        answering()(connection)

    policy = bridge(foreign(handle))
    first, second = policy.act([observation(), observation(session="run.0.1.1.y")])
    assert first.actions.shape == (1, 7) and isinstance(second, UnknownSession) and "start the episode" in str(second)
    policy.server.url = "ws://127.0.0.1:9"
    (gone,) = policy.act([observation(session="run.0.2.1.z")])
    assert isinstance(gone, PolicyLost) and "ws://127.0.0.1:9" in str(gone)
    policy.close()


# --- our policy, their client ------------------------------------------------------------------------------------


def say(client, kind: str, payload: dict, seq: int) -> None:
    client.send(pack(Message(kind, payload, seq)))


def hear(client) -> Message:
    return unpack(client.recv(timeout=10))


def theirs(**changed) -> dict:
    pixels = np.random.default_rng(3).integers(0, 256, (256, 256, 3), np.uint8)
    given = {"images": {"agentview": pixels, "wrist": 255 - pixels}, "task_description": "put it away"}
    return {**given, "states": np.linspace(0.5, 1.2, 8), **changed}


def test_an_episode_is_answered_action_by_action_from_images_as_the_profile_has_them():
    policy = Wave(GRIPPER_OPENS, profile="openvla", unnorm_keys=("libero_goal_no_noops", "bridge"), horizon=3)
    with door(policy) as url, connect(f"{url}/vla-eval", compression=None) as client:
        say(client, "hello", messages.hello(), 1)
        told = hear(client)
        assert (told.type, told.seq, told.payload["protocol_version"]) == ("hello", 1, 1)
        assert told.payload["observation_params"] == {
            "send_wrist_image": False, "send_state": True, "quat_no_antipodal": True, "env_seed": 0,
        }  # fmt: skip
        for episode in range(2):
            say(client, "episode_start", {"task": {"name": "t", "suite": "libero_goal"}}, 2)
            for step in range(4):
                say(client, "observation", theirs(), 10 + step)
                answer = hear(client)
                assert (answer.type, answer.seq) == ("action", 10 + step)
                assert answer.payload["actions"].shape == (7,) and answer.payload["actions"][6] == -1.0
            say(client, "episode_end", {"metrics": {}}, 30 + episode)
    seen = policy.seen[1:]  # the first is the warm-up's
    assert [one.step for one in seen] == [0, 3, 0, 3] and len({one.session for one in seen}) == 2
    drawn = theirs()["images"]["agentview"][::-1, ::-1]  # as the simulator has it
    assert np.array_equal(seen[0].images["agentview"], images.prepare(drawn, BENCHMARK.profiles["openvla"]))
    assert {one.unnorm_key for one in seen} == {"libero_goal_no_noops"} and seen[0].instruction == "put it away"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"images": {}}, "'agentview' is missing"),
        ({"images": 3}, "'images' is a int"),
        ({"task_description": None}, "'task_description' is a NoneType; expected a text"),
        ({"states": np.zeros(7)}, "'states' is float64 [7]; expected 8 numbers"),
        ({"images": {"agentview": np.zeros((256, 256, 3))}}, "is float64 [256, 256, 3]; expected uint8"),
    ],
)
def test_invalid_observation_gets_an_error_and_the_connection_continues(changed, says):
    with door(Wave()) as url, connect(f"{url}/vla-eval") as client:
        say(client, "observation", theirs(**changed), 1)
        answer = hear(client)
        assert (answer.type, answer.seq) == ("error", 1) and says in answer.payload["error"]
        say(client, "observation", theirs(), 2)
        assert hear(client).type == "action"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"\xc1", "msgpack message"),
        (pickle.dumps({}), "a pickle"),
        (pack(Message("hello", {"protocol_version": 3}, 1)), "speaks version 3 of vla-eval's protocol"),
        (wire.pack({"observation/image": np.zeros((2, 2, 3), np.uint8)}), "message"),
    ],
    ids=without_bytes,
)
def test_what_is_not_a_message_is_reported_and_ends_the_connection(sent, says):
    with door(Wave()) as url, connect(f"{url}/vla-eval") as client:
        client.send(sent)
        assert says in client.recv(timeout=10)
        with pytest.raises(ConnectionClosed):
            client.recv(timeout=10)


def test_policy_is_served_to_the_supported_protocol_only():
    with door(Wave(stateful=True)) as url:
        with pytest.raises(InvalidStatus, match="404"):
            connect(url)
        with connect(f"{url}/vla-eval") as client:
            say(client, "episode_start", {}, 1)
            say(client, "observation", theirs(), 2)
            assert hear(client).type == "action"
    with pytest.raises(ValueError, match=r"simulator's state, which vla-eval's"):
        LIBERO.check_policy(PolicyInfo("p", Wave().told.action, needs_privileged=True))
