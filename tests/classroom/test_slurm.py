"""The example of docs/class.md for many trainings: the distribution's Slurm on one node, in a directory of its own."""

import os
import re
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests import ports
from vlalab.host import paths

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
# What the page does not say: everything in one directory, on loopback, without control groups.
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
CommunicationParameters=NoInAddrAny
AuthInfo=socket={here}/munge.sock
PluginDir={libraries}/slurm-wlm
StateSaveLocation={here}
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MailProg=/bin/true
"""
PAGE = (paths.ROOT / "docs/class.md").read_text()
TINY = "batch-size=80,rare=1,held-fraction=0.3,precision=fp32"


def block(marker):
    """Return the block of the page that contains a line."""
    return next(text for text in re.findall(r"```\w*\n(.*?)```", PAGE, re.S) if marker in text)


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Slurm's packages and what they need beyond this machine's, unpacked: nothing is installed."""
    if not shutil.which("apt-get"):
        pytest.skip("Slurm is unpacked from the packages of Debian or Ubuntu")
    here = tmp_path_factory.mktemp("packages")
    try:
        plan = run("apt-get", "install", "--simulate", "--reinstall", "--no-install-recommends", *PACKAGES)
        names = re.findall(r"^Inst (\S+)", plan, re.M)
        run("apt-get", "download", *names, cwd=here)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Slurm's packages are not available: {error.stderr.strip().splitlines()[-1]}")
    for package in here.glob("*.deb"):
        run("dpkg", "-x", package, here)
    return here


@pytest.fixture(scope="module")
def slurm(prefix, tmp_path_factory):
    """A function that runs a command of a cluster of one node."""
    here = tmp_path_factory.mktemp("slurm")
    (libraries,) = (path.parent for path in prefix.glob("usr/lib/*/slurm-wlm"))
    own = CONFIG.format(ports=ports.free_ports(2), here=here, libraries=libraries)
    page = re.sub("NodeName=.*", "NodeName=localhost CPUs=2 RealMemory=9000", block("SelectType="))
    (here / "slurm.conf").write_text(own + page)
    (here / "key").write_bytes(os.urandom(128))
    (here / "key").chmod(0o600)
    variables = {
        **os.environ, "SLURM_CONF": str(here / "slurm.conf"), "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
        "VLALAB_VOLUME": str(here / "volume"), "PATH": f"{prefix}/usr/bin:{os.environ['PATH']}",
    }  # fmt: skip
    (here / "volume").mkdir()
    programs = prefix / "usr/sbin"
    step = next(programs.glob("slurmstepd*"))
    munge = [f"--socket={here}/munge.sock", f"--key-file={here}/key", f"--pid-file={here}/munged.pid"]
    commands = {
        "munged": ["--foreground", "--force", *munge, f"--seed-file={here}/seed"],
        "slurmctld": ["-D"], "slurmd": ["-D", "-N", "localhost", "-d", step],
    }  # fmt: skip
    daemons = []
    try:
        with (here / "log").open("w") as log:
            for name, words in commands.items():
                program = next(programs.glob(f"{name}*"))
                daemons.append(subprocess.Popen([program, *words], env=variables, stdout=log, stderr=log))
        yield partial(answer, variables)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def answer(variables, *command):
    """Return the output of a command of Slurm."""
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobs(slurm):
    """Return the state and the reason of each job, in order."""
    shown = slurm("scontrol", "show", "job", "--oneliner")
    return re.findall(r"JobState=(\w+) Reason=(\w+)", shown)


def wait_for(condition, timeout_s=1800.0):
    end = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < end
        time.sleep(0.2)
    return result


def test_trainings_wait_for_each_other(slurm, tmp_path):
    """Two jobs of the page's script: the second starts when the first has ended."""
    (tmp_path / "lab.sbatch").write_text(block("#SBATCH"))
    wait_for(lambda: "idle" in slurm("sinfo", "--noheader", "--format=%T"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text((paths.ROOT / "docs/transformer.md").read_text())
    training = ("train", "skipgram", "--corpus", corpus, "--epochs", "1", "--device", "cpu", "--set", TINY)
    for words in (training, ("status",)):
        log = f"--output={tmp_path}/%j.log"
        slurm("sbatch", f"--chdir={paths.ROOT}", log, tmp_path / "lab.sbatch", *words)
    assert wait_for(lambda: [state for state, _ in jobs(slurm)] == ["RUNNING", "PENDING"])
    wait_for(lambda: jobs(slurm)[1][0] in ("COMPLETED", "FAILED"))
    logs = [Path(tmp_path / f"{number}.log").read_text() for number in (1, 2)]
    assert [state for state, _ in jobs(slurm)] == ["COMPLETED", "COMPLETED"], "\n".join(logs)
    times = re.findall(r"StartTime=(\S+) EndTime=(\S+)", slurm("scontrol", "show", "job", "--oneliner"))
    assert times[0][1] <= times[1][0]
