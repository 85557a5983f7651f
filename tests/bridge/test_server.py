"""A policy of the lab for openpi's clients, over real sockets: what the policy is asked, and what is wrong in words."""

import asyncio
import contextlib
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from services.bridge import server
from services.bridge.robots import LIBERO
from services.bridge.server import BridgeServer, address, check_policy, listen
from services.bridge.wire import pack, unpack
from tests.running import running
from vla_common import healthcheck
from vla_contract import ActionChunk, Checkpoint, Part, Policy, PolicyClient, PolicyInfo
from vla_contract.protocol.parts import GRIPPER_CLOSES, GRIPPER_OPENS, HAND_STATE, OSC_POSE

TOKEN = "token-1234"


class Wave(Policy):
    """Answers what it is asked for: the state's first number, then zeros; the gripper as `info` says."""

    def __init__(self, gripper=GRIPPER_CLOSES, **info):
        given = {"cameras": ("agentview",), "image_hw": (224, 224), "state": HAND_STATE, "horizon": 8, **info}
        self.told, self.seen = PolicyInfo("wave", (*OSC_POSE, gripper), **given), []

    def info(self):
        return self.told

    def act(self, observations):
        self.seen += observations
        return [self.chunk(observation) for observation in observations]

    def chunk(self, observation):
        actions = np.zeros((self.told.horizon, self.told.action_size), np.float32)
        actions[:, 0] = observation.state[0] if observation.state is not None else 0.0
        actions[:, -1] = 1.0
        return ActionChunk(actions)


def message(**changed) -> dict:
    image = np.full((224, 224, 3), 7, np.uint8)
    given = {
        "observation/image": image,
        "observation/wrist_image": image + 1,
        "observation/state": np.linspace(0.5, 1.2, 8),
        "prompt": "put the bowl away",
    }
    return {key: value for key, value in {**given, **changed}.items() if value is not None}


@contextlib.contextmanager
def serving(door: BridgeServer):
    """Serves openpi's clients in a thread; yields the address."""
    loop, up, said = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def attend() -> None:
        async with listen(door, "127.0.0.1", 0) as listening:
            said.append(address(listening))
            up.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(attend(),))
    thread.start()
    try:
        assert up.wait(30)
        yield said[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@contextlib.contextmanager
def door(policy: Policy, token: str | None = None):
    """Serves `policy` over the contract, and that to openpi's clients; yields the address."""
    with (
        running(policy, token=token) as service,
        PolicyClient(service.url, token, retries=0) as client,
        serving(BridgeServer(client, client.info(), token)) as url,
    ):
        yield url


def test_a_client_gets_metadata_and_then_actions():
    policy = Wave(checkpoint=Checkpoint("someone/wave", "1"))
    with door(policy) as url, connect(url, compression=None) as client:
        told = unpack(client.recv(timeout=10))
        assert told == {
            "policy": "wave", "action_horizon": 8, "action_dim": 7, "image_resolution": [224, 224],
            "checkpoint": "someone/wave",
        }  # fmt: skip
        for _ in range(3):
            client.send(pack(message()))
            answer = unpack(client.recv(timeout=10))
            assert answer["actions"].shape == (8, 7) and answer["actions"][0, 0] == np.float32(0.5)
            assert answer["server_timing"]["infer_ms"] >= answer["policy_timing"]["infer_ms"] >= 0
    seen = policy.seen[1:]  # the first is the warm-up's
    assert [one.step for one in seen] == [0, 1, 2] and len({one.session for one in seen}) == 1
    assert set(seen[0].images) == {"agentview"} and (seen[0].images["agentview"] == 7).all()
    assert seen[0].state.dtype == np.float32 and seen[0].instruction == "put the bowl away"


def test_actions_are_in_the_convention_that_openpis_environments_execute():
    with door(Wave(GRIPPER_OPENS, cameras=(), image_hw=None)) as url, connect(url) as client:
        client.recv(timeout=10)
        client.send(pack(message()))
        assert (unpack(client.recv(timeout=10))["actions"][:, 6] == -1.0).all()  # 1 says open, which is −1 there


def test_image_with_channels_first_is_transposed_as_by_openpi():
    policy = Wave()
    image = np.arange(224 * 224 * 3, dtype=np.uint32).astype(np.uint8).reshape(224, 224, 3)
    with door(policy) as url, connect(url) as client:
        client.recv(timeout=10)
        client.send(pack(message(**{"observation/image": image.transpose(2, 0, 1)})))
        assert isinstance(client.recv(timeout=10), bytes)
    assert np.array_equal(policy.seen[-1].images["agentview"], image)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"observation/image": None}, "'observation/image' is missing"),
        ({"prompt": None}, "'prompt' is missing"),
        ({"prompt": 3}, "'prompt' is a int; expected a text"),
        ({"observation/state": np.zeros(7)}, "'observation/state' is float64 [7]; expected 8 numbers"),
        ({"observation/state": np.full(8, np.nan)}, "state"),
        ({"observation/image": np.zeros((128, 128, 3), np.uint8)}, "is 128x128; policy 'wave' takes 224x224"),
        ({"observation/image": np.zeros((224, 224, 3))}, "is float64 [224, 224, 3]; expected uint8"),
        ({"observation/image": "picture"}, "is a str; expected uint8"),
    ],
)
def test_invalid_observation_gets_an_error_and_the_connection_continues(changed, says):
    with door(Wave()) as url, connect(url) as client:
        client.recv(timeout=10)
        client.send(pack(message(**changed)))
        said = client.recv(timeout=10)
        assert isinstance(said, str) and says in said and "\n" not in said
        client.send(pack(message()))
        assert isinstance(client.recv(timeout=10), bytes)


def test_what_is_not_a_message_is_reported_and_ends_the_connection():
    with door(Wave()) as url:
        for frame in (b"\xc1", "hello", b"\x80\x04\x95."):
            with connect(url) as client:
                client.recv(timeout=10)
                client.send(frame)
                assert isinstance(client.recv(timeout=10), str)
                with pytest.raises(ConnectionClosed):
                    client.recv(timeout=10)


def test_an_answer_that_nobody_can_mean_does_not_go_out():
    class Far(Wave):
        def chunk(self, observation):
            return ActionChunk(np.full((8, 7), 1000.0, np.float32))

    with door(Far()) as url, connect(url) as client:
        client.recv(timeout=10)
        client.send(pack(message()))
        assert "at most" in client.recv(timeout=10)


def test_who_has_no_token_and_who_is_a_page_stays_outside():
    with door(Wave(), TOKEN) as url:
        for headers in ({}, {"Authorization": "Api-Key wrong-123"}):
            with pytest.raises(InvalidStatus, match="401"):
                connect(url, additional_headers=headers)
        with pytest.raises(InvalidStatus, match="403"):
            connect(url, additional_headers={"Authorization": f"Api-Key {TOKEN}"}, origin="http://evil.example")
        with connect(url, additional_headers={"Authorization": f"Api-Key {TOKEN}"}) as client:
            assert unpack(client.recv(timeout=10))["policy"] == "wave"


def test_no_more_clients_are_let_in_than_fit(monkeypatch):
    monkeypatch.setattr(server, "MAX_CLIENTS", 1)
    with door(Wave()) as url:
        with connect(url) as client:
            client.recv(timeout=10)
            with pytest.raises(InvalidStatus, match="503"):
                connect(url)
        for _ in range(200):  # until the first one's end is seen
            with contextlib.suppress(InvalidStatus), connect(url) as client:
                assert unpack(client.recv(timeout=10))["policy"] == "wave"
                return
            time.sleep(0.05)
    raise AssertionError("nobody was let in after the first client had gone")


def test_the_probes_tell_of_the_policy():
    def ask(url: str, path: str) -> bytes:
        return urllib.request.urlopen(url.replace("ws", "http", 1) + path, timeout=10).read()

    with door(Wave(), TOKEN) as url:
        assert ask(url, "/healthz") == ask(url, "/readyz") == b"OK\n"
        with pytest.raises(urllib.error.HTTPError):
            ask(url, "/")
    with (
        PolicyClient("http://127.0.0.1:9", retries=0) as nobody,
        serving(BridgeServer(nobody, Wave().info())) as url,
    ):
        with pytest.raises(urllib.error.HTTPError) as raised:
            ask(url, "/readyz")
        assert raised.value.code == 503 and b"is not ready" in raised.value.read()


def test_the_health_check_is_answered():
    with door(Wave()) as url:
        assert healthcheck.check(url.replace("ws", "http", 1) + "/readyz", 10.0)[0]


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"needs_privileged": True}, "needs the simulator's state"),
        ({"stateful": True}, "start of each episode"),
        ({"cameras": ("birdview",)}, "needs camera 'birdview'; openpi's libero sends agentview, robot0_eye_in_hand"),
        ({"state": (Part("joints", 7, "rad", "of the arm"),)}, "needs a state with joints"),
        ({"unnorm_keys": ("a", "b")}, "statistics of several data sets"),
        ({"action": (Part("joints", 7, "rad", "of the arm"),)}, "answers actions with joints"),
    ],
)
def test_unsupported_policy_raises_with_the_reason(info, says):
    given = {"name": "p", "action": (*OSC_POSE, GRIPPER_CLOSES), **info}
    with pytest.raises(ValueError, match=says):
        check_policy(PolicyInfo(**given), LIBERO)
