"""A client whose server vanishes in mid-answer as a killed container does: the network is gone, no connection ends.

Run in a network namespace of its own, whose loopback is switched off. Prints how the call ended.
"""

import fcntl
import socket
import struct
import threading
import time

from vla_contract import PolicyClient, PolicyUnavailable
from vla_contract.client import transport
from vla_contract.server.serving import address, listen

SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
PATIENCE_S = 60.0  # for an answer, as of a slow policy


def switch_loopback(flags: int) -> None:
    """Sets the flags of interface `lo`."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags))


def vanish(listener: socket.socket) -> None:
    """Takes the network away once a request has come."""
    connection, _ = listener.accept()
    connection.recv(65536)
    time.sleep(0.2)  # the request is acknowledged
    switch_loopback(0)
    threading.Event().wait()


def main() -> None:
    transport.PROBE_AFTER_S, transport.PROBE_EVERY_S = 1, 1
    switch_loopback(IFF_UP)
    listener = listen("127.0.0.1", 0)
    threading.Thread(target=vanish, args=(listener,), daemon=True).start()
    began = time.monotonic()
    try:
        PolicyClient(address(listener), timeout_s=PATIENCE_S, deadline_s=PATIENCE_S, retries=0).info()
    except PolicyUnavailable as error:
        print(f"gave up {'early' if time.monotonic() - began < PATIENCE_S / 2 else 'late'}: {error}")


if __name__ == "__main__":
    main()
