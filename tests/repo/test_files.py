"""Files held against each other: compose ↔ images ↔ services ↔ .env.example ↔ README ↔ tasks."""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from vlalab import cli
from vlalab.description import compose, manifests, ports
from vlalab.environments import locks
from vlalab.host import paths, shared_code

ROOT = paths.ROOT
SERVICES = compose.read(variables={})
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
ENVIRONMENTS = paths.image_names()
SHARED = {path.parent.name for directory in paths.SHARED for path in (ROOT / directory).glob("*/__init__.py")}
COMPOSE = (ROOT / "compose.yaml").read_text()


def tracked() -> list[Path]:
    """Returns every file git tracks or would, as text can be read from it."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    if listed is None or listed.returncode != 0:
        pytest.skip("not a git checkout: there is no list of its files")
    return [path for name in filter(None, listed.stdout.split("\0")) if (path := ROOT / name).is_file()]


@cache
def texts() -> dict[str, str]:
    """Returns the text of every tracked file that is text."""
    found = {}
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            found[str(path.relative_to(ROOT))] = data.decode("utf-8", errors="replace")
    return found


# --- compose.yaml -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_its_image_directory_and_its_code(name):
    wanted = SERVICES[name].environment_name
    assert (ROOT / "images" / wanted / "requirements.lock").is_file()
    assert (ROOT / "services" / wanted / "__init__.py").is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_that_stays_up_has_health_and_a_port_that_can_be_moved(name):
    service = SERVICES[name]
    if service.role == "job":
        assert service.profiles, "a job must not start with `docker compose up`"
        return
    assert service.health is not None and "vla_common.healthcheck" in service.health.test
    (port,) = service.ports
    assert (port.bind, port.published) == ("127.0.0.1", port.target)
    moved = compose.read(variables={ports.port_variable(name): "4321"})[name]
    assert moved.ports[0].published == 4321
    assert "4321" in moved.command and any(":4321/" in word for word in moved.health.test)


def test_the_ports_in_docker_md_are_those_of_compose_yaml():
    """A service that the page does not list yet is no error: adding one changes no page."""
    text = re.search(r"(?s)\nDefault ports: (.*?)\n\n", (ROOT / "docs" / "docker.md").read_text())[1]
    listed = {name: int(port) for name, port in re.findall(r"`(\w+)` (\d+)", text)}
    assert len(listed) > 5
    assert listed == {name: SERVICES[name].ports[0].published for name in listed}


def test_every_service_has_a_manifest_and_every_manifest_its_services():
    assert set(manifests.services()) == set(SERVICES)
    for name, service in SERVICES.items():
        if service.command[2].startswith("services."):
            assert service.command[2].split(".")[1] == manifests.directory_of(name)


def test_what_manifests_name_exists():
    for model in manifests.models().values():
        for module in filter(None, (model.getter, model.verifier, model.trainer)):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for job, benchmark in manifests.benchmarks().items():
        assert SERVICES[job].role == "job" and set(benchmark.table) <= set(benchmark.suites)
        assert benchmark.fallback in (*(n for n, one in SERVICES.items() if one.role == "policy"), "auto")
    suites = [
        suite for benchmark in manifests.benchmarks().values() for suite in (*benchmark.suites, *benchmark.variants)
    ]
    assert len(suites) == len(set(suites)), "a suite is two benchmarks'"


DOCUMENTED = set(re.findall(r"(?m)^#?(\w+)=", (ROOT / ".env.example").read_text()))
NOT_FOR_USERS = {
    "VLALAB_HERE",  # where the caller stands: programs show paths from there
    "VLALAB_COMMAND",  # `./lab eval` tells the evaluator what was typed
    "VLALAB_COMMIT", "VLALAB_LOCK_HASH", "VLALAB_NUMBA_SEED", "VLALAB_VARIANT",  # an image tells about itself
    "VLALAB_SETTINGS",  # the supervisor of a local service holds what it was started with
    "VLALAB_STEWARD_ACTS",  # the page's steward tells its commands to leave it alone
    "VLALAB_TEST_NIGHTLY",  # ./lab test --nightly tells the tests
    "VLALAB_TEST_RECORD",  # of tests that start tests
    "VLALAB_CLUSTER_HEAD", "VLALAB_CLUSTER_HOST",  # names in a state file
    "VLALAB_CLASS", "VLALAB_GPU_GB",  # the host tool tells the hub, and the hub a kernel
    "VLALAB_SMALL",  # of tests that run notebooks; a person changes the notebook's own line
}  # fmt: skip
CODE = ("services/", "shared/", "vlalab/", "images/", "compose")


def test_every_variable_that_is_read_is_documented():
    """Read: named in code, compose files or a Dockerfile. A name that ends in _ is the beginning of several."""
    read = {}
    for name, text in texts().items():
        if name in ("lab", "tasks.py") or name.startswith(CODE):
            read |= dict.fromkeys(re.findall(r"\bVLALAB_[A-Z0-9_]*[A-Z0-9]\b", text), name)
    assert len(read) > 50
    assert {name: where for name, where in read.items() if name not in DOCUMENTED | NOT_FOR_USERS} == {}
    assert not DOCUMENTED & NOT_FOR_USERS and set(read) >= NOT_FOR_USERS


def test_every_documented_variable_is_read():
    elsewhere = " ".join(text for name, text in texts().items() if name != ".env.example")
    assert [name for name in DOCUMENTED if not re.search(rf"\b{name}\b", elsewhere)] == []


# --- host tool ↔ services -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "config"), [("eval", "EvalConfig"), ("record", "RecordConfig")])
def test_what_the_host_decides_itself_is_not_a_flag(task, config):
    """The policy's address, the volume's folders, the token."""
    options = shared_code.options(f"vla_evaluation.config:{config}")
    internal = {name for name, option in options.items() if option.group == "internal"}
    assert internal == {"suite", "policy_url", "token", "run_dir", "lease_s"}
    ours = {flag.name for flag in cli.TASKS[task].flags}
    assert set(options) - internal <= ours and not internal - {"suite"} & ours


def test_documented_commands_use_flags_that_their_tasks_have():
    checked = 0
    for name, text in texts().items():
        if name == "README.md" or name.startswith("docs/"):
            for task, rest in re.findall(r"\./lab ([a-z]\w*)( [^`|#\n]*)?", text):
                flags = set(re.findall(r"--([a-z][a-z-]*)", re.sub('"[^"]*"', "", rest)))  # in quotes: a program's
                checked += len(flags)
                assert flags <= {flag.flag for flag in cli.TASKS[task].flags} | {"help"}, f"{name}: ./lab {task}{rest}"
    assert checked > 20


def test_every_environment_has_a_lock():
    expected = {*paths.image_names(), *paths.variant_names(), "host", "contract", *paths.WITHOUT_IMAGE}
    assert expected == set(locks.all_locks())
    assert [problem for lock in locks.all_locks().values() for problem in locks.problems(lock)] == []


def test_ports_differ():
    published = [port.published for service in SERVICES.values() for port in service.ports]
    assert len(published) == len(set(published))


# --- README -------------------------------------------------------------------------------------------------


def test_the_readmes_three_commands_are_its_first_and_exist():
    commands = re.findall(r"(?m)^\./lab (\w+)", README)
    assert commands[:3] == ["eval", "up", "test"]
    assert [name for name in re.findall(r"\./lab ([a-z]\w*)", README) if name not in cli.TASKS] == []


def test_the_map_in_architecture_md_is_the_tree():
    """Every directory and file of the map exists, and every top-level directory is in it."""
    tree = ARCHITECTURE.split("## The tree")[1].split("```")[1]
    stack: list[str] = []
    named = set()
    for line in tree.splitlines()[1:]:
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        names = [word for word in re.split(r"\s{2,}", line.strip())[0].split(", ") if word]
        stack = [*stack[:depth], names[0]]
        for name in names:
            path = "/".join([*stack[:depth], name]).replace("//", "/")
            named.add(path.rstrip("/"))
            if path != "shared/volume/":
                assert (ROOT / path).exists(), f"the map names {path}, which does not exist"
    tops = {str(path.relative_to(ROOT)).split("/")[0] for path in tracked() if path.parent != ROOT}
    assert {top for top in tops if not top.startswith(".")} <= {name.split("/")[0] for name in named}


def test_links_between_documents_lead_somewhere():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "bench").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_promise_of_the_security_page_names_a_test_that_exists():
    text = (ROOT / "docs/security.md").read_text()
    promises = text.split("## Promises")[1].split("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ") and not line.startswith("| promise")]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert [name for name in named if not (ROOT / name).is_file()] == []


def test_ci_runs_the_readmes_test_command():
    script = (ROOT / ".ci/run").read_text()
    assert "./lab test" in script
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci/run")]).returncode == 0


# --- the code -----------------------------------------------------------------------------------------------


def modules() -> dict[str, str]:
    return {name: text for name, text in texts().items() if name.endswith(".py")}


def test_every_module_says_what_it_is():
    silent = [name for name, text in modules().items() if text.strip() and not ast.get_docstring(ast.parse(text))]
    assert silent == []


@cache
def imported(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


MAY_IMPORT = {  # what is in a directory → packages of this repository that it may import
    "services/": SHARED,
    "shared/common/": {"vla_common"},
    "shared/contract/": {"vla_contract"},
    "shared/modelkit/": {"vla_common", "vla_contract", "vla_modelkit"},
    "shared/fast_libero/": {"fast_libero"},
    "shared/datasets/": {"vla_common", "vla_datasets"},
    "shared/evaluation/": {"vla_common", "vla_contract", "vla_evaluation", "vla_notebooks"},
    "shared/evaluation/vla_evaluation/offline/": {"vla_common", "vla_contract", "vla_evaluation", "vla_datasets"},
    "shared/evaluation/vla_evaluation/audit/": {"vla_common", "vla_contract", "vla_evaluation", "vla_datasets"},
    "shared/notebooks/": {"vla_common", "vla_contract", "vla_notebooks"},
    "lessons/": set(),
    "vlalab/": {"vlalab"},
    "vlalab/host/shared_code.py": {"vlalab", "vla_common"},
}


def test_imports_go_one_way():
    """No service imports another; but mini-VLA is put together of the course's labs."""
    ours, checked = {"vlalab", "services", *SHARED}, 0
    for name, text in modules().items():
        directories = [directory for directory in MAY_IMPORT if name.startswith(directory)]
        if not directories:
            continue
        checked += 1
        found = {other.split(".")[0] for other in imported(text)} & ours
        if name.startswith("services/"):
            own = name.split("/")[1]
            others = {other.split(".")[1] for other in imported(text) if other.startswith("services.")}
            assert others <= {own, *(("ws_mdl",) if own == "minivla" else ())}, name
            found -= {"services"}
        assert found <= MAY_IMPORT[max(directories, key=len)], name
    assert checked > 300


ABOVE = {  # what is on top of a directory, which therefore does not import it
    "shared/contract/vla_contract": {"protocol": {"client", "server"}, "client": {"server"}, "server": {"client"}},
    "services/openvla": {
        "checkpoint": {"decoding", "service"}, "model": {"decoding", "service"}, "decoding": {"service"},
    },
}  # fmt: skip


@pytest.mark.parametrize("root", ABOVE)
def test_directories_build_on_each_other(root):
    package = root.replace("services/", "services.").rpartition("/")[2]
    for directory, above in ABOVE[root].items():
        files = {name: text for name, text in modules().items() if name.startswith(f"{root}/{directory}/")}
        assert files
        for name, text in files.items():
            tails = [other.removeprefix(f"{package}.") for other in imported(text) if other.startswith(f"{package}.")]
            assert not {tail.split(".")[0] for tail in tails} & above, name


def test_evaluation_knows_no_benchmark_by_name():
    """Nor a camera, an action's size or a control rate: these are data of the benchmark that it is given."""
    cameras = manifests.benchmarks()["libero"].cameras
    words = re.compile(rf"(?i)libero|robosuite|mujoco|{'|'.join(cameras)}|(?<![\w.:])7(?![\w.])|\b20 ?Hz")
    code = {name: text for name, text in texts().items() if name.startswith("shared/evaluation/")}
    assert len(code) > 30
    for name, text in code.items():
        if not name.endswith((".css", ".js", ".j2")):
            assert [line for line in text.splitlines() if words.search(line)] == [], name


HOST_TOOL = [
    "host",
    "description",
    "environments",
    "engine",
    "runtimes",
    "bundles",
    "doctor",
    "commands",
    "testing",
    "tasks",
]


def test_the_host_tools_packages_build_on_each_other():
    """Each imports only those before it; the map says so in the same order. `cli` is on top of them all."""
    directories = {path.parent.name for path in (ROOT / "vlalab").glob("*/__init__.py")}
    assert directories == set(HOST_TOOL)
    assert re.findall(r"(?m)^  (\w+)/ ", ARCHITECTURE.split("\nvlalab/")[1].split("\ntests/")[0]) == HOST_TOOL
    for name, text in modules().items():
        if name.startswith("vlalab/") and name.count("/") > 1:
            reached = {other.split(".")[1] for other in imported(text) if other.startswith("vlalab.")}
            assert reached <= set(HOST_TOOL[: HOST_TOOL.index(name.split("/")[1]) + 1]), name


def test_the_host_tool_names_no_model_and_no_benchmark():
    """But in comments, docstrings and examples of commands: what it knows of them, manifests and compose.yaml say."""
    known = {*ENVIRONMENTS, *manifests.models(), *manifests.benchmarks(), *manifests.suites()} - {
        "ui",
        "lerobot",
    }  # a data format is called so, too
    words = [name + "(?!_)" if name == "hf" else name for name in sorted(known)]  # hf_… is a token of the hub's
    named = re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])")
    for name, text in modules().items():
        if name.startswith("vlalab/"):
            tree = ast.parse(text)
            silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            said = [text.value for text in texts if id(text) not in silent and "./lab " not in text.value]
            assert [text for text in said if named.search(text)] == [], name


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_image_has_the_shared_packages_its_services_import(name):
    """Copied and on PYTHONPATH; an import inside a function counts too."""
    code = [text for path, text in modules().items() if path.startswith(f"services/{name}/")]
    found = {other.split(".")[0] for text in code for other in imported(text)}
    dockerfile = (ROOT / "images" / "Dockerfile").read_text()
    for package in (path.parent for path in (ROOT / "shared").glob("*/*_*/__init__.py")):
        if package.name in found:
            directory = package.parent.relative_to(ROOT)
            assert f"COPY {directory} {directory}\n" in dockerfile, package.name
            assert re.search(rf"PYTHONPATH=\S*/opt/vla-lab/{directory}\b", dockerfile), package.name


def test_the_simulators_tests_import_it_after_it_is_configured():
    """MuJoCo binds to a renderer when it is imported, so a test file must not do that while tests are collected."""
    for name, text in modules().items():
        if name.startswith("tests/libero/"):
            top = ast.Module([n for n in ast.parse(text).body if isinstance(n, (ast.Import, ast.ImportFrom))], [])
            assert not {o.split(".")[0] for o in imported(ast.unparse(top))} & {"mujoco", "robosuite", "libero"}, name


def test_the_contract_needs_no_torch():
    heavy = {"torch", "transformers", "tensorflow", "robosuite", "libero", "mujoco"}
    for name, text in modules().items():
        if name.startswith("shared/contract/"):
            assert not {other.split(".")[0] for other in imported(text)} & heavy, name


# --- what must never be committed ---------------------------------------------------------------------------


def test_no_package_index_is_named():
    address = re.compile(r"https?://[^\s\"'`)]*/simple\b|--(?:extra-)?index-url[ =]https?://|https?://pypi\.")
    listing = [sys.executable, "-m", "pip", "config", "list"]
    configured = subprocess.run(listing, capture_output=True, text=True).stdout
    hosts = {host for host in re.findall(r"https?://([^/\s']+)", configured) if "." in host}
    for name, text in texts().items():
        assert not address.search(text), name
        assert not [host for host in hosts if host in text], name
        if name.endswith(".lock") or "requirements" in name:
            assert not re.search(r"https?://(?!github\.com/)", text), name


def test_no_path_of_one_machine_is_written_down():
    here = {f"{ROOT}/", f"{Path.home()}/"} - {"/", "//"}
    anyones = re.compile(r"(?<![\w.$}])/(?:home|Users)/[a-z]\w*/")
    for name, text in texts().items():
        assert not [path for path in here if re.search(rf"(?<![\w.]){re.escape(path)}", text)], name
        assert not anyones.search(text), name


def test_tables_and_progress_are_drawn_by_a_console_that_shows_control_characters():
    for directory in ("vlalab", "shared", "services"):
        for path in (ROOT / directory).rglob("*.py"):
            if path.name != "entrypoint.py":
                assert not re.search(r"\bConsole\(|rich import print|get_console", path.read_text()), path


def test_nothing_that_is_read_can_run_code():
    """Weights and recordings are numbers: pickles are code. LIBERO's init states are pickles, read by a reader that
    knows arrays only (tests/libero/test_suites.py)."""
    for name, text in modules().items():
        if name.startswith(("services/", "shared/", "vlalab/")) and not name.endswith("fast_libero/initstates.py"):
            assert "allow_pickle=True" not in text and not imported(text) & {"pickle", "dill", "joblib"}, name
            assert text.count("torch.load(") == len(re.findall(r"torch\.load\([^\n]*weights_only=True", text)), name


def test_nothing_is_left_unfinished():
    words = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    for name, text in texts().items():
        if name.endswith((".py", ".sh", ".md", ".yaml")) or name == "lab":
            assert not words.search(text), name


def test_every_file_that_the_architecture_page_walks_through_exists():
    page = (ROOT / "docs" / "architecture.md").read_text()
    walks = page[page.index("## The whole") : page.index("## One environment per stack")]
    named = re.findall(r"`((?:shared|services|vlalab|images|tests)/[\w./-]+|server/[\w.]+)`", walks)
    assert len(named) > 20
    missing = [
        name for name in named if not (ROOT / re.sub("^server/", "shared/contract/vla_contract/server/", name)).exists()
    ]
    assert not missing
