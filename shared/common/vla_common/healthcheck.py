"""`python -m vla_common.healthcheck URL`: exit status 0 when the service is ready, 1 with the reason when not.

Only the standard library, and little of it: each service that is up is asked every few seconds, by a new process. To
import `http.client` would take that process longer than all that it does.
"""

import argparse
import re
import socket
import sys

URL = re.compile(r"http://((\[[^\]]+\]|[^/:]+)(?::(\d+))?)(/.*)?")  # host and port, each of both, path
STATUS = re.compile(rb"HTTP/1\.\d (\d{3}) ")
MOST_BYTES = 1 << 16  # of an answer that says why a service is not ready


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status; prints one line."""
    parser = argparse.ArgumentParser(prog="python -m vla_common.healthcheck", description=main.__doc__)
    parser.add_argument("url", help="for example http://127.0.0.1:8001; asks /readyz unless the URL has a path")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    options = parser.parse_args(arguments)
    ready, text = check(options.url, options.timeout)
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    print(shown, file=sys.stdout if ready else sys.stderr)
    return 0 if ready else 1


def check(url: str, timeout_s: float) -> tuple[bool, str]:
    """Returns whether the service is ready, and what it says."""
    if not (found := URL.fullmatch(url)):
        return False, f"{url!r} is no URL; expected for example http://127.0.0.1:8001"
    place, host, port, path = found.groups()
    path = path if path not in (None, "/") else "/readyz"
    target = f"http://{place}{path}"
    try:
        with socket.create_connection((host.strip("[]"), int(port or 80)), timeout_s) as connection:
            status, body = _get(connection, place, path)
    except (OSError, ValueError, OverflowError) as error:
        return False, f"{target}: {error}"
    if 200 <= status < 300:
        return True, f"{target}: {status}"
    return False, f"{target}: {status} {_detail(body)}"


def _get(connection: socket.socket, place: str, path: str) -> tuple[int, bytes]:
    """Returns the status of an answer and its body, which nobody waits for where all is well."""
    head = f"Host: {place}\r\nAccept: */*\r\nConnection: close"
    connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())  # websockets answers no HTTP/1.0
    with connection.makefile("rb") as answer:
        first = answer.readline(MOST_BYTES)
        if not (status := STATUS.match(first)):
            raise ValueError(f"{first[:80]!r} is no answer by HTTP")
        if status[1].startswith(b"2"):
            return int(status[1]), b""
        return int(status[1]), answer.read(MOST_BYTES).partition(b"\r\n\r\n")[2]


def _detail(body: bytes) -> str:
    import json  # a service that is ready needs none of it

    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]


if __name__ == "__main__":
    sys.exit(main())
