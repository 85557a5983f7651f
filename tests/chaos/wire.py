"""A client that sends whatever it is told to, well-formed or not, and reads what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.chaos.bodies import Body

ANSWER_S = 60.0
MAX_ANSWER = 64 * 2**20


@dataclass(frozen=True)
class Answer:
    """What came back; status 0: the connection ended without an answer, -1: nothing came in time."""

    status: int
    headers: dict[str, str]
    body: bytes


def request_bytes(body: Body, host: str) -> bytes:
    """Return a request as it goes over the wire."""
    headers = {"Host": host, "Content-Length": str(len(body.data)), **body.headers}
    if body.media_type:
        headers["Content-Type"] = body.media_type
    head = f"{body.method} {body.route} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return head.encode("latin-1", "replace") + b"\r\n" + body.data


class Connection:
    """One kept connection to a service; opened again when the other side closes it."""

    def __init__(self, url: str):
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, data: bytes, head_only: bool = False, timeout_s: float = ANSWER_S) -> Answer:
        """Return the answer to these bytes. A kept connection that turns out closed is opened anew once."""
        for fresh in (self._streams is None, True):
            try:
                answer = await asyncio.wait_for(self._once(data, head_only), timeout_s)
            except asyncio.TimeoutError:
                await self.close()
                return Answer(-1, {}, b"")
            if answer.status or fresh:
                return answer
        raise AssertionError

    async def _once(self, data: bytes, head_only: bool) -> Answer:
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self.host, self.port, limit=MAX_ANSWER)
            reader, writer = self._streams
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            answer = await read_answer(reader, head_only)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            await self.close()
            return Answer(0, {}, b"")
        if answer.headers.get("connection", "").lower() == "close" or not answer.status:
            await self.close()
        return answer

    async def close(self) -> None:
        """Closes it."""
        if self._streams is not None:
            writer, self._streams = self._streams[1], None
            writer.close()
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 2)


async def read_answer(reader: asyncio.StreamReader, head_only: bool = False) -> Answer:
    """Return one HTTP answer, interim ones passed over."""
    while True:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        if status >= 200:
            break
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if head_only or status in (204, 304):
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(status, headers, await _chunks(reader))
    if "content-length" in headers:
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))
    return Answer(status, {**headers, "connection": "close"}, await reader.read(MAX_ANSWER))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)
