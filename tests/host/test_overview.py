"""`status`: rows for what runs and what does not, memory from the kernel, GPUs from nvidia-smi."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from types import MappingProxyType

import pytest

from tests.screen import show
from vlalab.commands import overview
from vlalab.description import compose, gpus
from vlalab.engine import images
from vlalab.environments import venvs
from vlalab.host import memory, paths
from vlalab.host.processes import identify
from vlalab.runtimes import local
from vlalab.runtimes.containers import Container

LIBERO = compose.read(variables={})["oracle"]


def container(**changes) -> Container:
    facts = {
        "id": "abc", "container": "vla-lab-oracle-1", "service": "oracle", "role": "policy", "attached": False,
        "owner": "", "state": "running", "exit_code": 0, "docker_health": "healthy", "port": 8001,
        "url": "http://127.0.0.1:8001", "started_at": time.time() - 125, "restarts": 0, "pid": 0,
        "image_id": "sha256:1", "gpu": "none",
    }  # fmt: skip
    return Container(**{**facts, **changes})


def image(lock: str, identity: str = "sha256:1") -> images.Image:
    now = datetime.now(timezone.utc)
    return images.Image("libero", "vla-lab/libero:dev", identity, now, 1, {"vla-lab.lock": lock})


def facts(*running, built=None, used=MappingProxyType({})) -> overview.Snapshot:
    return overview.Snapshot(list(running), {r.name: r.is_healthy() for r in running}, built or {}, used)


@pytest.mark.parametrize(
    ("changes", "state", "health"),
    [
        ({}, "up 2 min", "healthy"),
        ({"docker_health": "starting"}, "up 2 min", "not ready"),
        ({"restarts": 2}, "up 2 min, 2 restarts", "healthy"),
        ({"attached": True}, "up 2 min, for one call", "healthy"),
        ({"state": "exited", "exit_code": 137}, "ended with code 137", ""),
    ],
)
def test_container_states_are_described(changes, state, health):
    found = container(**changes)
    row = overview._row(found, LIBERO, facts(found))
    assert (row[0], row[1], row[2]) == ("docker", state, health)


def test_an_image_is_compared_with_the_lock_and_with_what_runs():
    fits = venvs.get("libero").lock_hash
    for built, words in (
        ({"libero": image(fits)}, "lock fits"),
        ({"libero": image("0" * 64)}, "of another lock"),
        ({"libero": image(fits, "sha256:2")}, "./lab restart oracle"),
        ({}, "image removed"),
    ):
        found = container()
        assert words in overview._row(found, LIBERO, facts(found, built=built))[3]


def test_gpu_memory_goes_to_the_service_whose_process_uses_it(monkeypatch):
    monkeypatch.setattr(memory, "belongs_to_container", lambda pid, identity: (pid, identity) == (10, "abc"))
    used = {10: {"0": 2048, "1": 512}, 11: {"0": 4096}}
    mine, other = container(), container(id="def", gpu="1")
    assert overview._row(mine, LIBERO, facts(mine, used=used))[4] == "0: 2.0 GiB, 1: 0.5 GiB"
    assert overview._row(other, LIBERO, facts(other, used=used))[4] == "1"


def test_the_memory_of_a_local_service_is_its_sessions():
    code = "import time; block = bytearray(200_000_000); print('ready', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        child.stdout.readline()
        assert 200e6 < memory.of_session(child.pid) < 400e6
        assert memory.belongs_to_session(child.pid, child.pid) and not memory.belongs_to_session(os.getpid(), child.pid)
    finally:
        child.kill()
        child.communicate()


def test_the_memory_of_a_container_is_read_from_its_cgroup(tmp_path, monkeypatch):
    directory = tmp_path / "system.slice" / "docker-abc.scope"
    directory.mkdir(parents=True)
    (directory / "memory.current").write_text("500")
    (directory / "memory.stat").write_text("inactive_file 100\n")
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    real, line = memory.Path.read_text, "0::/system.slice/docker-abc.scope"
    read = lambda path, *args, **named: line if str(path) == "/proc/77/cgroup" else real(path, *args, **named)  # noqa: E731
    monkeypatch.setattr(memory.Path, "read_text", read)
    assert memory.of_container(77) == 400


def test_a_container_that_is_gone_has_no_memory():
    assert memory.of_container(0) is None and memory.of_container(2**22 + 1) is None
    assert (
        memory.format_size(None) == ""
        and memory.format_size(512_000_000) == "512 MB"
        and memory.format_size(2 * 10**9) == "2.0 GB"
    )


def test_nvidia_smis_rows_are_read(tmp_path, monkeypatch):
    answers = {
        "gpu=index,uuid": "0, GPU-a\n1, GPU-b\n",
        "compute-apps=pid,gpu_uuid,used_memory": "10, GPU-b, 2048\n11, GPU-a, [N/A]\n",
    }
    cases = "".join(f"--query-{query}) printf '{text}';;\n" for query, text in answers.items())
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpus._devices.cache_clear()
    assert gpus.count() == 2 and gpus.problem() is None
    assert gpus.memory_by_process() == {10: {"1": 2048}}
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    gpus._devices.cache_clear()
    assert gpus.count() == 0 and gpus.memory_by_process() == {}
    gpus._devices.cache_clear()


def test_a_local_instance_has_a_row_too(tmp_path, answering):
    me = identify(os.getpid())
    found = local.Instance(
        name="oracle", service="oracle", url="http://127.0.0.1:8001", role="policy", attached=False,
        check=answering(200), check_timeout_s=5, stop_grace_s=1, started_at=time.time(), supervisor=me, child=me,
        starts=1, last_exit=None, gpu="1",
    )  # fmt: skip
    row = overview._row(found, LIBERO, facts(found))
    assert row[:3] == ["local", "up 0 s", "healthy"] and row[4] == "1" and row[6] == found.url


# The fields of a service and their types, on which other programs count; each may be null.
SCHEMA = {
    **dict.fromkeys(("name", "service", "role", "state", "health", "runtime", "url", "gpus"), str),
    **dict.fromkeys(("environment", "lock"), str),
    **dict.fromkeys(("private", "image_fits", "environment_fits"), bool),
    "since": float, "image_built": float, "restarts": int, "memory": int, "gpu_memory": dict,
}  # fmt: skip


def test_json_matches_the_table(monkeypatch, tmp_path):
    """Every field is documented, and a service that is down has the same ones."""
    up = container(state="running", restarts=2)
    gone = container(service="random", container="vla-lab-random-1", id="def", state="exited", exit_code=137)
    used = {10: {"0": 2048}, 11: {"0": 1024, "1": 5}}
    monkeypatch.setattr(memory, "belongs_to_container", lambda pid, identity: identity == "abc")
    monkeypatch.setattr(overview, "gather", lambda: facts(up, gone, used=used))
    told = overview.as_json()
    one = {row["name"]: row for row in told["services"]}
    assert told["schema"] == 1 and json.dumps(told)
    assert (one["oracle"]["state"], one["oracle"]["health"], one["oracle"]["restarts"]) == ("up", "healthy", 2)
    assert one["oracle"]["gpu_memory"] == {"0": 3072, "1": 5} and one["oracle"]["image_fits"] is None
    assert one["random"]["state"] == "ended with code 137" and one["random"]["health"] is None
    assert one["ui"]["state"] == "down" and one["ui"].keys() == one["oracle"].keys() and "libero" not in one
    assert {field: type(value) for field, value in told.items() if field != "docker"} == {
        "schema": int, "host": str, "volume": str, "commit": str, "steward": bool, "gpus": list, "services": list
    }  # fmt: skip
    for field, value in one["oracle"].items():
        assert value is None or isinstance(value, SCHEMA[field]), field
    assert SCHEMA.keys() == one["oracle"].keys()
    page = (paths.ROOT / "docs/doctor.md").read_text().split("status --json`")[1]
    assert [field for field in (*told, *one["ui"]) if f"`{field}`" not in page] == []


def test_a_terminal_of_80_columns_shows_names_and_addresses_whole():
    screen = show([sys.executable, "-I", "-m", "vlalab", "status"], columns=80, cwd=paths.ROOT)
    lines = screen.transcript.splitlines()
    assert lines[0].split() == ["service", "runtime", "state", "health", "URL"]
    assert {line.split()[0] for line in lines[1:] if line.split()[1:] == ["down"]} >= {"metaworld_random", "ui"}
    assert "…" not in screen.transcript and any(line.startswith("docker: ") for line in lines)
