"""Tasks of who looks after machines: make one ready, ask several, gather what a question needs."""

from __future__ import annotations

from pathlib import Path

from vlalab.commands import cluster as clusters
from vlalab.commands import fleet as fleets
from vlalab.commands import host_setup, machines
from vlalab.commands import support as supporting
from vlalab.commands.machines import VARIABLE
from vlalab.description import compose
from vlalab.host import paths
from vlalab.host.console import LabError, require_known
from vlalab.tasks.flags import Flag, finish, task, word, words
from vlalab.tasks.values import Checked, Existing, Like, Number, OneOf, Several, Text, split

USER = Like(r"[a-z_][a-z0-9_-]{0,31}", "a user's name: a-z, 0-9, '_' and '-'", "NAME")
FOLDER = Like(r"/[^\n\"\\]*[^\n\"\\/]", "a folder's absolute path, as /srv/vla-lab", "FOLDER")
HOSTS = Flag("hosts", "machines, as gpu01 or anna@gpu01:2222", Several(Checked(machines.read)), default=())
INVENTORY = Flag("inventory", "file that names them, as Ansible has it", Existing(shown="FILE"))
LAB = Flag("lab", "where the lab lies there", FOLDER, default_help=f"what the inventory says, else {machines.INSTALL}")


def _service(label: str, text: str) -> str:
    require_known(label, [text], [name for name, one in compose.read().items() if one.role != "job"])
    return text


@task(
    "make a machine ready",
    lambda: [
        word("action", "setup", OneOf(("setup",))),
        HOSTS.replace(default_help="this machine"),
        INVENTORY,
        Flag("check", "Ansible's dry run: show what would change, change nothing", default=False),
        Flag(
            "only",
            f"some of the steps {', '.join(host_setup.STEPS)}",
            Several(OneOf(host_setup.STEPS)),
            default_help="all",
        ),
        Flag(
            "with",
            "driver: install NVIDIA's where none works; rootless: an engine for each user, instead of group docker, "
            "which is as good as root",
            Several(OneOf(host_setup.EXTRAS)),
            default=(),
        ),
        Flag(
            "engine", "Docker's packages, the distribution's, or none", OneOf(host_setup.ENGINES), default_help="docker"
        ),
        Flag("user", "who works with the lab; made where missing", Several(USER), default=()),
        Flag("volume", "shared folder, in which every user has one of their own", FOLDER),
        Flag(
            "boot", "services that start with the machine, as the first user's", Several(Checked(_service)), default=()
        ),
        Flag("ca-bundle", "certificate (PEM) of this network's authority, to be trusted there", Existing(shown="FILE")),
        Flag("from", "address that the lab is cloned from", default_help="this clone's origin"),
        LAB.replace(default_help=f"{machines.INSTALL}, and on this machine this clone"),
        Flag("ask-password", "ask for sudo's password", default=False),
        Flag("set", "further settings of admin/defaults.yaml", Several(shown="NAME=VALUE,…"), default=()),
    ],
)
def host(
    action: str,
    hosts: list,
    inventory: str | None,
    check: bool,
    only: list[str] | None,
    ask_password: bool,
    **given: object,
) -> None:
    """Make a bare Debian or Ubuntu machine ready; run again it changes nothing.

    ./lab host setup --check                             this machine; change nothing yet
    ./lab host setup --user anna,ben --volume /srv/vla-lab --boot oracle,ui
    ./lab host setup --hosts gpu01,gpu02 --with driver --ask-password
    """
    values = host_setup.values(given)
    finish(host_setup.set_up(host_setup.Setup(list(hosts), inventory, values, only or [], check, ask_password)))


@task(
    "ask several machines",
    lambda: [
        word("action", ", ".join(fleets.COMMANDS), OneOf(tuple(fleets.COMMANDS))),
        HOSTS,
        INVENTORY.replace(default_help=f"variable {VARIABLE}"),
        LAB,
        Flag("parallel", "how many are asked at once", Number("[1, 256]"), default=fleets.PARALLEL),
        Flag(
            "timeout",
            "seconds that one may take",
            Number("(0, inf)", float),
            default_help="60; 1800 to pull and restart",
        ),
        Flag("json", "print JSON instead of a table", default=False),
    ],
)
def fleet(
    action: str, hosts: list, inventory: str | None, lab: str | None, parallel: int, timeout: float | None, json: bool
) -> None:
    """Ask several machines over SSH at once. Ends with 0: all well, 1: warnings, 2: one failed or gave no answer.

    ./lab fleet doctor --hosts gpu01,gpu02
    ./lab fleet status --inventory machines.yaml --json
    ./lab fleet pull --inventory machines.yaml     git pull, then the environments that are there
    """
    chosen = machines.chosen(list(hosts), inventory, lab)
    finish(fleets.run(action, chosen, parallel, timeout or fleets.timeout_s(action), json))


@task("archive for a question", lambda: [Flag("out", "the file to write", default_help="one beside you")])
def support(out: str | None) -> None:
    """Gather what somebody who helps asks for: the doctor's findings, versions, settings, logs; no secrets.

    ./lab support
    """
    print(paths.shown(supporting.write(Path(out).expanduser().absolute() if out else None)))


ACTIONS = {"start": "a new one", "join": "the one whose head is HEAD", "status": "its machines", "stop": "leave it"}


@task(
    "machines for eval",
    lambda: [
        words("words", ", ".join(f"{name}: {what}" for name, what in ACTIONS.items()), Text("ACTION [HEAD]")).replace(
            default=""
        ),
        Flag("host", "this machine's address for the others, and opens the head to them", Text("ADDRESS")),
        Flag("port", "of the head, to start it", Number("[1, 65535]"), default=clusters.PORT),
        Flag("cpus", "cores to offer, each for one worker; 0: none", Number("[0, inf)"), default_help="all"),
        Flag("gpus", "GPUs to offer", Number("[0, inf)"), default_help="all"),
        Flag("dashboard", "have Ray's dashboard at that port of the head, to start it", Number("[1, 65535]")),
        Flag("stay", "stay in front until told to end, and leave then: for batch jobs and containers", default=False),
        Flag("json", "print JSON instead of a table", default=False),
    ],
)
def cluster(
    words: str,
    host: str | None,
    port: int,
    cpus: int | None,
    gpus: int | None,
    dashboard: int | None,
    stay: bool,
    json: bool,
) -> None:
    """Make machines one cluster (Ray), over which ./lab eval SUITE --cluster spreads its workers.

    ./lab cluster start                            on this machine alone
    ./lab cluster start --host 192.168.1.10        so that others can join
    ./lab cluster join 192.168.1.10                on each of the others
    ./lab cluster status
    """
    action, *rest = split(words) or ["status"]
    require_known("action", [action], ACTIONS)
    if len(rest) != (action == "join"):
        many = f"'{rest[-1]}' is a word too many" if rest else "join needs HEAD, the head's address"
        raise LabError(f"{many}. See: ./lab cluster --help")
    offer = clusters.Offer(cpus, gpus)
    if action == "start":
        clusters.start(host, port, offer, dashboard)
    elif action == "join":
        clusters.join(rest[0], host, offer)
    elif action == "status":
        clusters.show(json)
    elif not clusters.stop():
        raise LabError("this machine is in no cluster")
    if stay and action in ("start", "join"):
        clusters.stay()
