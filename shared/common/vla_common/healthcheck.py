"""`python -m vla_common.healthcheck URL`: exit status 0 when the service is ready, 1 with the reason when not.

Imports little of the standard library: a new process checks each service every few seconds, and importing
`http.client` would take longer than the check.
"""

import argparse
import re
import socket
import sys

URL = re.compile(r"http://((\[[^\]]+\]|[^/:]+)(?::(\d+))?)(/.*)?")  # host and port, each of both, path
STATUS = re.compile(rb"HTTP/1\.\d (\d{3}) ")
MAX_BYTES = 1 << 16  # of the response of a service that is not ready


def main(arguments: list[str] | None = None) -> int:
    """Check a service and print one line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m vla_common.healthcheck", description=main.__doc__)
    parser.add_argument("url", help="for example http://127.0.0.1:8001; its path is /readyz unless the URL has one")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds")
    options = parser.parse_args(arguments)
    ready, text = check(options.url, options.timeout)
    printable = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    print(printable, file=sys.stdout if ready else sys.stderr)
    return 0 if ready else 1


def check(url: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether the service is ready, and its response as text."""
    if not (match := URL.fullmatch(url)):
        return False, f"{url!r} is not a URL; expected for example http://127.0.0.1:8001"
    authority, host, port, path = match.groups()
    path = path if path not in (None, "/") else "/readyz"
    target = f"http://{authority}{path}"
    try:
        with socket.create_connection((host.strip("[]"), int(port or 80)), timeout_s) as connection:
            status, body = _get(connection, authority, path)
    except (OSError, ValueError, OverflowError) as error:
        return False, f"{target}: {error}"
    if 200 <= status < 300:
        return True, f"{target}: {status}"
    import json  # not needed for a service that is ready

    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = body.decode(errors="replace")[:200]
    return False, f"{target}: {status} {detail}"


def _get(connection: socket.socket, authority: str, path: str) -> tuple[int, bytes]:
    """Return the status of a response and its body; the body is not read if the status is 2xx."""
    head = f"Host: {authority}\r\nAccept: */*\r\nConnection: close"
    connection.sendall(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())  # websockets requires HTTP/1.1
    with connection.makefile("rb") as answer:
        first = answer.readline(MAX_BYTES)
        if not (status := STATUS.match(first)):
            raise ValueError(f"{first[:80]!r} is not an HTTP response")
        if status[1].startswith(b"2"):
            return int(status[1]), b""
        return int(status[1]), answer.read(MAX_BYTES).partition(b"\r\n\r\n")[2]


if __name__ == "__main__":
    sys.exit(main())
