"""The packages of shared/ install by name, version and dependencies; the images find the same ones on one path."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.ports import free_ports
from vlalab.environments import licences, locks, venvs
from vlalab.host import paths, shared_code

ROOT = paths.ROOT
PACKAGES = {next((ROOT / directory).glob("*/__init__.py")).parent.name: ROOT / directory for directory in paths.SHARED}
CONTRACT = PACKAGES["vla_contract"]
# The distribution of a module whose name differs by more than underscores.
DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless", "OpenGL": "pyopengl"}
# Other packages import these where they are installed: uvicorn, torch.utils.tensorboard.
NOT_IMPORTED_HERE = {"httptools", "uvloop", "tensorboard"}
# fast_libero: LIBERO and robosuite are installed without the dependencies that they declare; these they import.
LIBERO, LIBEROS = {"libero", "robosuite"}, {
    "bddl", "cloudpickle", "easydict", "future", "matplotlib", "numba", "opencv-python-headless", "pillow", "pyyaml",
    "scipy", "termcolor",
}  # fmt: skip
# Prints each module that cannot be imported, with what it lacks, and the versions of all installed packages.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
from importlib.metadata import distributions
missing = {}
for module in pkgutil.walk_packages(importlib.import_module(sys.argv[1]).__path__, sys.argv[1] + "."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing[module.name] = error.name
print(json.dumps([missing, {one.name: one.version for one in distributions()}]))
"""


def project(package: str) -> dict:
    return locks.tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())["project"]


def requirements(package: str) -> list[Requirement]:
    """All that a package declares, its extras among it."""
    extras = project(package).get("optional-dependencies", {})
    return [Requirement(line) for lines in (project(package)["dependencies"], *extras.values()) for line in lines]


def distribution(module: str) -> str:
    return DISTRIBUTIONS.get(module, module.replace("_", "-"))


def imported(package: str) -> set[str]:
    """The packages that its modules import, inside functions too."""
    nodes = [node for path in PACKAGES[package].rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {package}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_declares_what_its_modules_import(package):
    assert project(package)["name"] == package.replace("_", "-")
    declared = {requirement.name for requirement in requirements(package)} - NOT_IMPORTED_HERE
    if package == "fast_libero":
        declared = declared - LIBEROS | LIBERO
    assert declared == set(map(distribution, imported(package)))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_version_in_an_images_lock_is_one_that_a_package_takes(package):
    pins = [pin for pin in licences.pins() if pin[0] in {requirement.name for requirement in requirements(package)}]
    for one in requirements(package):
        versions = [version for name, version in pins if name == one.name]
        assert one.specifier or one.name.startswith("vla-"), one
        assert all(one.specifier.contains(version) for version in versions), (str(one), versions)


@pytest.mark.parametrize("source", sorted(ROOT.glob("shared/*/requirements.in")), ids=lambda path: path.parent.name)
def test_what_a_lock_takes_for_a_package_is_what_the_package_declares(source):
    """The contract's are in every lock anyway."""
    (package,) = (name for name, directory in PACKAGES.items() if directory == source.parent)
    server = {requirement.name for requirement in requirements("vla_contract")}
    needed = {Requirement(line).name for line in project(package)["dependencies"]}
    listed = {line for line in source.read_text().splitlines() if line and not line.startswith("#")}
    assert {name for name in needed if not name.startswith("vla-")} - server == listed - server


def test_an_images_path_has_every_package():
    """`./lab` and the tests read the same list in vlalab/host/paths.py."""
    stated = re.search(r" PYTHONPATH=(\S+)", (ROOT / "images/Dockerfile").read_text())[1]
    assert stated.split(":") == ["/opt/vla-lab", *(f"/opt/vla-lab/{directory}" for directory in paths.SHARED)]
    assert {path.parents[1] for path in ROOT.glob("shared/*/*_*/__init__.py")} == set(PACKAGES.values())


def make(venv: Path, *sources: str) -> Path:
    """Install directories of the repository into a new environment, which holds nothing else. Return its Python."""
    python = venv / "bin" / "python"
    venvs.uv(["venv", "--no-project", "--python", sys.executable, str(venv)])
    venvs.uv(["pip", "install", "--python", str(python), *(f"{ROOT}/{source}" for source in sources)])
    return python


def import_all(python: Path, package: str, cwd: Path) -> tuple[dict[str, str], dict[str, str]]:
    command = [python, "-I", "-c", IMPORT_ALL, package]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize("package", sorted({*PACKAGES} - {"fast_libero"}))  # tests/libero installs that
def test_a_package_installs_alone_and_every_module_that_needs_no_extra_imports(package, tmp_path):
    """Alone but for those of the same folder that it names."""
    ours = [name for name in PACKAGES if name in imported(package)]
    python = make(tmp_path / "venv", *(str(PACKAGES[one].relative_to(ROOT)) for one in [*ours, package]))
    missing, versions = import_all(python, package, tmp_path)
    extras = {
        Requirement(line).name for lines in project(package).get("optional-dependencies", {}).values() for line in lines
    }
    assert set(map(distribution, missing.values())) <= extras
    assert {versions[name.replace("_", "-")] for name in [*ours, package]} == {shared_code.version()}


@pytest.mark.nightly
def test_an_installed_client_speaks_to_an_installed_server(tmp_path):
    """As the contract's README has both; the client's environment has no web framework."""
    text = (CONTRACT / "README.md").read_text().replace("8001", str(free_ports(1)[0]))
    service, caller = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    directory = CONTRACT.relative_to(ROOT)
    client, server = make(tmp_path / "client", str(directory)), make(tmp_path / "server", f"{directory}[server]")
    missing, versions = import_all(client, "vla_contract", tmp_path)
    assert set(versions) == {"vla-contract", "numpy", "msgpack"}
    assert missing and all(name.startswith("vla_contract.server.") for name in missing)
    assert import_all(server, "vla_contract", tmp_path)[0] == {}
    process = subprocess.Popen([server, "-I", "-c", service], cwd=tmp_path)
    try:
        program = (
            f"import numpy as np\nimage_hwc = np.zeros((8, 8, 3), np.uint8)\n{caller}\nprint(chunk.actions.tolist())"
        )
        done = subprocess.run([client, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.endswith("[[0.0, 0.0]]\n"), done.stderr
    finally:
        process.terminate()
        process.wait()
