"""Services in containers, by the product's own commands: what `up` brings, what a container may, what is open."""

import json
import platform

import pytest

from tests.docker.builds import GROUPS
from tests.docker.conftest import RUNTIME, USER
from tests.docker.watching import get, listening, require_own_names, services_of, url
from vlalab.engine import docker
from vlalab.environments import venvs
from vlalab.host import paths

pytestmark = pytest.mark.docker
UP = ("openvla", "ui")


# --- up -----------------------------------------------------------------------------------------------------


def test_health_goes_from_starting_to_healthy(health):
    assert {name: health[name] for name in UP} == {name: ["starting", "healthy"] for name in UP}


@pytest.mark.parametrize("service", UP)
def test_healthy_means_ready(up, service):
    assert get(url(up, service, "/readyz"))[0] == 200


def test_the_policy_says_which_lock_it_runs_on_and_how_it_attends(up):
    info = json.loads(get(url(up, "openvla", "/v1/info"))[1])
    assert info["lock_hash"] == venvs.get("openvla", paths.ROOT).lock_hash
    assert "sdpa" in json.dumps(info).lower(), "without flash-attn a service says what it uses instead"


def test_up_again_changes_nothing(up):
    before = sorted(up.ids())
    up("up", *UP, *RUNTIME)
    assert sorted(up.ids()) == before


def test_status_shows_a_row_for_each(up):
    text = up("status").text
    for service in UP:
        (row,) = [line for line in text.splitlines() if f" {service} " in f" {line} "]
        assert "healthy" in row and str(up.ports[service]) in row


def test_logs_show_what_a_service_said(up):
    assert "ready" in up("logs", "openvla").text


def test_a_shell_runs_with_the_services_restrictions(up):
    text = up("shell", "libero", "--command", "id -u; touch /opt/x || echo refused", *RUNTIME).text
    assert str(USER[0]) in text.split() and "refused" in text


# --- what a container may -----------------------------------------------------------------------------------


@pytest.mark.parametrize("service", UP)
def test_a_container_has_no_rights_it_does_not_need(up, service):
    record = up.container(service)
    host = record["HostConfig"]
    assert record["Config"]["User"] == f"{USER[0]}:{USER[1]}"
    assert host["ReadonlyRootfs"] and not host["Privileged"] and host["Init"]
    assert host["CapDrop"] == ["ALL"] and not host["CapAdd"]
    assert any("no-new-privileges" in option for option in host["SecurityOpt"])
    assert host["NetworkMode"] not in ("host", "") and host["PidMode"] == "" and host["IpcMode"] != "host"
    assert host["RestartPolicy"]["Name"] == "unless-stopped" and host["ShmSize"] >= 1 << 30
    assert host["LogConfig"]["Config"]["max-size"] and host["LogConfig"]["Config"]["max-file"]
    seen = {mount["Destination"] for mount in record["Mounts"] if mount["Type"] == "bind"}
    assert seen == {"/volume", *(["/run/vla-lab-steward"] if service == "ui" else [])}


def test_the_page_reaches_its_steward_from_its_container(up):
    """As a user of its own, without the engine's socket; the machine tells its name, which no container has."""
    code = (
        "import asyncio; from services.ui.services import control_daemon;"
        "print(asyncio.run(control_daemon.ask('/run/vla-lab-steward', '/status'))['status']['host'])"
    )
    asked = docker.run(["exec", up.container("ui")["Id"], "python", "-c", code])
    assert asked.stdout.strip() == platform.node()


@pytest.mark.parametrize("service", UP)
def test_every_process_in_it_is_the_callers(up, service):
    shown = docker.run(["top", up.container(service)["Id"], "-eo", "pid,uid,gid"]).stdout.splitlines()[1:]
    assert shown and {tuple(map(int, line.split()[1:])) for line in shown} == {USER}


def test_no_port_is_open_beyond_loopback(up):
    published = {}
    for record in docker.json_lines(["inspect", *up.ids()]):
        for bindings in (record["NetworkSettings"]["Ports"] or {}).values():
            for binding in bindings or ():
                published.setdefault(int(binding["HostPort"]), set()).add(binding["HostIp"])
    assert published == {up.ports[service]: {"127.0.0.1"} for service in UP}
    assert {port: listening(port) for port in published} == published


def test_the_network_reaches_a_service_with_a_token_only(up):
    """Bound to the project network's own address, which is this machine's but not loopback."""
    found = docker.json_lines(["network", "inspect", f"vlalab-{up.name}_default"])[0]
    address = found["IPAM"]["Config"][0]["Gateway"]
    refused = up("up", "random", *RUNTIME, check=False, VLALAB_BIND=address)
    assert refused.code != 0 and "VLALAB_TOKEN" in refused.text, refused.text
    up("up", "random", *RUNTIME, VLALAB_BIND=address, VLALAB_TOKEN="a-token-of-the-tests")
    info = f"http://{address}:{up.ports['random']}/v1/info"
    assert [get(info)[0], get(info, "another")[0], get(info, "a-token-of-the-tests")[0]] == [401, 401, 200]
    up("down", "random")


def test_a_service_without_a_token_answers_to_its_own_names_only(up):
    """Loopback names from this machine, those of compose.yaml between containers; none that another site may have."""
    recorded = ["--tasks", "0", "--trials", "1", "--max-steps", "2", "--workers", "1", "--video", "none"]
    up("eval", "libero_goal", *RUNTIME, "--policy", "random", *recorded, "--run-id", "recorded")
    names = services_of(GROUPS[0])
    wanted = {
        "VLALAB_REPLAY_RUN": "recorded",
        "VLALAB_OPENPI_POLICY": f"http://random:{up.ports['random']}",
        "VLALAB_BRIDGE_SERVER": f"ws://openpi:{up.ports['openpi']}",
    }
    up("up", *names, *RUNTIME, **wanted)
    require_own_names(up, names)
    up("down", *(name for name in names if name not in UP))


def test_a_students_notebooks_lie_on_the_volume_and_changes_outlast_the_container(up):
    """A fresh home gets copies; what a student has changed is theirs after the service was restarted."""
    up("up", "libero_notebook", *RUNTIME)
    shipped = {path.name: path.read_bytes() for path in (paths.ROOT / "services/libero/notebooks").glob("*.ipynb")}
    home = up.volume / "notebooks" / "libero"
    assert shipped and {path.name: path.read_bytes() for path in home.glob("*.ipynb")} == shipped
    mine = next(iter(sorted(home.glob("*.ipynb"))))
    assert (mine.stat().st_uid, mine.stat().st_gid) == USER
    mine.write_bytes(changed := shipped[mine.name].replace(b"LIBERO", b"my LIBERO", 1))
    up("restart", "libero_notebook")
    assert mine.read_bytes() == changed and len(list(home.glob("*.ipynb"))) == len(shipped)
    assert get(url(up, "libero_notebook", "/api"))[0] == 200
    assert get(url(up, "libero_notebook", "/api/contents"))[0] == 403  # without the token
    up("down", "libero_notebook")
