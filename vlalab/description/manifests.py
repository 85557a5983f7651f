"""What `images/<env>/manifest.yaml` and `services/<folder>/manifest.yaml` say of an environment and of services.

It is what the host tool, the tests and the documents' tables have to know and no other file says: what runs, where and
with which variables is compose.yaml's alone. Every key is a field of a dataclass here.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from vlalab.host import borrowed, paths
from vlalab.host.console import LabError, require_known, unknown

NAME = "manifest.yaml"
DEFINED = ("suites", "cameras", "profiles", "variants")  # of a benchmark: what its program may define instead
YAML_TYPES = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a mapping",
}  # fmt: skip
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # every command reads them


@dataclass(frozen=True)
class Stage:
    """A stage of images/Dockerfile that a folder of this machine may replace; `build` has a flag of its name."""

    argument: str  # the build argument by which an image has a use for it
    help: str
    word: str = ""  # what the argument may be told instead of a folder


@dataclass(frozen=True)
class Torch:
    """The torch of an environment: what a GPU and its driver have to be for it. Its self-test holds it to the build."""

    cuda: str  # as torch.version.cuda says it
    architectures: tuple[str, ...]  # torch.cuda.get_arch_list()


@dataclass(frozen=True)
class Environment:
    """An environment: `images/<env>/manifest.yaml`."""

    about: str  # what it is for
    venv_gb: float  # images/<env>/.venv, measured
    image_gb: float  # uncompressed, before anything is measured: docs/images.md has measured sizes
    shared_gb: Mapping[str, float] = field(default_factory=dict)  # layer → its size; images that name it share it
    needs_gl: bool = False  # its programs draw: headless OpenGL is looked after before they start
    tested_first: bool = False  # its tests take longest
    default: bool = False  # made where no name is given; benchmarks run in it unless they name another
    stages: Mapping[str, Stage] = field(default_factory=dict)
    torch: Torch | None = None
    renderer: str = ""  # the module that prints who draws


@dataclass(frozen=True)
class Model:
    """What a policy loads."""

    type: str  # what a checkpoint's config.json calls its model
    checkpoints: Mapping[str, str]  # suite → the published one's folder under checkpoints/: its repository's name
    published: str  # the file in which its program names those repositories
    getter: str  # the module that downloads one, or makes a tiny one
    data: str = ""  # the module that says what is in a data set for it, checks one and downloads one
    verifier: str = ""  # the module that measures one
    exporter: str = ""  # the module that writes its ONNX modules
    trainer: str = ""  # the module that fine-tunes one on a data set
    suite_setting: str = ""  # the setting that is told the suite
    options: Mapping[str, str] = field(default_factory=dict)  # task → MODULE:CLASS of its options
    settings: tuple[str, ...] = ()  # FILE:CLASS of dataclasses whose fields are variables of the service

    @property
    def example_suite(self) -> str:
        """The suite that messages name where any would do: the first that there is a published checkpoint for."""
        return next(iter(self.checkpoints), "SUITE")


@dataclass(frozen=True)
class Benchmark:
    """What a job of compose.yaml evaluates policies on.

    suites, cameras, profiles and variants may be MODULE:NAME, where a program defines them (`benchmarks` loads them).
    """

    title: str
    suites: tuple[str, ...]
    episodes: int  # of every task: its init states
    cameras: tuple[str, ...]
    profiles: tuple[str, ...]  # the first one is used where none is named
    table: tuple[str, ...] = ()  # the suites of its published table: `eval all`
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of suites → the suite
    variants: Mapping[str, str] = field(default_factory=dict)  # further suites → the one that each is made of
    fallback: str = "auto"  # the policy where none is up and none is named: needs no model and no GPU
    assets: str = ""  # the module that gets its meshes and textures
    offline: str = ""  # the module that asks a policy about recorded data
    datasets: str = ""  # the module that makes data sets of its recordings and runs, and reads them
    options: Mapping[str, str] = field(default_factory=dict)  # task → MODULE:CLASS of its options


@dataclass(frozen=True)
class Service:
    """A service of compose.yaml: an entry of `services/<folder>/manifest.yaml`."""

    about: str
    memory_mb: int | None = None  # resident, measured; of a model with its tiny checkpoint
    model: Model | None = None
    benchmark: Benchmark | None = None
    notebooks: bool = False  # JupyterLab, for the notebooks of its folder
    opened: bool = False  # by a browser alone, as notebooks are: no other service asks it
    draws: bool = False  # headless OpenGL is looked after before it starts
    labs: Mapping[str, str] = field(default_factory=dict)  # of the course: lab → its package, which has a config.py
    practice: tuple[str, ...] = ()  # one module each in the folder practice, with a class in its settings.py
    recording: str = ""  # the variable that names the run which it plays back
    needs: Mapping[str, str] = field(default_factory=dict)  # variable without which it cannot start → an example of one
    simulated: bool = False  # a policy that works from the simulator alone, and not from what is recorded
    variables: Mapping[str, str] = field(default_factory=dict)  # its own that .env.example does not explain

    @property
    def is_opened(self) -> bool:
        """Whether a browser alone opens it."""
        return self.opened or self.notebooks


@dataclass(frozen=True)
class ServiceManifest:
    """`services/<folder>/manifest.yaml`."""

    services: Mapping[str, Service]


# --- reading ------------------------------------------------------------------------------------------------


def environment(name: str, directory: Path = paths.ROOT / "images") -> Environment:
    """Return an environment's manifest. Raises LabError where there is none, or a bad one."""
    return _read(directory / name / NAME, Environment)


def environments() -> dict[str, Environment]:
    """Return the manifest of every environment, by name."""
    return {name: environment(name) for name in paths.image_names()}


def default_environment() -> str:
    """Return the environment that is meant where none is named."""
    return next(name for name, manifest in environments().items() if manifest.default)


def stages() -> dict[str, Stage]:
    """Return the stages of the Dockerfile that a folder may replace, by name."""
    return {name: stage for manifest in environments().values() for name, stage in manifest.stages.items()}


@functools.cache
def directories() -> dict[str, ServiceManifest]:
    """Return the manifests of services, by folder. Raises LabError for a bad one, and for a service that has two."""
    manifests = {
        path.parent.name: _read(path, ServiceManifest) for path in sorted((paths.ROOT / "services").glob(f"*/{NAME}"))
    }
    owners: dict[str, str] = {}
    for directory, manifest in manifests.items():
        for name in manifest.services:
            if owners.setdefault(name, directory) != directory:
                raise LabError(f"service '{name}' has two manifests, services/{owners[name]} and services/{directory}")
    return manifests


def directory_of(service: str) -> str:
    """Return the folder of services/ whose manifest has a service of compose.yaml."""
    return next(directory for directory, manifest in directories().items() if service in manifest.services)


def services() -> dict[str, Service]:
    """Return what the manifests say of the services of compose.yaml, by name."""
    return {name: service for manifest in directories().values() for name, service in manifest.services.items()}


def models() -> dict[str, Model]:
    """Return the models, by the service that loads them."""
    return {name: service.model for name, service in services().items() if service.model}


def published_suites() -> tuple[str, ...]:
    """Return the suites for which some model has a published checkpoint."""
    return tuple(dict.fromkeys(suite for model in models().values() for suite in model.checkpoints))


def notebooks() -> dict[str, str]:
    """Return folder of services/ → the service that shows its notebooks in JupyterLab."""
    return {directory_of(name): name for name, service in services().items() if service.notebooks}


@functools.cache
def benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks, by the job of compose.yaml that runs them."""
    return {name: _loaded(service.benchmark) for name, service in services().items() if service.benchmark}


def _loaded(benchmark: Benchmark) -> Benchmark:
    """Return a benchmark with the names that a program defines."""
    locations = {name: value for name, value in vars(benchmark).items() if name in DEFINED and isinstance(value, str)}
    values = {name: borrowed.load(location) for name, location in locations.items()}
    return replace(benchmark, **{name: value if name == "variants" else tuple(value) for name, value in values.items()})


def suites() -> dict[str, str]:
    """Return suite → the job that evaluates on it."""
    return {suite: job for job, benchmark in benchmarks().items() for suite in (*benchmark.suites, *benchmark.variants)}


def suite_aliases() -> dict[str, str]:
    """Return other names of suites → the suite."""
    return {name: suite for benchmark in benchmarks().values() for name, suite in benchmark.aliases.items()}


def base_of(suite: str) -> str:
    """Return the suite that this one is made of, itself where it is made of none: whose checkpoints hold for it."""
    return next(
        (benchmark.variants[suite] for benchmark in benchmarks().values() if suite in benchmark.variants), suite
    )


def format_suites() -> str:
    """Return the suites as helps name them; of those that are made of others, how many there are."""
    named = [suite for benchmark in benchmarks().values() for suite in benchmark.suites]
    further = [suite for benchmark in benchmarks().values() for suite in benchmark.variants]
    if further:
        named.append(f"one of {len(further)} that disturb these ({further[-1]}, ...)")
    return " or ".join(", ".join(named).rsplit(", ", 1)) if len(named) > 1 else named[0]


def default_job() -> str:
    """Return the job of the benchmark in the folder of the default environment; for what concerns no benchmark."""
    return min(benchmarks(), key=lambda job: directory_of(job) != default_environment())


def job_of(suite: str) -> str:
    """Return the job that evaluates on a suite. Raises LabError for an unknown one."""
    require_known("suite", [suite], suites(), suite_aliases())
    return suites()[suite]


@functools.cache
def _read(path: Path, kind: type) -> Any:
    label = str(path.relative_to(paths.ROOT)) if path.is_relative_to(paths.ROOT) else str(path)
    try:
        return _parse(kind, yaml.load(path.read_text(encoding="utf-8"), LOADER), label)
    except OSError as error:
        raise LabError(f"{label} cannot be read ({error.strerror}); docs/architecture.md says what it holds") from None
    except yaml.YAMLError as error:
        raise LabError(f"{label} is no YAML: {' '.join(str(error).split())}") from None


def _parse(kind: Any, data: Any, location: str) -> Any:
    """Return `data`, as YAML gives it, as what `kind` says: a dataclass, a mapping, a tuple or a plain value.

    Raises LabError for an unknown or a missing key and for a value of another type; `where` names its place.
    """
    if isinstance(data, str) and location.rpartition(": ")[2] in DEFINED:
        return data
    arguments = typing.get_args(kind)
    if types.NoneType in arguments:
        return None if data is None else _parse(arguments[0], data, location)
    expected, is_class = _yaml_type(kind), dataclasses.is_dataclass(kind)
    data = float(data) if expected is float and type(data) is int else data
    actual: type = type(data)  # isinstance would take true for a number
    if actual is not expected:
        raise LabError(f"{location} is {data!r}; expected {YAML_TYPES[expected]}")
    if expected is list:
        return tuple(_parse(arguments[0], value, f"{location}[{index}]") for index, value in enumerate(data))
    if not is_class:
        is_mapping = expected is dict
        return {key: _parse(arguments[1], data[key], f"{location}: {key}") for key in data} if is_mapping else data
    hints = typing.get_type_hints(kind)
    for key in data:
        if key not in hints:
            raise LabError(unknown(f"{location}: key", str(key), hints))
    for entry in dataclasses.fields(kind):
        if entry.name not in data and entry.default is entry.default_factory is dataclasses.MISSING:
            raise LabError(f"{location} lacks '{entry.name}'; expected {YAML_TYPES[_yaml_type(hints[entry.name])]}")
    return kind(**{key: _parse(hints[key], value, f"{location}: {key}") for key, value in data.items()})


def _yaml_type(kind: Any) -> type:
    """Return the type in which YAML gives a dataclass, a mapping, a tuple or a plain value."""
    if dataclasses.is_dataclass(kind):
        return dict
    plain: type = {tuple: list, Mapping: dict}.get(typing.get_origin(kind), kind)
    return plain
