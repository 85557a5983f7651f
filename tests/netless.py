"""Starts a program that cannot see the machine's networks change: `python netless.py PROGRAM ARGUMENT …`.

Chromium closes the connections it is opening, those to 127.0.0.1 too, whenever an interface of the machine comes or
goes (net::ERR_NETWORK_CHANGED), as one does with every container that starts or stops. It learns of them through a
netlink socket and does without where it gets none: a seccomp filter refuses that kind of socket alone (seccomp(2)).
"""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # where struct seccomp_data has them, in bytes
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
# Of each machine: its AUDIT_ARCH number and the number of socket(2).
SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}


def refuse_netlink() -> None:
    """Refuses this process and all it starts a netlink socket. Raises OSError where the kernel has no such filters."""
    architecture, number = SOCKET[platform.machine()]
    program = b"".join(
        struct.pack("HBBI", *instruction)  # each jump says how many instructions to skip if equal, and if not
        for instruction in (
            (LOAD, 0, 0, ARCHITECTURE), (JUMP_IF_EQUAL, 0, 5, architecture),
            (LOAD, 0, 0, NUMBER), (JUMP_IF_EQUAL, 0, 3, number),
            (LOAD, 0, 0, FIRST_ARGUMENT), (JUMP_IF_EQUAL, 0, 1, socket.AF_NETLINK),
            (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW),
        )
    )  # fmt: skip
    instructions = ctypes.create_string_buffer(program, len(program))
    filtering = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filtering, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    if platform.machine() in SOCKET:
        refuse_netlink()
    os.execv(sys.argv[1], sys.argv[1:])
