"""The browser that tests drive is not told of networks that come and go, as those of other tests' containers do."""

import platform
import subprocess
import sys

import pytest

from tests import netless

TRY = """
import socket
socket.create_server(("127.0.0.1", 0)).close()
socket.socket(socket.AF_UNIX).close()
try:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    print("watches")
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(platform.machine() not in netless.SOCKET, reason="the filter is written for x86_64 and aarch64")
def test_a_program_gets_no_netlink_socket_and_every_other():
    through = [sys.executable, "-I", "-S", netless.__file__]
    program = [sys.executable, "-c", TRY]
    answers = [
        subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        for command in ([*through, *program], program)
    ]
    assert answers == ["refused", "watches"]
