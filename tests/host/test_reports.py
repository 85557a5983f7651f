"""`report --serve`: a real service, what is printed about it, and where it leads."""

import os
import subprocess
import sys

import httpx
import pytest

from tests.ports import free_ports
from vlalab.commands import addresses
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError

PORTS = ("VLALAB_UI_PORT", "VLALAB_ORACLE_PORT", "VLALAB_SIMULATOR_PORT")


@pytest.fixture
def lab(tmp_path):
    """`./lab WORDS` with a volume, state and port of its own; returns what it printed."""
    own = {name: str(tmp_path / name.lower()) for name in ("VLALAB_VOLUME", "VLALAB_STATE")}
    own |= zip(PORTS, map(str, free_ports(len(PORTS))), strict=True)
    env = {**os.environ, **own}
    env.pop("SSH_CONNECTION", None)

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run([str(paths.ROOT / "lab"), *words], env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    run.port = own["VLALAB_UI_PORT"]
    yield run
    subprocess.run([str(paths.ROOT / "lab"), "down"], env=env, capture_output=True)


@pytest.mark.skipif(
    not (venvs.get("libero").is_ready() and venvs.get("ui").is_ready()), reason="./lab env libero ui is not set up"
)
def test_reports_are_served_until_they_are_stopped(lab):
    url = f"http://127.0.0.1:{lab.port}"
    said = lab("report", "--serve", "--runtime", "local")
    assert f"reports: {url}/runs\n" in said and f"ssh -N -L {lab.port}:127.0.0.1:{lab.port} " in said
    assert "No runs yet" in httpx.get(f"{url}/runs", trust_env=False).text
    again = lab("report", "--serve", "--runtime", "local")
    assert f"reports: {url}/runs\n" in again, "one that is up is shown, not started again"
    assert "nope" in lab("report", "nope", "--serve", "--runtime", "local", code=1), "a run that is not there is told"
    lab("down", "ui")
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_a_report_is_one_runs():
    done = subprocess.run([sys.executable, "-I", "-m", "vlalab", "report"], capture_output=True, text=True)
    assert done.returncode == 1 and "report requires RUN" in done.stderr


def test_a_directory_elsewhere_is_not_served(tmp_path):
    with pytest.raises(LabError, match=r"is not in .*runs, .*--serve"):
        addresses.serve_reports(str(tmp_path), "local")


def test_the_tunnel_goes_to_the_address_by_which_the_caller_came():
    variables = {"USER": "ann", "SSH_CONNECTION": "10.0.0.9 5022 10.0.0.5 22"}
    lines = addresses.report_addresses("http://127.0.0.1:8090", "a/", variables)
    assert lines == [
        "reports: http://127.0.0.1:8090/a/",
        "from another machine, run there: ssh -N -L 8090:127.0.0.1:8090 ann@10.0.0.5",
        "then open there: http://127.0.0.1:8090/a/",
    ]
    assert addresses.report_addresses("http://10.0.0.5:8090", "", {}) == ["reports: http://10.0.0.5:8090/"]
