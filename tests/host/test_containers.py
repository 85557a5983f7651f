"""The docker runtime by what it asks the engine for; that the engine then does it is what tests/docker sees."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.host import recording_docker
from tests.lab import run_lab
from vlalab.commands import evaluation, lifecycle, programs
from vlalab.commands.evaluation import EvaluationRequest
from vlalab.description import compose, gpus, manifests
from vlalab.description import service_settings as kept_settings
from vlalab.doctor import runner
from vlalab.doctor.check import Context
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths, state
from vlalab.host.console import LabError
from vlalab.host.processes import identify
from vlalab.host.state import directory as state_directory
from vlalab.runtimes import containers, interface
from vlalab.testing import parts

OWN = ("VLALAB_", "COMPOSE_", "DOCKER_", "SSL_CERT", "REQUESTS_CA", "CURL_CA", "SUDO_")


class Engine:
    """The recording docker command on PATH, and what it wrote down."""

    def __init__(self, directory: Path):
        self.directory = directory

    def calls(self, *beginning: str) -> list[dict]:
        """Returns the calls that hold these words next to each other."""
        lines = (
            (self.directory / "calls.jsonl").read_text().splitlines()
            if (self.directory / "calls.jsonl").exists()
            else []
        )
        wanted = " ".join(beginning)
        return [call for call in map(json.loads, lines) if wanted in " ".join(call["words"])]

    def build(self, *names: str, lock: str | None = None) -> None:
        """Lets it have the images of those environments."""
        made = [
            {
                "RepoTags": [f"vla-lab/{name}:dev"], "Id": "sha256:1", "Size": 10**9, "Created": "2026-01-02T03:04:05Z",
                "Config": {"Labels": {"vla-lab.lock": lock or venvs.get(name).lock_hash}},
            }
            for name in names
        ]  # fmt: skip
        (self.directory / "images.json").write_text(json.dumps(made))

    def containers(self) -> list[dict]:
        """Returns the containers it has."""
        path = self.directory / "containers.json"
        return json.loads(path.read_text()) if path.exists() else []


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """An engine with libero's image, nothing running, and a volume of its own; no variable of the caller's."""
    for name in list(os.environ):
        if name.startswith(OWN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VLALAB_STEWARD", "off")  # no process beside a page that is none
    directory, bin_ = tmp_path / "engine", tmp_path / "bin"
    directory.mkdir()
    bin_.mkdir()
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    monkeypatch.setenv("VLALAB_VOLUME", str(tmp_path / "volume"))
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(gpus, "count", lambda: 0)
    docker.info.cache_clear()
    made = Engine(directory)
    made.build("libero")
    with recording_docker.serving(directory, bin_ / "docker"):
        yield made
    docker.info.cache_clear()


@pytest.fixture
def weights(tmp_path):
    """A checkpoint for each model on the volume, without which no page's policy is started."""
    for service, model in manifests.models().items():
        directory = tmp_path / "volume" / "checkpoints" / service
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({model.key: model.type}))
        (directory / "model.safetensors").touch()


# --- which runtime ------------------------------------------------------------------------------------------


def test_auto_takes_docker_when_an_engine_answers_and_the_images_are_built(engine):
    assert interface.choose("auto", ["libero"]) == (containers, "runtime docker")
    runtime, line = interface.choose("auto", ["libero", "openvla"])
    assert runtime.NAME == "local" and "vla-lab/openvla:dev is not built" in line
    with pytest.raises(LabError, match=r"not built; run: \./lab build openvla, or use --runtime local"):
        interface.choose("docker", ["libero", "openvla"])


def test_auto_follows_what_runs_already(engine):
    assert interface.choose("auto", ["libero"], prefer="local")[0].NAME == "local"
    assert interface.choose("docker", ["libero"], prefer="local")[0].NAME == "docker"


def test_an_image_of_another_lock_is_used_and_told(engine, capsys):
    engine.build("libero", lock="0" * 64)
    containers.prepare(["libero"])
    assert "built from another lock" in capsys.readouterr().err


# --- up, down -----------------------------------------------------------------------------------------------


def test_up_starts_one_service_by_compose_as_the_volumes_owner(engine, tmp_path):
    (found,) = lifecycle.up(["oracle"], "docker")
    (call,) = engine.calls("up --detach --no-deps oracle")
    port = call["variables"]["VLALAB_ORACLE_PORT"]
    assert found.url == f"http://127.0.0.1:{port}" and found.is_healthy()
    files = [word for word in call["words"] if word.endswith(".yaml")]
    assert files == [str(paths.ROOT / "compose.yaml")]
    owner = (tmp_path / "volume").stat()
    assert (call["variables"]["VLALAB_UID"], call["variables"]["VLALAB_GID"]) == (str(owner.st_uid), str(owner.st_gid))
    assert call["variables"]["VLALAB_VOLUME"] == str(tmp_path / "volume")
    assert (tmp_path / "volume" / "runs").is_dir()


def test_a_job_among_the_names_is_made_ready_and_not_started(engine, capsys):
    (found,) = lifecycle.up(["libero", "oracle"], "docker")
    assert found.service == "oracle" and "libero is a job" in capsys.readouterr().err
    assert lifecycle.up(["libero"], "docker") == []
    with pytest.raises(LabError, match=r"openvla:dev is not built"):
        lifecycle.up(["libero", "openvla"], "docker")
    assert len(engine.calls("up --detach")) == 1


def test_an_engine_that_remaps_users_is_refused_before_anything_is_made(engine, tmp_path):
    (engine.directory / "security.json").write_text('["name=seccomp,profile=builtin", "name=userns"]')
    with pytest.raises(LabError, match="userns-remap.*--runtime local.*/etc/docker/daemon.json") as refusal:
        lifecycle.up(["oracle"], "docker")
    assert not (tmp_path / "volume").exists() and not engine.calls("up --detach")
    (found,) = runner.run(runner.checks_by_id(["docker-rootless"]), Context())
    assert found.finding.verdict == "fail" and found.finding.text in refusal.value.text


def test_down_stops_and_forgets(engine, capsys):
    lifecycle.up(["oracle", "random"], "docker")
    assert lifecycle.down([]) == ["oracle", "random"]
    assert (
        engine.containers() == [] and engine.calls(f"stop {compose.project()}-oracle-1") and engine.calls("network rm")
    )
    with pytest.raises(LabError, match="'oracle' is not running. Running: none"):
        lifecycle.down(["oracle"])


def test_a_dry_run_of_up_and_down_changes_nothing(engine, capsys, tmp_path):
    lifecycle.up(["oracle"], "docker", dry_run=True)
    assert "docker compose" in capsys.readouterr().out
    assert not engine.calls("up --detach") and not (tmp_path / "volume").exists()
    lifecycle.up(["oracle"], "docker")
    lifecycle.down([], dry_run=True)
    assert len(engine.containers()) == 1


def test_settings_survive_a_restart_and_end_with_down(engine, tmp_path):
    (tmp_path / "volume" / "checkpoints" / "mine").mkdir(parents=True)
    engine.build("openvla")
    lifecycle.up(["openvla"], "docker", {"openvla": kept_settings.from_flags("openvla", "libero_goal", "mine", "none")})
    wanted = {
        "VLALAB_OPENVLA_CHECKPOINT": "mine", "VLALAB_OPENVLA_UNNORM_KEY": "libero_goal", "VLALAB_OPENVLA_GPU": "none",
    }  # fmt: skip
    lifecycle.restart(["openvla"])
    for call in engine.calls("up --detach --no-deps openvla"):
        assert wanted.items() <= call["variables"].items()
    lifecycle.up(["openvla"], "docker", {"openvla": kept_settings.from_flags("openvla", gpu="auto")})
    assert kept_settings.stored("openvla") == {k: v for k, v in wanted.items() if not k.endswith("GPU")}
    lifecycle.down(["openvla"])
    assert kept_settings.stored("openvla") == {}


def test_a_path_on_the_volume_becomes_the_containers(engine, tmp_path, monkeypatch):
    run = tmp_path / "volume" / "runs" / "r"
    run.mkdir(parents=True)
    monkeypatch.setenv("VLALAB_REPLAY_RUN", str(run))
    lifecycle.up(["replay"], "docker")
    assert engine.calls("up --detach")[-1]["variables"]["VLALAB_REPLAY_RUN"] == "/volume/runs/r"
    monkeypatch.setenv("VLALAB_REPLAY_RUN", str(tmp_path))
    with pytest.raises(LabError, match="outside the container.* the volume"):
        lifecycle.up(["replay"], "docker")


def test_what_a_service_depends_on_comes_first(weights, engine, capsys):
    engine.build("openvla", "ui", "libero")
    assert [found.name for found in lifecycle.up(["ui"], "docker")] == [
        "openvla",
        "oracle",
        "simulator",
        "ui",
    ]
    lifecycle.up(["ui"], "docker")
    assert len(engine.calls("up --detach --no-deps openvla")) == 1, "what is up is left alone when it is not named"


def test_a_service_is_up_in_one_runtime_only(engine):
    (found,) = lifecycle.up(["oracle"], "docker")
    with pytest.raises(LabError, match=rf"running in runtime docker at {re.escape(found.url)}; stop it first"):
        lifecycle.up(["oracle"], "local")


# --- neighbours ---------------------------------------------------------------------------------------------


@pytest.fixture
def as_caller(monkeypatch):
    """Makes this process look like another caller's, or another clone's."""
    return lambda name: monkeypatch.setattr(state, "owner", lambda: name)


def test_what_another_user_or_clone_started_is_none_of_ours(engine, as_caller):
    as_caller("anna-11111111")
    lifecycle.up(["oracle"], "docker")
    as_caller("bert-22222222")
    assert containers.everything() == [] and lifecycle.down([]) == []
    with pytest.raises(LabError, match="'oracle' is not running"):
        lifecycle.down(["oracle"])
    lifecycle.up(["oracle"], "docker")
    lifecycle.restart([])
    lifecycle.down([])
    (left,) = engine.containers()
    assert left["Name"] == "/vla-lab-anna-11111111-oracle-1"
    assert not engine.calls("stop vla-lab-anna") and not engine.calls("network rm vla-lab-anna")


# --- GPUs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "there", "runtime", "given"),
    [
        (None, 0, True, False), (None, 2, True, True), (None, 2, False, False),
        ("none", 2, True, False), ("1", 2, True, True), ("all", 2, True, True),
    ],
)  # fmt: skip
def test_a_service_gets_a_gpu_when_told_or_when_there_is_one(engine, monkeypatch, gpu, there, runtime, given):
    engine.build("gr00t")
    monkeypatch.setattr(gpus, "count", lambda: there)
    monkeypatch.setattr(docker, "has_gpu_runtime", lambda: runtime)
    lifecycle.up(["gr00t"], "docker", {"gr00t": kept_settings.from_flags("gr00t", gpu=gpu)})
    (call,) = engine.calls("up --detach")
    assert (str(compose.GPU_FILE) in call["words"]) == given
    assert call["variables"].get("VLALAB_GR00T_GPU") == gpu


@pytest.mark.parametrize("flags", [("--gpu", "1"), ()])
def test_a_program_gets_the_gpu_that_its_task_was_reported(engine, monkeypatch, flags):
    monkeypatch.setattr(gpus, "count", lambda: 2)
    monkeypatch.setattr(docker, "has_gpu_runtime", lambda: True)
    engine.build("ws_mdl")
    run_lab("train", "diffusion", *flags, "--runtime", "docker")
    (call,) = engine.calls("run --rm")
    assert str(compose.GPU_FILE) in call["words"]
    assert call["variables"].get("VLALAB_WS_MDL_GPU") == ("1" if flags else None)


@pytest.mark.parametrize(("flags", "given"), [((), True), (("--render", "cpu"), False)])
def test_an_evaluation_that_draws_on_the_cpu_takes_no_gpu(engine, monkeypatch, flags, given):
    monkeypatch.setattr(gpus, "count", lambda: 2)
    monkeypatch.setattr(docker, "has_gpu_runtime", lambda: True)
    evaluation.run(EvaluationRequest("libero_goal", runtime="docker", flags=flags), "")
    (job,) = engine.calls("run --rm")
    assert (str(compose.GPU_FILE) in job["words"]) == given


def test_tests_in_an_image_take_no_gpu_unasked(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(docker, "has_gpu_runtime", lambda: True)
    image = images.existing(["libero"])["libero"]
    assert "--gpus" not in parts.image_command("libero", image, tmp_path)
    monkeypatch.setenv("VLALAB_LIBERO_GPU", "0,1")
    words = parts.image_command("libero", image, tmp_path)
    assert words[words.index("--gpus") + 1] == '"device=0,1"'


# --- jobs and evaluations -----------------------------------------------------------------------------------


def flags(call: dict, name: str) -> list[str]:
    return [after for word, after in zip(call["words"], call["words"][1:], strict=False) if word == name]


def test_an_evaluation_starts_a_private_policy_and_takes_it_away(engine, tmp_path):
    assert (
        evaluation.run(EvaluationRequest("libero_goal", runtime="docker", flags=("--trials", "1")), "./lab eval …") == 0
    )
    (private,) = engine.calls("run --detach --no-deps")
    (name,) = flags(private, "--name")
    (job,) = engine.calls("run --rm --no-deps --interactive=false")
    words = job["words"]
    assert words[words.index("--policy-url") + 1] == f"http://{name}:8001"
    assert words[-2:] == ["--trials", "1"] and "VLALAB_COMMAND=./lab eval …" in flags(job, "--env")
    volume = str(tmp_path / "volume")
    assert f"VLALAB_VOLUME={volume}" in flags(job, "--env") and f"{volume}:{volume}" in flags(job, "--volume")
    assert engine.calls(f"update --restart unless-stopped {name}")
    assert engine.containers() == []


@pytest.mark.parametrize("code", [1, 2, 130])
def test_a_private_policys_log_is_kept_after_a_failure_only(engine, tmp_path, code):
    (engine.directory / "exit").write_text("0")
    request = EvaluationRequest("libero_goal", runtime="docker")
    original = containers.run
    containers.run = lambda *args, **kwargs: original(*args, **kwargs) or code
    try:
        assert evaluation.run(request, "") == code
    finally:
        containers.run = original
    logs = list(state_directory("logs").glob("*.log"))
    assert [log.read_text() for log in logs] == (["the last words\n"] if code != 130 else [])
    assert engine.containers() == []


def test_a_policy_that_is_up_is_reached_by_its_name(engine):
    (found,) = lifecycle.up(["random"], "docker")
    evaluation.run(EvaluationRequest("libero_goal"), "")
    (job,) = engine.calls("run --rm")
    assert f"http://random:{found.port}" in job["words"]
    evaluation.run(EvaluationRequest("libero_goal", policy=f"http://localhost:{found.port}/"), "")
    assert f"http://random:{found.port}" in engine.calls("run --rm")[1]["words"]


def test_an_evaluator_that_listens_is_published_and_asks_where_others_do(engine, monkeypatch):
    """A policy that others could not reach is refused, before anything is started."""
    monkeypatch.setenv("VLALAB_TOKEN", "for-these-tests")
    request = EvaluationRequest("libero_goal", "oracle", "docker", ("--listen", "192.0.2.7:8100", "--trials", "1"))
    lifecycle.up(["oracle"], "docker")
    with pytest.raises(LabError, match="VLALAB_BIND set to this machine's address: ./lab up oracle --restart"):
        evaluation.run(request, "./lab eval")
    assert not engine.calls("services.libero", "libero_goal")
    url = "http://192.0.2.8:8001"
    assert evaluation.run(replace(request, policy=url), "./lab eval") == 0
    (call,) = engine.calls("services.libero", "libero_goal")
    words = " ".join(call["words"])
    assert "--publish 192.0.2.7:8100:8100 " in words and "--env VLALAB_BIND=192.0.2.7 " in words
    assert f"--policy-url {url} --listen 0.0.0.0:8100 --trials 1" in words


def test_a_url_on_loopback_is_out_of_a_containers_reach(engine, capsys):
    with pytest.raises(LabError, match=r"a container cannot reach http://127.0.0.1:9.*Use --runtime local"):
        evaluation.run(EvaluationRequest("libero_goal", policy="http://127.0.0.1:9", runtime="docker"), "")
    evaluation.run(EvaluationRequest("libero_goal", policy="http://127.0.0.1:9", dry_run=True), "")
    assert "runtime local; policy at http://127.0.0.1:9" in capsys.readouterr().err
    evaluation.run(EvaluationRequest("libero_goal", policy="http://gpu-box:8000", dry_run=True), "")
    assert "runtime docker; policy at http://gpu-box:8000" in capsys.readouterr().err


def test_directories_that_a_command_names_are_mounted(engine, tmp_path, monkeypatch):
    assets, others = tmp_path / "assets", tmp_path / "others"
    assets.mkdir()
    others.mkdir()
    monkeypatch.setenv("VLALAB_LIBERO_ASSETS", str(others))
    programs.run_module("libero", "some.module", ["--assets", str(assets), "/not/there"], "docker")
    mounts = flags(engine.calls("run --rm")[0], "--volume")
    assert f"{assets}:{assets}" in mounts and f"{others}:{others}" in mounts
    assert not any("/not/there" in mount for mount in mounts)


def test_a_file_that_a_command_names_is_mounted_to_be_read(engine, tmp_path, monkeypatch):
    """As typed: relative to where the caller is, who need not be in the repository."""
    (tmp_path / "mine.tsv").write_text("a\tb\n")
    engine.build("ws_mdl")
    monkeypatch.chdir(tmp_path)
    run_lab("train", "transformer", "--corpus", "mine.tsv", "--runtime", "docker")
    (job,) = engine.calls("run --rm")
    file = str(tmp_path / "mine.tsv")
    assert f"{file}:{file}:ro" in flags(job, "--volume")
    assert job["words"][job["words"].index("--corpus") + 1] == file


def test_the_networks_authority_and_proxy_are_handed_over(engine, tmp_path, monkeypatch):
    bundle = tmp_path / "ca.crt"
    bundle.write_text("certificates")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    programs.run_module("libero", "some.module", [], "docker")
    (job,) = engine.calls("run --rm")
    assert "HTTPS_PROXY" in flags(job, "--env"), "by name: the value is nobody's business on a command line"
    inside = next(mount for mount in flags(job, "--volume") if mount.startswith(f"{bundle}:")).split(":")[1]
    assert f"REQUESTS_CA_BUNDLE={inside}" in flags(job, "--env")


def test_a_shell_is_one_container_that_goes_away(engine):
    lifecycle.shell("libero", "docker", "id")
    (call,) = engine.calls("run --rm --no-deps")
    assert call["words"][-4:] == ["libero", "bash", "-c", "id"]


# --- what is left behind ------------------------------------------------------------------------------------


def test_what_belongs_to_a_call_that_is_gone_is_removed(engine, capsys):
    me = identify(os.getpid())
    gone = f"{os.uname().nodename} {me.pid} {me.start_ticks - 1} {me.boot_id}"
    here = f"{os.uname().nodename} {me.pid} {me.start_ticks} {me.boot_id}"
    other_machine = gone.replace(os.uname().nodename, "another")
    for name, owner in (("a", gone), ("b", here), ("c", other_machine)):
        label = ["--label", f"{containers.OWNER}={owner}"]
        mine = {compose.PROJECT: compose.project()}
        docker.run(["compose", "run", "--detach", "--name", name, *label, "oracle"], variables=mine)
    assert [found.name for found in containers.everything()] == ["b", "c"]
    assert "removing a" in capsys.readouterr().err
    assert [record["Name"] for record in engine.containers()] == ["/b", "/c"]


OWNER = """
import sys
from vlalab.engine import guard
with guard.guarded("left-behind"):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("orderly", [True, False])
def test_the_guard_removes_what_its_owner_left_behind(engine, orderly):
    variables = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
    )
    assert owner.stdout.readline().strip() == "ready"
    if orderly:
        owner.communicate()
    else:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        owner.stdin.close()
    deadline = time.monotonic() + 20
    while not engine.calls("rm --force --volumes left-behind"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert bool(engine.calls("stop --signal SIGINT")) != orderly
