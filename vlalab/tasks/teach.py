"""The task for teachers: a class on one server."""

from __future__ import annotations

from pathlib import Path

from vlalab.commands import classes
from vlalab.description import manifests
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.host.shared_code import option
from vlalab.runtimes import local
from vlalab.tasks.flags import positional
from vlalab.tasks.task import finish, task

# action → (what follows it, how many at least, at most)
ACTIONS = {
    "up": ("", 0, 0),
    "down": ("", 0, 0),
    "add": ("students.csv or names", 1, 1000),
    "list": ("", 0, 0),
    "reset": ("names", 1, 1000),
    "remove": ("names", 1, 1000),
    "restart": ("names", 1, 1000),
    "hand-out": ("files for the students' notebooks", 1, 1000),
    "collect": ("a path in the students' notebooks and a directory", 2, 2),
    "gpu": ("grant or revoke, and a name", 2, 2),
    "backup": ("a file to write", 1, 1),
    "restore": ("a file of `class backup`", 1, 1),
    "logs": ("", 0, 0),
    "unit": ("", 0, 0),
}


@task("run a class", "./lab class list", name="class")
def class_(
    action: str = positional(help=", ".join(ACTIONS), kind="one of", keywords=tuple(ACTIONS)),
    arguments: list[str] = positional(help="students, or a file", metavar="NAME … or FILE"),
    host: str | None = option(None, "for up: address to listen on", default_help="127.0.0.1", metavar="ADDRESS"),
    port: int | None = option(None, "for up: port; students cannot take one below 1024", "[1, 65535]",
                             default_help="880"),
    environments: list[str] | None = option(
        None, "for up: environments to choose from", kind="one of", keywords=tuple(manifests.notebooks()),
        default_help="the course's"),
    runtime: str | None = option(None, "for up: what servers are: processes or containers", kind="one of",
                                 keywords=("local", "docker"), default_help="local"),
    memory: float | None = option(None, "for up: GB per student; 0: no limit", "[0, inf)", default_help="4"),
    cpus: float | None = option(None, "for up: cores per student; 0: no limit", "[0, inf)", default_help="0"),
    processes: int | None = option(None, "for up: processes and threads per student", "[50, 100000]",
                                   default_help="400"),
    disk: float | None = option(None, "for up: GB of a new student's home; 0: no limit", "[0, inf)", default_help="5"),
    idle: float | None = option(None, "for up: minutes until idle notebooks stop; 0: never", "[0, inf)",
                                default_help="60"),
    policy: str | None = option(None, "for up: URL of the served policy, for which each student gets a token",
                                metavar="URL"),
    cert: str | None = option(None, "for up: certificate (PEM) for HTTPS", kind="path", metavar="FILE"),
    key: str | None = option(None, "for up: the certificate's key", kind="path", metavar="FILE"),
    hours: float | None = option(None, "for gpu grant: until the GPU is taken back", "(0, 1000]", default_help="2"),
    gb: float | None = option(None, "for gpu grant: GPU memory", "(0, 10000]", default_help="4"),
    gpu: int | None = option(None, "for gpu grant: its number", "[0, 64]", default_help="0"),
    keep_work: bool = option(False, "for remove: keep the student's files"),
) -> None:  # fmt: skip
    """Run a class on this server: each student logs in with a browser and gets JupyterLab in the course's environments.

    sudo ./lab class up --memory 8
    sudo ./lab class add students.csv > codes.csv     one-time codes; the first login sets a password
    sudo ./lab class list
    sudo ./lab class restart anna                     also if the server hangs
    sudo ./lab class gpu grant anna --hours 2 --gb 6
    sudo ./lab class hand-out lesson.ipynb
    sudo ./lab class collect exercises handed-in/
    sudo ./lab class backup /media/stick/class.tar
    """
    meaning, least, most = ACTIONS[action]
    if not least <= len(arguments) <= most:
        raise LabError(
            f"class {action} requires {meaning or 'no further words'}; got {' '.join(arguments) or 'nothing'}"
        )
    if keep_work and action != "remove":
        raise LabError("--keep-work is for class remove")
    changes = {
        "host": host, "port": port, "environments": environments, "runtime": runtime, "memory_gb": memory, "cpus": cpus,
        "processes": processes, "disk_gb": disk, "idle_min": idle, "policy": policy,
        "cert": cert and str(Path(cert).absolute()), "key": key and str(Path(key).absolute()),
    }  # fmt: skip
    grant = {"hours": hours, "gb": gb, "gpu": gpu}
    if any(value is not None for value in grant.values()) and (action, *arguments[:1]) != ("gpu", "grant"):
        raise LabError("--hours, --gb and --gpu are for class gpu grant NAME")
    if action == "gpu" and arguments[0] not in ("grant", "revoke"):
        raise LabError(f"class gpu requires grant or revoke and a name; got {' '.join(arguments)}")
    if action == "up":
        print(f"class at {classes.up(changes)}  (files in {paths.display_path(classes.directory())})")
        return
    if given := [name for name, value in changes.items() if value is not None]:
        raise LabError(f"class {action} takes no settings, got {', '.join(given)}; they are for class up")
    if action == "down":
        classes.down()
    elif action == "unit":
        print(classes.unit(), end="")
    elif action == "logs":
        local.follow_log(classes.HUB, 100, follow=False)
    else:
        finish(classes.admin(action, arguments, **grant, keep_work=keep_work or None))
