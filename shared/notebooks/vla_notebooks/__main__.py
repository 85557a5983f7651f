"""`python -m vla_notebooks --of libero`: JupyterLab over the volume's notebooks directory, behind a token."""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tyro

from vla_common import entrypoint
from vla_common.serving import Serving
from vla_common.volume import Volume
from vla_contract.server.auth import BIND, open_addresses, token_for
from vla_contract.server.hosts import allowed_names
from vla_contract.server.public import PATHS, page_url
from vla_notebooks.home import copy_notebooks

log = logging.getLogger("vla_notebooks")
NEWS = "@jupyterlab/apputils-extension:announcements"  # asks whether to show news, also without network
IDLE_MIN = "VLALAB_NOTEBOOK_IDLE_MIN"  # minutes after which an idle kernel is stopped; 0: never
UID_MAP = Path("/proc/self/uid_map")  # lines of: first uid inside, first outside, how many (user_namespaces(7))


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Serving):
    """JupyterLab, in which the course's notebooks run.

    Files are in notebooks/ on the volume ($VLALAB_VOLUME); missing notebooks of the project are copied there. A
    notebook runs code, so a token is always required: $VLALAB_TOKEN, else a random one, printed with the address.
    """

    of: str  # a directory of services/ with notebooks
    port: int = 8888  # 0: any free port, printed to the log
    allow_root: bool = False  # allow running as root: notebooks can then do anything


def main() -> None:
    """Serve notebooks until SIGINT or SIGTERM."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    server = tyro.cli(ServiceSettings, prog="python -m vla_notebooks")
    if is_root() and not server.allow_root:
        raise ValueError(
            "notebooks must not run as root: anyone with the token could do anything on this machine; start the lab as "
            "another user, or in Docker"
        )
    token = token_for(server.host)
    volume = Volume()
    copy_notebooks(server.of, volume)
    with tempfile.TemporaryDirectory(prefix="vlalab-notebook-") as directory:
        run(server, token, volume.notebooks, Path(directory))


def is_root() -> bool:
    """Return whether this process is root on the host. In a rootless container uid 0 is an ordinary user."""
    return os.geteuid() == 0 and any(line.split()[:2] == ["0", "0"] for line in UID_MAP.read_text().splitlines())


def run(server: ServiceSettings, configured_token: str | None, root: Path, private: Path) -> None:
    """Serve the files of `root`; Jupyter's settings, sockets and histories are in `private`."""
    token = configured_token or secrets.token_urlsafe(24)
    os.environ["JUPYTER_TOKEN"] = token  # not on the command line
    public = page_url(server.of if server.of in PATHS else f"{server.of}_notebook")
    config = configure(settings(server, root, private, public), private)
    from jupyterlab.labapp import LabApp  # reads the variables when it is imported

    host = os.environ.get(BIND) or server.host  # where compose.yaml publishes the port, else where it listens
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    url = public or f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
    log.info("notebooks: %s/lab%s  (files in %s)", url, "" if configured_token else f"?token={token}", root)
    if configured_token:
        log.info("notebooks: log in with the value of VLALAB_TOKEN")
    LabApp.launch_instance(argv=[f"--config={config}"])


def configure(settings: dict[str, dict[str, Any]], private: Path) -> Path:
    """Write Jupyter's and the kernels' settings to `private`, set the variables that name it; return the file."""
    os.environ.update(
        JUPYTER_NO_CONFIG="1",
        JUPYTER_PREFER_ENV_PATH="1",
        IPYTHONDIR=str(private / "ipython"),
        **{f"JUPYTER_{name.upper()}_DIR": str(private / name) for name in ("config", "data", "runtime")},
    )
    config, profile = private / "settings.json", private / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    config.write_text(json.dumps(settings))
    kernels = {"IPKernelApp": {"extra_extensions": ["vla_notebooks.kernel"]}}
    (profile / "ipython_kernel_config.json").write_text(json.dumps(kernels))
    (private / "page_config.json").write_text(json.dumps({"disabledExtensions": {NEWS: True}}))
    return config


def settings(server: ServiceSettings, root: Path, private: Path, public_url: str) -> dict[str, dict[str, Any]]:
    """Return Jupyter's configuration. It disables all requests to the internet: news, updates, extensions.

    public_url: of these notebooks, "" without one. A kernel keeps its memory, also a GPU's, after its tab is closed:
    idle kernels are stopped, busy ones never.
    """
    idle_s = 60 * idle_minutes()
    public = urlsplit(public_url)
    extensions = {"jupyterlab": True, "jupyter_server_terminals": True, "vla_notebooks.connection": bool(public.path)}
    # The second and third are names of its container, which the site uses.
    names = ["localhost", server.of, f"{server.of}_notebook", *allowed_names(), public.hostname or ""]
    return {
        "MappingKernelManager": {
            "cull_idle_timeout": round(idle_s),
            "cull_interval": max(1, min(60, round(idle_s / 4))),
            "cull_connected": True,
            "cull_busy": False,
        },
        "ServerApp": {
            "ip": server.host,
            "port": server.port,
            "port_retries": 0,  # another port would not be published
            "open_browser": False,
            "root_dir": str(root),
            "allow_root": True,  # checked by check_user, which knows namespaces
            "answer_yes": True,  # an interrupt stops it without a question
            "kernel_websocket_connection_class": "vla_notebooks.connection.KernelConnection",
            "jpserver_extensions": extensions,
            "base_url": f"{public.path}/",
            "allow_remote_access": bool(open_addresses(server.host)),  # else it checks Host
            "local_hostnames": names,
        },
        "IdentityProvider": {"secure_cookie": True} if public.netloc else {},  # the proxy terminates TLS
        "FileContentsManager": {"preferred_dir": server.of},  # the file browser opens there
        "LabApp": {
            "app_settings_dir": str(private),  # page_config.json is there
            "news_url": None,
            "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
            "extension_manager": "readonly",
        },
    }


def idle_minutes() -> float:
    """Return the idle minutes after which a kernel is stopped. Raises ValueError for anything but a number >= 0."""
    text = os.environ.get(IDLE_MIN) or "120"
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < float("inf"):
        raise ValueError(f"{IDLE_MIN} must be a number of minutes, 0 or more (0: never), got {text!r}")
    return minutes


if __name__ == "__main__":
    entrypoint.run(main)
