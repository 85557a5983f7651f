"""Tasks of who looks after machines: make one ready, ask several, gather what a question needs."""

from __future__ import annotations

from pathlib import Path

from vlalab.commands import cluster as clusters
from vlalab.commands import fleet as fleets
from vlalab.commands import host_setup, machines
from vlalab.commands import support as supporting
from vlalab.host import paths
from vlalab.host.borrowed import option
from vlalab.host.console import LabError
from vlalab.tasks.flags import positional
from vlalab.tasks.task import finish, task

ABSOLUTE = {"pattern": r'/[^\n"\\]*[^\n"\\/]', "expected": "an absolute path, as /srv/vla-lab", "metavar": "FOLDER"}
HOSTS = option((), "machines, as gpu01 or anna@gpu01:2222")
INVENTORY = option(
    None, "file that names them, as Ansible has it", kind="path", metavar="FILE",
    default_help=f"variable {machines.VARIABLE}",
)  # fmt: skip
JSON = option(False, "print JSON instead of a table")


@task("make a machine ready", "./lab doctor")
def host(
    action: str = positional(help="setup", kind="one of", keywords=("setup",)),
    hosts: list[str] = option((), "machines, as gpu01 or anna@gpu01:2222", default_help="this machine"),
    inventory: str | None = option(None, "file that names them, as Ansible has it", kind="path", metavar="FILE"),
    check: bool = option(False, "Ansible's dry run: show what would change, change nothing"),
    only: list[str] = option((), f"some of the steps {', '.join(host_setup.STEPS)}", kind="one of",
                             keywords=host_setup.STEPS, default_help="all"),
    with_: list[str] = option(
        (), "driver: install NVIDIA's where none works; rootless: an engine for each user, instead of group docker, "
        "which is as good as root", kind="one of", keywords=host_setup.EXTRAS,
    ),
    engine: str | None = option(None, "Docker's packages, the distribution's, or none", kind="one of",
                                keywords=host_setup.ENGINES, default_help="docker"),
    user: list[str] = option((), "who works with the lab; made where missing", pattern=r"[a-z_][a-z0-9_-]{0,31}",
                             expected="a user's name: a-z, 0-9, '_' and '-'", metavar="NAME"),
    volume: str | None = option(None, "shared folder, in which every user has one of their own", **ABSOLUTE),
    boot: list[str] = option((), "services that start with the machine, as the first user's", kind="service"),
    ca_bundle: str | None = option(None, "certificate (PEM) of this network's authority, to be trusted there",
                                   kind="path", metavar="FILE"),
    from_: str | None = option(None, "address that the lab is cloned from", default_help="this clone's origin"),
    lab: str | None = option(None, "where the lab lies there",
                             default_help=f"{machines.INSTALL}, and on this machine this clone", **ABSOLUTE),
    ask_password: bool = option(False, "ask for sudo's password"),
    set: list[str] = option((), "further settings of admin/defaults.yaml", metavar="NAME=VALUE,…"),
) -> None:  # fmt: skip
    """Make a bare Debian or Ubuntu machine ready; run again it changes nothing.

    ./lab host setup --check                    this machine; change nothing yet
    ./lab host setup --user anna,ben --volume /srv/vla-lab --boot oracle,ui
    ./lab host setup --hosts gpu01,gpu02 --with driver --ask-password
    """
    values = {"engine": engine, "volume": volume, "lab_root": lab, "lab_source": from_, "ca_bundle": ca_bundle}
    values = {name: value for name, value in values.items() if value} | host_setup.settings(set)
    values |= {"extras": list(with_), "users": list(user), "boot": list(boot)}
    selected = [machines.read("--hosts", name) for name in hosts]
    finish(host_setup.run(host_setup.Setup(selected, inventory, values, list(only), check, ask_password)))


@task("ask several machines", "./lab fleet status")
def fleet(
    action: str = positional(help=", ".join(fleets.COMMANDS), kind="one of", keywords=tuple(fleets.COMMANDS)),
    hosts: list[str] = HOSTS,
    inventory: str | None = INVENTORY,
    lab: str | None = option(None, "where the lab lies there",
                             default_help=f"what the inventory says, else {machines.INSTALL}", **ABSOLUTE),
    parallel: int = option(fleets.PARALLEL, "how many are asked at once", "[1, 256]"),
    timeout: float | None = option(None, "seconds that one may take", "(0, inf)",
                                   default_help="60; 1800 to pull and restart"),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Ask several machines over SSH at once. Ends with 0: all well, 1: warnings, 2: one failed or gave no answer.

    ./lab fleet doctor --hosts gpu01,gpu02
    ./lab fleet status --inventory machines.yaml --json
    ./lab fleet pull --inventory machines.yaml     git pull, then the environments that are there
    """
    selected = machines.select([machines.read("--hosts", name) for name in hosts], inventory, lab)
    finish(fleets.run(action, selected, parallel, timeout or fleets.TIMEOUT_S[action], json))


@task("archive for a question", "./lab doctor")
def support(out: str | None = option(None, "the file to write", default_help="one beside you")) -> None:
    """Gather what somebody who helps asks for: the doctor's findings, versions, settings, logs; no secrets.

    ./lab support
    """
    print(paths.shown(supporting.write(Path(out).expanduser().absolute() if out else None)))


@task("machines for eval", "./lab eval libero_goal --cluster")
def cluster(
    action: str = positional("status", "start: a new one, join: the one whose head is HEAD, status: its machines, stop: "
                       "leave it", kind="one of", keywords=("start", "join", "status", "stop")),
    head: str | None = positional(None, "with join: the head's address, HOST[:PORT]"),
    host: str | None = option(None, "this machine's address for the others, and opens the head to them",
                              metavar="ADDRESS"),
    port: int = option(clusters.PORT, "of the head, to start it", "[1, 65535]"),
    cpus: int | None = option(None, "cores to offer, each for one worker; 0: none", "[0, inf)", default_help="all"),
    gpus: int | None = option(None, "GPUs to offer", "[0, inf)", default_help="all"),
    dashboard: int | None = option(None, "have Ray's dashboard at that port of the head, to start it", "[1, 65535]"),
    stay: bool = option(False, "stay in front until told to end, and leave then: for batch jobs and containers"),
    json: bool = JSON,
) -> None:  # fmt: skip
    """Make machines one cluster (Ray), over which ./lab eval SUITE --cluster spreads its workers.

    ./lab cluster start                            on this machine alone
    ./lab cluster start --host 192.168.1.10        so that others can join
    ./lab cluster join 192.168.1.10                on each of the others
    ./lab cluster status
    """
    if bool(head) != (action == "join"):
        problem = f"'{head}' is a word too many" if head else "join needs HEAD, the head's address"
        raise LabError(f"{problem}. See: ./lab cluster --help")
    offer = [f"--num-{name}={count}" for name, count in (("cpus", cpus), ("gpus", gpus)) if count is not None]
    if action == "start":
        clusters.start(host, port, offer, dashboard)
    elif head:
        clusters.join(head, host, offer)
    elif action == "status":
        clusters.show(json)
    elif not clusters.stop():
        raise LabError("this machine is in no cluster")
    if stay and action in ("start", "join"):
        clusters.stay()
