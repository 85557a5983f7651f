"""A connection to vla-eval's model server; each connection is one session of the server.

vla-eval 0.8.0 vla_eval/model_servers/serve.py: client and server exchange a hello; an episode's start and end are
announced, not answered; every observation is answered by an action or an error of the same number, and the connection
stays.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from websockets.exceptions import ConnectionClosed

from services.bridge.connection import PolicyConnection, ServerFailed
from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import ACTION, END, ERROR, HELLO, OBSERVATION, START, Message
from services.bridge.wire import ProtocolError, short
from vla_contract import PolicyLost
from vla_contract.client.transport import CONNECT_S

HEALTH = "/health"  # HTTP probe of vla-eval's servers; openpi's have /healthz
MAX_HEALTH = 1000  # bytes


class ModelServer(PolicyConnection):
    """vla-eval's model server."""

    protocol = "vla-eval's protocol"

    def connect(self) -> dict[str, Any]:
        """Connect and return the server's hello. Raises PolicyLost if it does not answer, else IncompatibleServer."""
        self.close()
        self._connection, self._seq = self._open(), 0
        timeout_text = f"answered no hello within {self.hello_s:g} s, as vla-eval's servers do"
        with self._reading_hello(timeout_text, "vla-eval's protocol, which answers a hello"):
            self._send(HELLO, messages.hello())
            reply = self._receive(time.monotonic() + self.hello_s)
            if reply.type != HELLO:
                raise ProtocolError(f"its first message is of type {reply.type}")
            messages.check_version(reply.payload)
        return reply.payload

    def start(self, task: dict[str, Any]) -> None:
        """Announce the start of an episode of `task`. Raises PolicyLost."""
        self._send_message(START, {"task": task})

    def end(self) -> None:
        """Announce the end of the episode. Raises PolicyLost."""
        self._send_message(END, {})

    def send(self, observation: dict[str, Any]) -> None:
        """Send an observation; `action` receives the answer. Raises PolicyLost."""
        self._send_message(OBSERVATION, observation)

    def action(self, within_s: float | None = None) -> dict[str, Any]:
        """Return the payload of the answer to the last observation.

        Raises PolicyLost if the server is gone (AnswerTimeout if it takes too long), ServerFailed for its own error,
        ProtocolError for an invalid message. Each closes the connection, and with it the episode.
        """
        within_s = within_s or self.answer_s
        with self._awaiting_answer(within_s):
            answer = self._receive(time.monotonic() + within_s)
            if answer.type == ERROR:
                reason = answer.payload.get("error", answer.payload)
                raise ServerFailed(f"the server at {self.url} failed: {short(str(reason))}")
            if answer.type != ACTION or answer.seq != self._seq:
                raise ProtocolError(
                    f"received {answer.type} number {answer.seq}; expected the action of number {self._seq}"
                )
            return answer.payload

    def _send_message(self, kind: str, payload: dict[str, Any]) -> None:
        try:
            self._send(kind, payload)
        except ConnectionClosed as error:
            self.close()
            raise self._closed(error) from error

    def _send(self, kind: str, payload: dict[str, Any]) -> None:
        if self._connection is None:
            raise PolicyLost(f"there is no connection to {self.url}")
        self._seq += 1
        self._connection.send(messages.pack(Message(kind, payload, self._seq)))

    def _receive(self, end: float) -> Message:
        if self._connection is None:
            raise PolicyLost(f"there is no connection to {self.url}")
        return messages.unpack(self._connection.recv(timeout=max(0.0, end - time.monotonic())))


def answers_health(url: str, key: str | None, within_s: float = CONNECT_S) -> bool:
    """Probe whether vla-eval's model server runs at a ws:// address; any other answer is False.

    Raises PolicyLost if nothing answers.
    """
    parts = urlsplit(url)
    request = Request(f"{parts.scheme.replace('ws', 'http')}://{parts.netloc}{HEALTH}")
    if key:
        request.add_header("Authorization", f"Api-Key {key}")
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=within_s) as answer:
            status = json.loads(answer.read(MAX_HEALTH))
    except HTTPError:  # an openpi server requires a websocket there
        return False
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or short(str(error.reason))
        raise PolicyLost(f"no answer from {url}: {reason}") from error
    except Exception:  # another kind of server: the websocket handshake reports the error
        return False
    return isinstance(status, dict) and status.get("status") == "ok"
