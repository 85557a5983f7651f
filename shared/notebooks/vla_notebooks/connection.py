"""The server's side of a notebook: a kernel that was killed, for memory above all, leaves a message in its cell.

As a server extension: `/api` answers health checks also if the server has a public base path.
"""

from __future__ import annotations

import functools
import signal
import subprocess
from typing import Any

from jupyter_server.base.handlers import APIVersionHandler
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection

from vla_common import memory

last_oom_kills = memory.oom_kills()


class KernelConnection(ZMQChannelsWebsocketConnection):  # type: ignore[misc]  # jupyter_server is not installed here
    """A browser's connection to a kernel. `on_kernel_restarted` is called before a dead kernel is started again."""

    last_output: list[Any] | None = None

    def handle_outgoing_message(self, stream: Any, outgoing_msg: list[Any]) -> None:
        """Pass a message on; the kernel's last output tells which cell was running when it died."""
        if getattr(stream, "channel", stream) == "iopub":
            self.last_output = outgoing_msg
        super().handle_outgoing_message(stream, outgoing_msg)

    def on_kernel_restarted(self) -> None:
        """Write why the kernel died into the log and below the running cell."""
        if (message := death_message(self.kernel_manager.provisioner.process)) and self.last_output:
            _, (_, _, parent, *_) = self.session.feed_identities(self.last_output)
            self.write_stderr(message, self.session.unpack(parent))
        super().on_kernel_restarted()


@functools.lru_cache(maxsize=16)  # each tab of a notebook has a connection
def death_message(process: subprocess.Popen[bytes]) -> str | None:
    """Return why a kernel's process was killed (SIGKILL), None for another end: for memory, if that count has risen."""
    global last_oom_kills
    before, last_oom_kills = last_oom_kills, memory.oom_kills()
    if process.returncode != -signal.SIGKILL:
        return None
    lost = "its variables are gone. Use less data, or shut down other notebooks' kernels (the tab ■ on the left)"
    korean = "변수가 모두 사라졌습니다. data를 줄이거나 다른 notebook의 kernel을 끄세요(왼쪽의 ■ tab)."
    limit = f"{memory.limit_gb():.1f} GB"
    if last_oom_kills > before:
        return (
            f"This kernel was killed because memory ran out ({limit} for all kernels together); {lost}.\n"
            f"메모리가 모자라 kernel이 종료되었습니다(kernel 모두 합해 {limit}). {korean}"
        )
    return f"This kernel was killed from outside (SIGKILL); {lost}.\nkernel이 밖에서 종료되었습니다(SIGKILL). {korean}"


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: ServerApp) -> None:
    server.web_app.add_handlers(".*$", [("/api", APIVersionHandler)])
