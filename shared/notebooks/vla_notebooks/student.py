"""`python -m vla_notebooks.student --of ws_mdl`: a student's JupyterLab behind a class's JupyterHub.

The hub gives address, path and login as JUPYTERHUB_… variables. TensorBoard is on the launcher, behind the same login.
As a server extension: a busy kernel counts as activity, so that a long training without output is not stopped as idle.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tyro
from jupyter_server.serverapp import ServerApp
from tornado.ioloop import PeriodicCallback

from vla_common import entrypoint
from vla_common.volume import Volume
from vla_notebooks.__main__ import ServiceSettings, configure, settings
from vla_notebooks.home import copy_notebooks

BUSY_CHECK_MS = 10_000


def main() -> None:
    """Serve a student's notebooks until the hub stops this process."""
    server = tyro.cli(ServiceSettings, prog="python -m vla_notebooks.student")
    volume = Volume()
    copy_notebooks(server.of, volume)
    with tempfile.TemporaryDirectory(prefix="vlalab-notebook-") as directory:
        private = Path(directory)
        config = configure(class_settings(server, volume.notebooks, private), private)
        from jupyterhub.singleuser import main as serve  # reads the variables when it is imported

        serve(argv=[f"--config={config}"])


def class_settings(server: ServiceSettings, root: Path, private: Path) -> dict[str, dict[str, Any]]:
    """Return Jupyter's configuration; address and login are the hub's."""
    config = settings(server, root, private, public_url="")
    extensions = config["ServerApp"]["jpserver_extensions"]
    extensions |= {"jupyter_server_proxy": True, __spec__.name: True}
    if importlib.util.find_spec("tensorboard"):
        token = secrets.token_urlsafe(24)  # other students of this machine reach the port too
        command = [sys.executable, "-m", "services.ws_mdl.tensorboard", "--host", "127.0.0.1", "--port", "{port}"]
        config["ServerProxy"] = {
            "servers": {
                "tensorboard": {
                    "command": command,
                    "environment": {"VLALAB_TOKEN": token},
                    "request_headers_override": {"Authorization": f"Bearer {token}"},
                    "timeout": 120,
                    "launcher_entry": {"title": "TensorBoard"},
                }
            }
        }
    return config


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: ServerApp) -> None:
    kernels, state = server.kernel_manager, server.web_app.settings

    def note_busy() -> None:
        if any(kernels.get_kernel(name).execution_state == "busy" for name in kernels.list_kernel_ids()):
            state["api_last_activity"] = datetime.now(timezone.utc)

    PeriodicCallback(note_busy, BUSY_CHECK_MS).start()


if __name__ == "__main__":
    os.environ.pop("JUPYTER_TOKEN", None)
    entrypoint.run(main)
