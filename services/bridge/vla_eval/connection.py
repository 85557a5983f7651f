"""A connection to vla-eval's model server; each connection is one session of the server.

vla-eval 0.8.0 vla_eval/model_servers/serve.py: client and server exchange a hello; an episode's start and end are
announced, not answered; every observation is answered by an action or an error of the same number, and the connection
stays.
"""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection

from services.bridge.connection import PolicyConnection, ServerFailed
from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import ACTION, END, ERROR, HELLO, OBSERVATION, START, Message
from services.bridge.wire import ProtocolError, short
from vla_contract import PolicyLost
from vla_contract.client.transport import CONNECT_S, Transport

HEALTH = "/health"  # HTTP probe of vla-eval's servers; openpi's have /healthz


class ModelServer(PolicyConnection):
    """vla-eval's model server."""

    protocol = "vla-eval's protocol, which answers a hello"
    silence = "answered no hello, as vla-eval's servers do,"
    _seq = 0  # of the last message

    def start(self, task: dict[str, Any]) -> None:
        """Announce the start of an episode of `task`. Raises PolicyLost."""
        self._send(START, {"task": task})

    def end(self) -> None:
        """Announce the end of the episode. Raises PolicyLost."""
        self._send(END, {})

    def observe(self, observation: dict[str, Any]) -> None:
        """Send an observation; `receive` returns the payload of the answer. Raises PolicyLost."""
        self._send(OBSERVATION, observation)

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        self._seq += 1
        self.send(messages.pack(Message(kind, payload, self._seq)))

    def _hello(self, connection: ClientConnection) -> dict[str, Any]:
        self._seq = 0
        self._send(HELLO, messages.hello())
        reply = messages.unpack(connection.recv(timeout=self.hello_s))
        if reply.type != HELLO:
            raise ProtocolError(f"its first message is of type {reply.type}")
        messages.check_version(reply.payload)
        return reply.payload

    def _answer(self, frame: bytes | str) -> dict[str, Any]:
        answer = messages.unpack(frame)
        if answer.type == ERROR:
            raise ServerFailed(f"failed: {short(str(answer.payload.get('error', answer.payload)))}")
        if answer.type != ACTION or answer.seq != self._seq:
            received = f"received {answer.type} number {answer.seq}"
            raise ProtocolError(f"{received}; expected the action of number {self._seq}")
        return answer.payload


def answers_health(url: str, key: str | None) -> bool:
    """Probe whether vla-eval's model server runs at a ws:// address; any other answer is False.

    Raises PolicyLost if nothing answers.
    """
    parts = urlsplit(url)
    headers = {"Authorization": f"Api-Key {key}"} if key else {}
    try:
        with closing(Transport(f"{parts.scheme.replace('ws', 'http')}://{parts.netloc}")) as transport:
            answer = transport.request("GET", HEALTH, CONNECT_S, headers)
        return answer.status == 200 and json.loads(answer.body).get("status") == "ok"
    except (HTTPException, TimeoutError, ValueError, AttributeError):  # another kind of server, such as openpi's
        return False
    except OSError as error:
        raise PolicyLost(f"no answer from {url}: {error.strerror or short(str(error))}") from error
