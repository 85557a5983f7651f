"""JupyterHub's configuration for a class. Everything that differs between classes is in its settings.json."""

import os
import shutil
import sys
from pathlib import Path

from hub import store
from hub.login import CodeAuthenticator
from hub.spawners import ContainerSpawner, SandboxSpawner, StudentSpawner

c = get_config()  # type: ignore[name-defined]  # noqa: F821  # JupyterHub defines it
directory, settings, secrets = store.directory(), store.read("settings.json"), store.read("secrets.json")

c.JupyterHub.bind_url = f"http://127.0.0.1:{settings['port']}/"
c.JupyterHub.hub_bind_url = settings["hub_url"]
c.JupyterHub.db_url = f"sqlite:///{directory}/hub.sqlite"
c.JupyterHub.upgrade_db = True  # an older database is copied, then migrated; `hub.admin check` refuses a newer one
c.JupyterHub.cookie_secret = bytes.fromhex(secrets["cookie"])

# The proxy is a process of its own, and servers outlive the hub: a restarted hub finds them again.
c.JupyterHub.cleanup_servers = False
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{settings['proxy_port']}"
c.ConfigurableHTTPProxy.auth_token = secrets["proxy"]

c.JupyterHub.authenticator_class = CodeAuthenticator
c.JupyterHub.template_paths = [str(Path(store.__file__).parent / "templates")]
c.Authenticator.allow_all = True  # all accounts of the class; nobody else can log in

StudentSpawner.settings = settings
c.JupyterHub.spawner_class = {"local": SandboxSpawner, "docker": ContainerSpawner}[settings["runtime"]]
c.DockerSpawner.network_name = settings.get("network", "")
c.DockerSpawner.use_internal_ip = c.DockerSpawner.remove = True
c.DockerSpawner.pull_policy = "never"
c.DockerSpawner.name_template = "vla-class-{username}"
c.JupyterHub.concurrent_spawn_limit = 0  # `hub.spawners` lets them wait on their own page instead of an error
c.Spawner.start_timeout = 900  # thirty servers on two cores
c.Spawner.http_timeout = 180
c.LocalProcessSpawner.interrupt_timeout = c.LocalProcessSpawner.term_timeout = 8
c.Spawner.default_url = "/lab"
c.Spawner.options_from_form = "simple"
c.Spawner.env_keep = []  # nothing of the hub's own

c.JupyterHub.services = [{"name": "lab", "api_token": secrets["api"]}]
scopes = ["admin:users", "admin:servers", "list:users", "read:hub"]
c.JupyterHub.load_roles = [{"name": "lab", "scopes": scopes, "services": ["lab"]}]
if settings["idle_min"]:
    idle_s = round(60 * settings["idle_min"])
    command = [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={idle_s}"]
    command.append(f"--cull-every={max(1, min(60, idle_s // 4))}")
    c.JupyterHub.services.append({"name": "idle-culler", "command": command})
    scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
    c.JupyterHub.load_roles.append({"name": "idle-culler", "scopes": scopes, "services": ["idle-culler"]})

if shutil.which("nvidia-smi"):
    variables = {name: os.environ[name] for name in ("VLALAB_CLASS", "PYTHONPATH")}
    command = [sys.executable, "-m", "hub.grants"]
    c.JupyterHub.services.append({"name": "gpu-watch", "command": command, "environment": variables})

extra = directory / "jupyterhub_extra.py"  # another login, docs/class.md
if extra.exists():
    if extra.stat().st_uid != os.geteuid() or extra.stat().st_mode & 0o022:
        raise PermissionError(f"{extra} must belong to you and be writable by nobody else")
    load_subconfig(str(extra))  # type: ignore[name-defined]  # noqa: F821
