"""A class with the Docker runtime: students' servers are containers with what compose.yaml gives services."""

import json
import re
import urllib.error
import urllib.request

import pytest

from tests.classroom.room import unmount
from tests.ports import free_ports
from vlalab.commands import classes
from vlalab.engine import docker
from vlalab.environments import venvs

pytestmark = pytest.mark.docker
LIMITS = ("--memory", "1", "--cpus", "1", "--processes", "200", "--disk", "0.2", "--idle", "0")
OF_COMPOSE = ("ReadonlyRootfs", "CapDrop", "SecurityOpt", "ShmSize", "Tmpfs", "LogConfig", "Init")


class Room:
    """A class with two students, and the hub's API."""

    def __init__(self, lab, volume):
        self.lab, self.volume, self.path = lab, volume, volume / "class"
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"

    def __call__(self, *words):
        """Return what a `./lab` command printed."""
        return self.lab(*words, VLALAB_VOLUME=str(self.volume)).text

    def account(self, name):
        return json.loads((self.path / "accounts.json").read_text())["accounts"][name]

    def container(self, name):
        """Return what the engine says about a student's container."""
        return docker.parse_json(docker.run(["inspect", f"vla-class-{self.account(name)['id']}"]).stdout)[0]

    def inside(self, name, *command):
        """Return what a command in a student's container printed; "" if it failed."""
        return docker.run(["exec", self.container(name)["Id"], *command], check=False).stdout.strip()

    def ask(self, path, token, method="GET"):
        """Return the status of a request and its JSON."""
        request = urllib.request.Request(self.url + path, b"{}", {"Authorization": f"token {token}"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            return error.code, None

    def start(self, name):
        """Start a student's server as the admin, and return the token that it has."""
        api = json.loads((self.path / "secrets.json").read_text())["api"]
        assert self.ask(f"/hub/api/users/{name}", api, "POST")[0] in (201, 409)
        self("class", "restart", name)  # waits until it is ready
        return dict(line.split("=", 1) for line in self.container(name)["Config"]["Env"])["JUPYTERHUB_API_TOKEN"]


@pytest.fixture(scope="module")
def room(lab, builds, tmp_path_factory):
    builds.get("ws_mdl")
    venvs.ensure("hub")
    volume = tmp_path_factory.mktemp("volume")
    (volume / "assets").mkdir()
    (volume / "assets" / "shared.txt").write_text("shared")
    made = Room(lab, volume)
    try:
        made("class", "up", "--runtime", "docker", "--port", made.url.rpartition(":")[2], *LIMITS)
        made("class", "add", "anna", "ben")
        made.tokens = {name: made.start(name) for name in ("anna", "ben")}
        yield made
    finally:
        lab("class", "down", check=False, VLALAB_VOLUME=str(volume))
        docker.run(["network", "rm", classes.NETWORK], check=False)
        unmount(made.path)


def test_a_students_container_is_as_compose_describes_a_service(room, lab):
    service = json.loads((room.path / "settings.json").read_text())["containers"]["ws_mdl"]
    project = lab.variables() | {"VLALAB_VOLUME": str(room.volume)}
    docker.compose(["create", "--no-build", "ws_mdl"], variables=project)
    names = docker.run(docker.compose_args(["ps", "--all", "--quiet", "ws_mdl"]), variables=project).stdout.split()
    try:
        theirs = docker.parse_json(docker.run(["inspect", *names]).stdout)[0]["HostConfig"]
    finally:
        docker.run(["rm", "--force", *names])
    ours, account = room.container("anna"), room.account("anna")
    assert {name: ours["HostConfig"][name] for name in OF_COMPOSE} == {name: theirs[name] for name in OF_COMPOSE}
    assert (
        ours["Config"]["User"] == f"{account['uid']}:{account['uid']}" and ours["Config"]["Image"] == service["image"]
    )
    limits = {name: ours["HostConfig"][name] for name in ("Memory", "MemorySwap", "NanoCpus", "PidsLimit")}
    assert limits == {"Memory": 10**9, "MemorySwap": 10**9, "NanoCpus": 10**9, "PidsLimit": 200}
    assert not ours["HostConfig"]["DeviceRequests"] and not ours["HostConfig"]["Privileged"]
    assert "Healthcheck" not in ours["Config"]  # the hub asks


def test_a_student_works_in_a_home_of_their_own_and_reaches_no_other(room):
    for name, other in (("anna", "ben"), ("ben", "anna")):
        assert room.ask(f"/user/{name}/api/status", room.tokens[name])[0] == 200
        assert room.ask(f"/user/{name}/api/status", room.tokens[other])[0] == 403
        assert room.inside(name, "ls", "/home") == name
    room.inside("anna", "sh", "-c", "echo work > $HOME/work.txt")
    work = room.path / "homes" / room.account("anna")["id"] / "work.txt"
    assert work.read_text() == "work\n" and work.stat().st_uid == room.account("anna")["uid"]
    assert (work.parent / "notebooks" / "ws_mdl").is_dir()
    assert room.inside("anna", "sh", "-c", "cat $HOME/assets/shared.txt") == "shared"
    for path in ("/root-file", "$HOME/assets/mine", "/opt/vla-lab/services/__init__.py"):
        assert room.inside("anna", "sh", "-c", f"echo x >> {path} && echo written") == ""
    address = room.container("ben")["NetworkSettings"]["Networks"][classes.NETWORK]["IPAddress"]
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3); print('connected')"
    settings = json.loads((room.path / "settings.json").read_text())
    assert room.inside("anna", "python", "-c", connect, settings["hub_ip"], str(settings["hub_port"])) == "connected"
    assert room.inside("anna", "python", "-c", connect, address, "8888") == ""


def test_restart_grades_and_down_take_containers_too(room):
    before = room.container("anna")["Id"]
    docker.run(["pause", before])
    assert "anna: restarted" in room("class", "restart", "anna") and room.container("anna")["Id"] != before
    assert room.inside("anna", "sh", "-c", "cat $HOME/work.txt") == "work"
    exercise = "notebooks/exercises/transformer.mask.py"
    room.inside("anna", "sh", "-c", f"cd $HOME && mkdir -p $(dirname {exercise}) && echo 'x = (' > {exercise}")
    assert re.search(r"anna +0 of \d+ right, 1 submitted\n +transformer.mask: ", room("check", "--all"))
    room("class", "down")
    assert docker.run(["ps", "--all", "--quiet", "--filter", "name=vla-class-"]).stdout == ""
