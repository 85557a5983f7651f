"""What an admin relies on in containers, held in every file: digests, hashes, pins, restrictions, GPU choice."""

import ast
import re
import shutil
import subprocess

import pytest
import yaml

from vlalab.description import compose, manifests, service_settings, variants
from vlalab.engine import images
from vlalab.host import paths

ROOT = paths.ROOT
README = (ROOT / "README.md").read_text()
IMAGES = (ROOT / "docs" / "images.md").read_text()
DOCUMENT = yaml.safe_load(compose.FILE.read_text())
GPU_DOCUMENT = yaml.safe_load(compose.GPU_FILE.read_text())
SERVICES = compose.read(variables={})
ENVIRONMENTS = paths.image_names()
DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()

SETTINGS = {name: model.settings for name, model in manifests.models().items()}  # FILE:CLASS, fields are variables


# --- restrictions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_restricted(name):
    body = DOCUMENT["services"][name]
    assert body["read_only"] is True and body["init"] is True
    assert body["cap_drop"] == ["ALL"] and "cap_add" not in body
    assert body["security_opt"] == ["no-new-privileges:true"]
    assert body["user"] == "${VLALAB_UID:-1000}:${VLALAB_GID:-1000}"
    assert [mount.partition(":")[0] for mount in body["tmpfs"]] == ["/tmp"]
    assert body["logging"]["driver"] == "json-file" and {"max-size", "max-file"} <= set(body["logging"]["options"])
    assert body["pull_policy"] == "never" and body["shm_size"] and body["stop_grace_period"] and body["restart"]
    assert body["mem_limit"] == f"${{{service_settings.variable(name, 'MEMORY')}:-0}}"
    forbidden = {"privileged", "network_mode", "pid", "ipc", "uts", "userns_mode", "devices", "device_cgroup_rules"}
    assert not forbidden & set(body)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_sees_the_volume_and_knows_where_it_is_published(name):
    body = DOCUMENT["services"][name]
    mount, *others = body["volumes"]
    assert [one["target"] for one in others] == (["/run/vla-lab-steward"] if name == "ui" else [])
    assert (mount["type"], mount["source"]) == ("bind", "${VLALAB_VOLUME:-./shared/volume}")
    assert mount["target"] == "/volume"
    assert mount["bind"] == {"create_host_path": False}, "else the engine makes a missing volume, as root"
    assert body["environment"]["VLALAB_VOLUME"] == "/volume"
    assert body["environment"]["VLALAB_BIND"] == "${VLALAB_BIND:-127.0.0.1}"
    assert all(port.startswith("${VLALAB_BIND:-127.0.0.1}:") for port in body.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_answers_to_configured_host_names(name):
    environment = DOCUMENT["services"][name]["environment"]
    assert environment["VLALAB_ALLOWED_HOSTS"] == "${VLALAB_ALLOWED_HOSTS:-}"
    assert environment["VLALAB_PUBLIC_URL"] == "${VLALAB_PUBLIC_URL:-}"


@pytest.mark.parametrize("name", SERVICES)
def test_the_image_is_the_environments(name):
    body = DOCUMENT["services"][name]
    assert body["image"] == f"vla-lab/{body['x-local']}:${{VLALAB_TAG:-dev}}"


@pytest.mark.parametrize("name", [name for name in SERVICES if SERVICES[name].health])
def test_a_service_that_is_ready_is_found_so_at_once(name):
    """Without it the engine's first look comes after `interval`, which makes every start last that long."""
    check = DOCUMENT["services"][name]["healthcheck"]
    assert compose.seconds(check["start_interval"]) <= 1 < compose.seconds(check["interval"])
    assert compose.seconds(check["start_period"]) >= 60


def test_dependencies_wait_for_health_but_a_page_that_can_do_without_comes_up_at_once():
    for name, body in DOCUMENT["services"].items():
        for other, how in (body.get("depends_on") or {}).items():
            without = {"condition": "service_started", "required": False}
            assert how == (without if name == "ui" else {"condition": "service_healthy"}), name
            assert SERVICES[other].health is not None


# --- GPUs ---------------------------------------------------------------------------------------------------


def test_the_gpu_file_holds_reservations_and_nothing_else():
    assert set(GPU_DOCUMENT) == {"services"}
    for name, body in GPU_DOCUMENT["services"].items():
        assert name in SERVICES
        assert body.keys() == {"deploy"} and body["deploy"].keys() == {"resources"}
        (device,) = body["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia" and "gpu" in device["capabilities"]
        assert device["device_ids"] == [f"${{{service_settings.variable(name, 'GPU')}:-0}}"]
    assert "graphics" in str(GPU_DOCUMENT["services"]["libero"]), "without it there is no EGL on the GPU"


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_sees_a_gpu_that_it_was_not_given(name):
    """NVIDIA's base images say `all`, which counts where nvidia is the engine's default runtime."""
    assert DOCUMENT["services"][name]["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_no_image_asks_for_a_gpu_by_itself():
    assert re.findall(r"NVIDIA_VISIBLE_DEVICES=(\S+)", DOCKERFILE) == ["void"]


def test_nobody_is_reported_to_join_the_group_docker_without_a_warning():
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("vlalab/**/*.py"), ROOT / "lab", ROOT / "tasks.py"]
    for path in files:
        for sentence in re.findall(r"(?m)^[^\n]*\n?[^\n]*usermod[^\n]*", path.read_text()):
            assert "as good as root" in sentence, path


# --- variables ----------------------------------------------------------------------------------------------


def test_every_variable_of_both_files_is_documented():
    used = set(re.findall(r"\$\{(\w+)", yaml.safe_dump(DOCUMENT) + yaml.safe_dump(GPU_DOCUMENT)))
    documented = re.findall(r"(?m)^#?(\w+)=", (ROOT / ".env.example").read_text())
    of_all = {
        service_settings.variable(name, what) for name in SERVICES for what in ("PORT", "MEMORY", "GPU", "CHECKPOINT")
    }
    own = {variable for service in manifests.services().values() for variable in service.variables}
    assert used <= set(documented) | of_all | own
    assert len(documented) == len(set(documented)), "a variable is documented twice"


@pytest.mark.parametrize("service", SETTINGS)
def test_every_setting_of_a_model_reaches_its_container(service):
    found = [
        node
        for path, _, cls in (text.partition(":") for text in SETTINGS[service])
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == cls
    ]
    assert len(found) == len(SETTINGS[service])
    fields = {node.target.id.upper() for cls in found for node in cls.body if isinstance(node, ast.AnnAssign)}
    own = {name for name in SERVICES[service].environment if name.startswith(service_settings.variable(service, ""))}
    not_host_and_port = fields - {"HOST", "PORT"}  # the command says these
    assert own == {service_settings.variable(service, field) for field in not_host_and_port}


@pytest.mark.parametrize("service", [name for name, model in manifests.models().items() if model.checkpoints])
def test_the_host_knows_the_published_checkpoints(service):
    """The folder of a suite's checkpoint is the last part of a repository that the service's own table names.

    One part of that name may be filled in there.
    """
    model = manifests.models()[service]
    told = (ROOT / model.published).read_text()
    for suite, directory in model.checkpoints.items():
        assert f'"{suite}"' in told
        spellings = [directory, *(directory.replace(part, "{}", 1) for part in directory.split("-"))]
        assert any(f"/{spelling}" in told for spelling in spellings), directory


def test_compose_itself_accepts_both_files():
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("no docker command with Compose on this machine")
    for files in ([compose.FILE], [compose.FILE, compose.GPU_FILE]):
        flags = [word for path in files for word in ("--file", str(path))]
        command = ["docker", "compose", *flags, "--profile", "jobs", "config", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")


# --- images -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_image_service_health_and_a_row(name):
    assert name in images.buildable() and f"\nFROM final AS {name}\n" in DOCKERFILE
    assert (ROOT / "services" / name / "__init__.py").is_file()
    mine = [service for service in SERVICES.values() if service.environment_name == name]
    assert any(service.health for service in mine)
    assert re.search(rf"(?m)^\| `{name}` \| .*\d+\.\d+", IMAGES), "no row with its pins in docs/images.md"


@pytest.mark.parametrize("name", paths.variant_names())
def test_a_variant_is_its_environments_image_from_another_lock(name):
    environment, _, variant = name.partition("-")
    own = images.arguments(name)
    assert own == {**images.arguments(environment), "VARIANT": variant, "FLASH_ATTN": "none"}
    assert set(variants.of(environment)) == set(manifests.environment(environment).variants)
    assert manifests.environment(name).torch.cuda == "13.0" and "vla-lab.variant=${VARIANT}" in DOCKERFILE
    lock = (paths.environment_directory(name) / "requirements.lock").read_text()
    (torch,) = re.findall(r"(?m)^torch==(\S+)", lock)
    assert re.search(rf"--variant {variant}`.*torch {re.escape(torch)}", (ROOT / "docs" / "machine.md").read_text())
    (upstream,) = re.findall(r"(?m)^torch==(\S+)", (ROOT / "images" / environment / "requirements.in").read_text())
    assert f'UPSTREAM_TORCH = "{upstream}"' in (ROOT / "services" / environment / "service/loading.py").read_text()
    assert all((ROOT / test.partition("::")[0]).is_file() for test in manifests.environment(name).tests)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_base_has_a_digest(name):
    given = {**dict(re.findall(r"(?m)^ARG (\w+)=(\S+)", DOCKERFILE)), **images.arguments(name)}
    stages = set(re.findall(r"(?mi)^FROM \S+ AS (\S+)", DOCKERFILE))
    pinned = 0
    for base in re.findall(r"(?m)^FROM (\S+)", DOCKERFILE):
        default = re.sub(r"\$\{(\w+)\}", lambda found: given.get(found[1], found[0]), base)
        if default not in stages and default != "scratch":
            assert re.search(r"@sha256:[0-9a-f]{64}$", default), f"{base} is {default}"
            pinned += 1
    assert pinned


def test_every_image_runs_as_a_user_and_says_what_it_is():
    final = DOCKERFILE.partition("FROM ${ENVIRONMENT}-environment AS final\n")[2]
    image, *commands = final.split("\nFROM final AS ")
    assert re.findall(r"(?m)^USER (.*)$", image)[-1] == "1000:1000" and "selftest.py" in image
    assert "vla-lab.lock=" in image and "org.opencontainers.image.revision=" in image
    assert "org.opencontainers.image.version=${VERSION}" in image
    assert sorted(text.split("\n")[0] for text in commands) == ENVIRONMENTS
    assert all(re.fullmatch(r'\w+\nCMD \["python", .*\]', text.strip()) for text in commands)


def test_the_dockerfile_takes_what_is_described_and_nothing_else():
    """An argument that the file does not know would be lost without a word, and one nobody describes be empty."""
    declared = {word.partition("=")[0] for line in re.findall(r"(?m)^ARG (.+)", DOCKERFILE) for word in line.split()}
    every = [*ENVIRONMENTS, *paths.variant_names()]
    assert {argument for name in every for argument in images.arguments(name)} == declared


def test_what_is_not_verified_is_reported_where_the_rest_is_promised():
    unchecked = [name for name in ENVIRONMENTS if images.arguments(name).get("FLASH_ATTN_SHA256") == ""]
    promise = re.search(r"pinned and hash-checked([^.]*)", README)[1]
    assert ("flash-attn" in promise) == bool(unchecked)
    assert ("By default this wheel is not verified" in IMAGES) == bool(unchecked)


# --- locks and documented pins ------------------------------------------------------------------------------


PLACES = ("[!.]*.lock", "images/*/[!.]*.lock", "images/common/*/[!.]*.lock", "tests/*/[!.]*.lock")
LOCKS = [str(path.relative_to(ROOT)) for place in PLACES for path in sorted(ROOT.glob(place))]


@pytest.mark.parametrize("name", LOCKS)
def test_no_lock_lacks_hashes(name):
    pins = re.split(r"(?m)^(?=[A-Za-z0-9])", (ROOT / name).read_text())[1:]
    assert pins
    for pin in pins:
        assert re.match(r"[\w.\[\],-]+(==| @ )", pin), pin.splitlines()[0]
        assert re.search(r"sha256[:=][0-9a-f]{64}", pin), pin.splitlines()[0]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_documented_pins_are_the_locks(name):
    (row,) = re.findall(rf"(?m)^\| `{name}` \| (\S+ \d+\.\d+.*) \|$", IMAGES)
    lock = (ROOT / "images" / name / "requirements.lock").read_text()
    for pin in row.split(", "):
        package, version = pin.split(" ")
        assert re.search(rf"(?m)^{re.escape(package)}=={re.escape(version)}(?: |$)", lock), f"{pin} in {name}"
