"""A class with the Docker runtime: students' servers are containers with what compose.yaml gives services."""

import json
import os
import re

import pytest

from tests import browser
from tests.classroom.real import RealClass
from tests.classroom.room import unmount
from vlalab.commands import classes
from vlalab.engine import docker
from vlalab.environments import venvs

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the browser tests"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a class needs root"),
]
PASSWORD = "sunflower-1"
# A private engine has mounts of its own, so it does not see homes that are mounted later: no limit of disk.
LIMITS = {"runtime": "docker", "memory": "1", "cpus": "1.5", "processes": "200", "disk": "0", "idle": "0"}
OF_COMPOSE = ("ReadonlyRootfs", "CapDrop", "SecurityOpt", "ShmSize", "Tmpfs", "LogConfig", "Init")
SEEN = """
import os, resource
for path in ("memory/memory.limit_in_bytes", "memory.max", "pids/pids.max", "pids.max"):
    if os.path.exists(f"/sys/fs/cgroup/{path}"):
        print(open(f"/sys/fs/cgroup/{path}").read().strip())
os.chdir(os.path.expanduser("~"))
print(os.getuid(), os.environ["VLALAB_VOLUME"], os.listdir("/home"), open("assets/shared.txt").read())
print([line for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))])
for path in ("/root-file", "assets/mine", "/opt/vla-lab/services/__init__.py"):
    try:
        open(path, "a")
        print("wrote", path)
    except OSError:
        pass
open("work.txt", "w").write("work")
"""


def container(name):
    """Return what the engine says about a student's container."""
    return docker.parse_json(docker.run(["inspect", f"vla-class-{name}"]).stdout)[0]


def inside(name, *command):
    """Return what a command in a student's container printed; "" if it failed."""
    return docker.run(["exec", container(name)["Id"], *command], check=False).stdout.strip()


@pytest.fixture(scope="module")
def room(lab, builds, tmp_path_factory):
    builds.get("libero")
    venvs.ensure("hub")
    made = RealClass(tmp_path_factory.mktemp("class"), lab.variables(), environments="libero", **LIMITS)
    (made.volume / "assets").mkdir()
    (made.volume / "assets" / "shared.txt").write_text("shared")
    try:
        made.lab("up", *made.flags)
        lines = made.lab("add", "anna", "ben").splitlines()
        for name, code in (line.split(",") for line in lines if re.fullmatch(r"\w+,\w{5}-\w{5}", line)):
            made.open(name, code, PASSWORD)
        yield made
    finally:
        for page in made.browsers.values():
            page.close()
        made.lab("down", code=None)
        docker.run(["network", "rm", classes.NETWORK], check=False)
        unmount(made.path)


def test_a_students_container_is_as_compose_describes_a_service(room, lab):
    service = json.loads((room.path / "settings.json").read_text())["containers"]["libero"]
    project = lab.variables() | {"VLALAB_VOLUME": str(room.volume)}
    docker.compose(["create", "--no-build", "libero_notebook"], variables=project)
    (theirs,) = docker.run(docker.compose_args(["ps", "-aq", "libero_notebook"]), variables=project).stdout.split()
    try:
        theirs = docker.parse_json(docker.run(["inspect", theirs]).stdout)[0]["HostConfig"]
    finally:
        docker.run(["rm", "--force", *lab.ids("libero_notebook")])
    ours, uid = container("anna"), room.account("anna")["uid"]
    assert {name: ours["HostConfig"][name] for name in OF_COMPOSE} == {name: theirs[name] for name in OF_COMPOSE}
    assert (ours["Config"]["User"], ours["Config"]["Image"]) == (f"{uid}:{uid}", service["image"])
    limits = {name: ours["HostConfig"][name] for name in ("Memory", "MemorySwap", "CpuPeriod", "CpuQuota", "PidsLimit")}
    assert list(limits.values()) == [10**9, 10**9, 100_000, 150_000, 200], limits
    assert not ours["HostConfig"]["DeviceRequests"] and not ours["HostConfig"]["Privileged"]
    assert "Healthcheck" not in ours["Config"]  # the hub asks
    options = docker.parse_json(docker.run(["network", "inspect", classes.NETWORK]).stdout)[0]["Options"]
    assert options == {"com.docker.network.bridge.enable_icc": "false"}


def test_a_cell_sees_the_limits_and_no_other_students_files(room):
    uid = room.account("anna")["uid"]
    *limits, mine, status = room.run("anna", SEEN).splitlines()
    assert int(limits[0]) == pytest.approx(10**9, abs=4096) and limits[1] == "200"
    assert mine == f"{uid} /home/anna ['anna'] shared"
    assert "CapEff:\\t0000000000000000" in status and "NoNewPrivs:\\t1" in status
    work = room.home("anna") / "work.txt"
    assert work.read_text() == "work" and work.stat().st_uid == uid
    assert (work.parent / "notebooks" / "libero").is_dir()


def test_a_student_reaches_no_other_students_server(room):
    fetch = "fetch('/user/ben/api/contents').then(answer => answer.status)"
    assert room.browsers["anna"].js(fetch) == 403
    assert room.run("ben", "import os; print(os.listdir('/home'))") == "['ben']\n"


def test_a_paused_container_restarts_with_the_work_and_grades_come_from_a_container(room):
    before = container("anna")["Id"]
    docker.run(["pause", before])
    assert "anna: restarted" in room.lab("restart", "anna") and container("anna")["Id"] != before
    assert inside("anna", "sh", "-c", "cat $HOME/work.txt") == "work"
    exercise = "notebooks/exercises/transformer.mask.py"
    inside("anna", "sh", "-c", f"cd $HOME && mkdir -p $(dirname {exercise}) && echo 'x = (' > {exercise}")
    assert re.search(r"anna +0 of \d+ right, 1 submitted\n +transformer.mask: ", room.lab("check", "--all"))


def test_no_container_is_left(room):
    room.lab("down")
    assert docker.run(["ps", "--all", "--quiet", "--filter", "name=^vla-class-(anna|ben)$"]).stdout == ""
