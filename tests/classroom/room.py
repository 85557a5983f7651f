"""A class's directory on a volume, without a hub, and the sandbox of its students."""

import json
import os
import subprocess
import sys
from pathlib import Path

from vlalab.environments import venvs
from vlalab.host import paths

ROOT = paths.ROOT


class ClassDirectory:
    """A class's directory on a volume, and `hub.admin` over it."""

    def __init__(self, volume: Path, **settings):
        self.volume, self.path = volume, volume / "class"
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        defaults = {
            "runtime": "local",
            "volume": str(volume),
            "disk_gb": 0.1,
            "policy": "",
            "hub_url": "http://127.0.0.1:9",
        }
        (self.path / "settings.json").write_text(json.dumps({**defaults, **settings}))

    def admin(self, action, *arguments, code=0, **options):
        """Return what `hub.admin` printed."""
        variables = {**os.environ, "VLALAB_CLASS": str(self.path), "PYTHONPATH": paths.python_path()}
        command = [venvs.ensure("hub").python, "-m", "hub.admin", action, json.dumps(options), *map(str, arguments)]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def python(self, text):
        """Return what a piece of Python printed in the hub's environment."""
        variables = {**os.environ, "VLALAB_CLASS": str(self.path), "PYTHONPATH": paths.python_path()}
        command = [venvs.ensure("hub").python, "-c", text]
        return subprocess.run(command, env=variables, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def accounts(self):
        """Return the content of accounts.json by name."""
        return json.loads((self.path / "accounts.json").read_text())["accounts"]


def unmount(path):
    """Unmount all homes of a class."""
    for home in (path / "homes").glob("*"):
        if os.path.ismount(home):
            subprocess.run(["umount", "--lazy", home], check=True)


def spec_of(room, account, **changes):
    """Return the sandbox's specification of a student, as the spawner makes it."""
    code = [str(ROOT), str(Path(os.path.realpath(sys.executable)).parents[1])]
    return {
        "id": account["id"], "uid": account["uid"], "home": str(room.path / "homes" / account["id"]),
        "target": f"/home/{account['name']}", "hidden": ["/home", "/root", "/media", "/mnt"],
        "volume": str(room.volume), "code": [path for path in code if path != "/usr"],
        "shared": {"assets": str(room.volume / "assets")}, "memory_gb": 0.3, "cpus": 0.0, "processes": 60, "tmp_mb": 32,
        "gpu": False, "log": ".notebook.log", **changes,
    }  # fmt: skip


def sandboxed(spec, *command):
    """Return the command line that runs a command as a student."""
    return ["unshare", "--mount", "--ipc", sys.executable, "-I", ROOT / "hub/sandbox.py", json.dumps(spec), *command]
