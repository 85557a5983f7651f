"""Tasks for administrators of machines: host setup, fleet, support archives, clusters."""

from __future__ import annotations

from pathlib import Path

from vlalab.commands import cluster as clusters
from vlalab.commands import fleet as fleets
from vlalab.commands import host_setup, tokens
from vlalab.commands import support as supporting
from vlalab.host import paths
from vlalab.host.console import LabError
from vlalab.host.shared_code import option
from vlalab.tasks.flags import positional
from vlalab.tasks.task import finish, task
from vlalab.tasks.teach import class_ as class_

ABSOLUTE = {
    "pattern": r'/[^\n"\\]*[^\n"\\/]',
    "expected": "an absolute path, for example /srv/vla-lab",
    "metavar": "DIRECTORY",
}
HOSTS_HELP = "machines, for example gpu01 or anna@gpu01:2222"
JSON = option(False, "print JSON instead of a table")


@task("set up machines", "./lab doctor")
def host(
    action: str = positional(help="setup", kind="one of", keywords=("setup",)),
    hosts: list[str] = option((), HOSTS_HELP, default_help="this machine"),
    inventory: str | None = option(None, "Ansible inventory file", kind="path", metavar="FILE"),
    check: bool = option(False, "Ansible's dry run: show what would change, change nothing"),
    only: list[str] = option((), f"run only these of the steps {', '.join(host_setup.STEPS)}", kind="one of",
                             keywords=host_setup.STEPS, default_help="all"),
    with_: list[str] = option(
        (), "driver: install NVIDIA's if none works; rootless: a Docker engine per user instead of group docker, "
        "which is equivalent to root", kind="one of", keywords=host_setup.EXTRAS,
    ),
    engine: str | None = option(None, "Docker packages: docker (upstream), distribution, or none", kind="one of",
                                keywords=host_setup.ENGINES, default_help="docker"),
    user: list[str] = option((), "users of the lab; created if missing", pattern=r"[a-z_][a-z0-9_-]{0,31}",
                             expected="a user name of a-z, 0-9, '_' and '-'", metavar="NAME"),
    volume: str | None = option(None, "shared directory with a subdirectory for each user", **ABSOLUTE),
    boot: list[str] = option((), "services to start at boot, as the first user", kind="service"),
    ca_bundle: str | None = option(None, "certificate (PEM) of this network's authority, to trust on the machines",
                                   kind="path", metavar="FILE"),
    from_: str | None = option(None, "repository to clone the lab from", default_help="this clone's origin"),
    lab: str | None = option(None, "the lab's directory on the machines",
                             default_help=f"{fleets.INSTALL}; on this machine this clone", **ABSOLUTE),
    ask_password: bool = option(False, "ask for the sudo password"),
    set: list[str] = option((), "further settings of admin/defaults.yaml", metavar="NAME=VALUE,…"),
) -> None:  # fmt: skip
    """Set up Debian or Ubuntu machines for the lab. Repeating it is safe: it changes only what is missing.

    ./lab host setup --check                    this machine, without changes
    ./lab host setup --user anna,ben --volume /srv/vla-lab --boot oracle,ui
    ./lab host setup --hosts gpu01,gpu02 --with driver --ask-password
    """
    values = {"engine": engine, "volume": volume, "lab_root": lab, "lab_source": from_, "ca_bundle": ca_bundle}
    values = {name: value for name, value in values.items() if value} | host_setup.settings(set)
    values |= {"extras": list(with_), "users": list(user), "boot": list(boot)}
    selected = [fleets.read("--hosts", name) for name in hosts]
    finish(host_setup.run(host_setup.Setup(selected, inventory, values, list(only), check, ask_password)))


@task("query many machines", "./lab fleet status")
def fleet(
    action: str = positional(help=", ".join(fleets.COMMANDS), kind="one of", keywords=tuple(fleets.COMMANDS)),
    hosts: list[str] = option((), HOSTS_HELP),
    inventory: str | None = option(None, "Ansible inventory file", kind="path", metavar="FILE",
                                   default_help=f"variable {fleets.VARIABLE}"),
    lab: str | None = option(None, "the lab's directory on the machines",
                             default_help=f"the inventory's, else {fleets.INSTALL}", **ABSOLUTE),
    parallel: int = option(fleets.PARALLEL, "number of machines at a time", "[1, 256]"),
    timeout: float | None = option(None, "seconds per machine", "(0, inf)",
                                   default_help="60; 1800 to pull and restart"),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Run a command on several machines over SSH. Exit status 0: no problems, 1: warnings, 2: failures.

    ./lab fleet doctor --hosts gpu01,gpu02
    ./lab fleet status --inventory machines.yaml --json
    ./lab fleet pull --inventory machines.yaml     git pull, then update environments
    """
    selected = fleets.select([fleets.read("--hosts", name) for name in hosts], inventory, lab)
    finish(fleets.run(action, selected, parallel, timeout or fleets.TIMEOUT_S[action], json))


@task("tokens of a class", "./lab token list")
def token(
    action: str = positional("list", "add, remove or list", kind="one of", keywords=("add", "remove", "list")),
    name: str | None = positional(None, "for add and remove: the name of a student or program"),
    rate: float | None = option(None, "for add: requests per second", "(0, inf)", default_help="no limit"),
    concurrency: int = option(tokens.CONCURRENCY, "for add: requests in progress at once", "[1, 1000]"),
) -> None:
    """Give each student a token for the served policies: they take turns, and each sees only its own sessions.

    ./lab token add alice                prints the token, once
    ./lab token add robot --rate 20 --concurrency 1
    ./lab token remove alice             running services reject it within a second
    """
    if bool(name) == (action == "list"):
        problem = f"unexpected argument '{name}'" if name else f"token {action} requires NAME"
        raise LabError(f"{problem}. See: ./lab token --help")
    if action == "list":
        tokens.show()
    elif action == "add":
        tokens.add(str(name), rate, concurrency)
    else:
        tokens.remove(str(name))


@task("create support archive", "./lab doctor")
def support(
    out: str | None = option(None, "the file to write", default_help="a new file in the current directory"),
) -> None:
    """Write an archive for support requests: the doctor's findings, versions, settings, logs; no secrets.

    ./lab support
    """
    print(paths.display_path(supporting.write(Path(out).expanduser().absolute() if out else None)))


@task("Ray cluster for eval", "./lab eval libero_goal --cluster")
def cluster(
    action: str = positional(
        "status", "start a cluster, join one, show its status, or stop: leave it", kind="one of",
        keywords=("start", "join", "status", "stop")),
    head: str | None = positional(None, "for join: the head's address, HOST[:PORT]"),
    host: str | None = option(None, "this machine's address in the network; lets other machines join",
                              metavar="ADDRESS"),
    port: int = option(clusters.PORT, "for start: the head's port", "[1, 65535]"),
    cpus: int | None = option(None, "cores to offer, one per worker", "[0, inf)", default_help="all"),
    gpus: int | None = option(None, "GPUs to offer", "[0, inf)", default_help="all"),
    dashboard: int | None = option(None, "for start: port of Ray's dashboard", "[1, 65535]"),
    foreground: bool = option(False, "stay in the foreground, and leave the cluster at the end; for batch jobs"),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Manage a Ray cluster, over which ./lab eval SUITE --cluster distributes its workers.

    ./lab cluster start                            this machine only
    ./lab cluster start --host 192.168.1.10        allow other machines to join
    ./lab cluster join 192.168.1.10                on each of the others
    ./lab cluster status
    """
    if bool(head) != (action == "join"):
        problem = f"unexpected argument '{head}'" if head else "cluster join requires HEAD, the head's address"
        raise LabError(f"{problem}. See: ./lab cluster --help")
    offer = [f"--num-{name}={count}" for name, count in (("cpus", cpus), ("gpus", gpus)) if count is not None]
    if action == "start":
        clusters.start(host, port, offer, dashboard)
    elif head:
        clusters.join(head, host, offer)
    elif action == "status":
        clusters.show(json)
    elif not clusters.stop():
        raise LabError("this machine is not in a cluster")
    if foreground and action in ("start", "join"):
        clusters.stay()
