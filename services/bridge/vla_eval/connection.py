"""One connection to a model server of vla-eval's, which is one of its sessions.

vla-eval 0.8.0 vla_eval/model_servers/serve.py: the client says hello and gets one back; an episode's start and end are
told and not answered; every observation is answered by an action or an error of the same number, and the connection
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

from services.bridge.connection import Connection, ServerFailed
from services.bridge.vla_eval import messages
from services.bridge.vla_eval.messages import ACTION, END, ERROR, HELLO, OBSERVATION, START, Message
from services.bridge.wire import NotTheirs, short
from vla_contract import PolicyLost
from vla_contract.client.transport import CONNECT_S

HEALTH = "/health"  # what only vla-eval's servers answer, by HTTP: openpi's has /healthz
MAX_HEALTH = 1000  # bytes


class ModelServer(Connection):
    """vla-eval's model server."""

    protocol = "vla-eval's protocol"

    def connect(self) -> dict[str, Any]:
        """Returns the server's hello of a new connection. Raises PolicyLost where nobody answers, else WrongServer."""
        self.close()
        self._connection, self._seq = self._open(), 0
        late = f"answered no hello within {self.hello_s:g} s, as vla-eval's servers do"
        with self._greeting(late, "vla-eval's protocol, which answers a hello"):
            self._send(HELLO, messages.hello())
            reply = self._receive(time.monotonic() + self.hello_s)
            if reply.type != HELLO:
                raise NotTheirs(f"its first message is of type {reply.type}")
            messages.check_version(reply.payload)
        return reply.payload

    def start(self, task: dict[str, Any]) -> None:
        """Tells that an episode of `task` begins. Raises PolicyLost."""
        self._tell(START, {"task": task})

    def end(self) -> None:
        """Tells that the episode is over. Raises PolicyLost."""
        self._tell(END, {})

    def send(self, observation: dict[str, Any]) -> None:
        """Sends an observation, to which `action` is the answer. Raises PolicyLost."""
        self._tell(OBSERVATION, observation)

    def action(self, within_s: float | None = None) -> dict[str, Any]:
        """Returns the payload of the answer to the last observation.

        Raises PolicyLost where the server goes away (TooSlow where it stays), ServerFailed for its own error, NotTheirs
        for what is no message. After any of them the connection is closed, and with it the episode.
        """
        within_s = within_s or self.answer_s
        with self._answering(within_s):
            answer = self._receive(time.monotonic() + within_s)
            if answer.type == ERROR:
                said = answer.payload.get("error", answer.payload)
                raise ServerFailed(f"the server at {self.url} failed: {short(str(said))}")
            if answer.type != ACTION or answer.seq != self._seq:
                raise NotTheirs(f"an {answer.type} of number {answer.seq} came; expected the action of {self._seq}")
            return answer.payload

    def _tell(self, kind: str, payload: dict[str, Any]) -> None:
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
    """Returns whether a model server of vla-eval's is at a ws:// address, by its probe; any other answer is none.

    Raises PolicyLost where nobody answers at all.
    """
    parts = urlsplit(url)
    asked = Request(f"{parts.scheme.replace('ws', 'http')}://{parts.netloc}{HEALTH}")
    if key:
        asked.add_header("Authorization", f"Api-Key {key}")
    try:
        with build_opener(ProxyHandler({})).open(asked, timeout=within_s) as answer:
            said = json.loads(answer.read(MAX_HEALTH))
    except HTTPError:  # an openpi server asks for a websocket there
        return False
    except URLError as error:
        reason = getattr(error.reason, "strerror", None) or short(str(error.reason))
        raise PolicyLost(f"nobody answers at {url}: {reason}") from error
    except Exception:  # whatever else listens there: the websocket's own handshake says what is wrong with it
        return False
    return isinstance(said, dict) and said.get("status") == "ok"
