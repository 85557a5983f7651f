"""A network that breaks: connections are cut before, in the middle of and after requests and answers."""

import contextlib
import random
import socket
import threading

import pytest
from fakes import CountingPolicy, EchoPolicy, observe, picture
from test_batching import together

from vla_contract import PolicyClient
from vla_contract.client import transport
from vla_contract.server.serving import address, listen


class BreakingRelay:
    """Forwards connections to a server and cuts each after a random number of bytes, in either direction."""

    def __init__(self, url: str, longest: int, seed: int):
        host, port = url.removeprefix("http://").split(":")
        self._target, self._longest, self._random = (host, int(port)), longest, random.Random(seed)
        self._listener = listen("127.0.0.1", 0)
        self.url, self.cuts = address(self._listener), 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near):
        budget = [self._random.randrange(self._longest)]
        with near, socket.create_connection(self._target) as far:
            back = threading.Thread(target=self._pump, args=(far, near, budget))
            back.start()
            self._pump(near, far, budget)
            back.join()
        self.cuts += budget[0] <= 0

    def _pump(self, source, target, budget):
        with contextlib.suppress(OSError):
            while budget[0] > 0 and (data := source.recv(4096)):
                data = data[: max(budget[0], 0)]
                budget[0] -= len(data)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(transport, "LONGEST_PAUSE_S", 0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_is_done_exactly_once(either_service, seed):
    policy = CountingPolicy()
    body = 2 * picture().nbytes
    relay = BreakingRelay(either_service(policy).url, longest=8 * body, seed=seed)

    def episode(index):
        with PolicyClient(relay.url, retries=200, timeout_s=5) as client:
            return [client.act(observe(f"s{index}", step)).actions[0, 0] for step in range(40)]

    assert together(4, episode) == [list(range(1, 41))] * 4
    assert set(policy.counts.values()) == {40}
    assert relay.cuts > 10
    relay.close()


def test_a_stateless_policy_survives_it_too(either_service):
    running = either_service(EchoPolicy(), queue_size=2)
    relay = BreakingRelay(running.url, longest=6000, seed=3)

    def ask(index):
        with PolicyClient(relay.url, retries=500, timeout_s=5) as client:
            return [client.act(observe(f"s{index}", step)).actions[0, 0] for step in range(25)]

    assert together(6, ask) == [list(range(25))] * 6
    relay.close()
    with PolicyClient(running.url) as client:
        assert client.act(observe()).actions.shape == (1, 7)
