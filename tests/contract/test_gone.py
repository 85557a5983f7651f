"""Senders that give up: a call ends when it should, and what nobody waits for is not computed and not kept."""

import socket
import threading
import time

import pytest
from fakes import CountingPolicy, GatedPolicy, observe, until
from test_app import HEAD

from vla_contract import PolicyUnavailable, SessionLost
from vla_contract.protocol.messages import encode_observation
from vla_contract.server.serving import address, listen
from vla_contract.server.sessions import SessionTable
from vla_contract.server.tenants import Tenant

TRICKLING = {"head": b"HTTP/1.1 200 OK\r\nX: ", "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"}


@pytest.mark.parametrize("said", TRICKLING.values(), ids=TRICKLING)
def test_a_call_ends_at_its_deadline_however_the_answer_trickles(client, said):
    with listen("127.0.0.1", 0) as listener:
        stop = threading.Event()

        def trickle():
            while not stop.is_set():
                with listener.accept()[0] as connection:
                    connection.sendall(said)
                    while not stop.wait(0.2):
                        try:
                            connection.sendall(b"H")
                        except OSError:
                            break

        threading.Thread(target=trickle, daemon=True).start()
        start = time.monotonic()
        with pytest.raises(PolicyUnavailable, match="no answer within 1 s"):
            client(address(listener), timeout_s=1.0, deadline_s=1.5, retries=0).act(observe())
        assert time.monotonic() - start < 10  # each wait was short enough: it went on for hours
        stop.set()


def raw_request(url, session):
    host, port = url.removeprefix("http://").split(":")
    body = encode_observation(observe(session))
    raw = socket.create_connection((host, int(port)), 10)
    raw.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return raw


@pytest.mark.parametrize("stateful", [False, True])
def test_a_closed_connections_request_is_not_computed(service, client, stateful):
    policy = GatedPolicy(stateful=stateful, max_batch=1)
    running = service(policy, queue_size=4)
    queue = running.app.state.engine.queue
    blocker = raw_request(running.url, "first")
    assert policy.entered.wait(10)
    gone = [raw_request(running.url, f"gone {i}") for i in range(4)]
    until(lambda: len(queue) == 4)
    for raw in gone:
        raw.close()
    until(lambda: len(queue) == 0)  # and there is room again
    policy.gate.set()
    assert client(running.url).act(observe("last")).actions.shape == (1, 7)
    assert [batch[0].session for batch in policy.batches] == ["warm-up", "first", "last"]
    blocker.close()


def test_a_runs_sessions_are_forgotten_together(either_service, client):
    policy = CountingPolicy()
    c = client(either_service(policy).url)
    for session in ("run-a.1.0", "run-a.2.0", "run-b.1.0"):
        c.act(observe(session))
    c.reset_all("run-a.")
    assert set(policy.counts) == {"run-b.1.0"}
    with pytest.raises(SessionLost):
        c.act(observe("run-a.1.0", 1))
    assert c.act(observe("run-b.1.0", 1)).actions[0, 0] == 2
    c.reset_all("nobody's")


def test_a_session_that_does_not_move_is_forgotten():
    import asyncio

    async def use():
        forgotten, loop = [], asyncio.get_running_loop()
        table, tenant = SessionTable(forgotten.append, idle_s=0.05), Tenant("admin")
        for session in ("computed now", "left"):
            future = loop.create_future()
            table.record(observe(session), session, future, tenant)
            if session == "left":
                future.set_result(None)
        await asyncio.sleep(0.1)
        table._sessions.move_to_end("computed now")
        table.record(observe("new"), "new", loop.create_future(), tenant)
        return forgotten, len(table)

    assert asyncio.run(use()) == (["left"], 2)
