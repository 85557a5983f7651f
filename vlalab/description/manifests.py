"""The manifests `images/<env>/manifest.yaml` of environments and `services/<directory>/manifest.yaml` of services.

They have what the host tool, the tests and the tables in docs need beyond compose.yaml, which defines what runs, where
and with which variables. Every key is a field of a dataclass here.
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

from vlalab.host import paths, shared_code
from vlalab.host.console import LabError, check_choices, unknown

NAME = "manifest.yaml"
PYTHONS = ("3.10", "3.11")  # of environments that name none, the preferred version first
DEFINED = ("suites", "cameras", "profiles", "variants", "wide")  # fields of a benchmark that its program may define
YAML_TYPES = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a mapping",
}  # fmt: skip
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # fast: every command reads manifests


@dataclass(frozen=True)
class ImageStage:
    """A stage of images/Dockerfile that a local directory can replace; `build` has a flag of its name."""

    argument: str  # the build argument that enables it
    help: str
    word: str = ""  # a value of the argument other than a directory


@dataclass(frozen=True)
class Torch:
    """The torch of an environment, which sets the requirements on GPU and driver. The self-test checks it."""

    cuda: str  # torch.version.cuda
    architectures: tuple[str, ...]  # torch.cuda.get_arch_list()


@dataclass(frozen=True)
class EnvironmentVariant:
    """The same environment with another torch: `images/<env>/<variant>/` has its overrides.txt and its lock."""

    venv_gb: float
    image_gb: float
    torch: Torch
    tests: tuple[str, ...]  # those that every `./lab test` runs in it; --nightly runs all of its environment's


@dataclass(frozen=True)
class EnvironmentManifest:
    """An environment: `images/<env>/manifest.yaml`."""

    about: str  # description
    venv_gb: float  # images/<env>/.venv, measured
    image_gb: float  # uncompressed, an estimate; docs/images.md has measured sizes
    python: tuple[str, ...] = PYTHONS  # supported versions; the image has the first, and the lock serves all
    shared_gb: Mapping[str, float] = field(default_factory=dict)  # layer shared by images → its size
    needs_gl: bool = False  # its programs render: set up headless OpenGL first
    tested_first: bool = False  # since its tests take longest
    tests: tuple[str, ...] = ()  # files in tests/ of other environments, of shared packages, which run in it too
    default: bool = False  # the environment if none is named; for bench/ too
    stages: Mapping[str, ImageStage] = field(default_factory=dict)
    torch: Torch | None = None
    variants: Mapping[str, EnvironmentVariant] = field(default_factory=dict)
    renderer: str = ""  # the module that prints the OpenGL renderer


@dataclass(frozen=True)
class ServiceModel:
    """The model of a policy service."""

    type: str = ""  # value of `key` in a checkpoint's config.json; empty: any
    key: str = "model_type"
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # suite → directory and repository of a published one
    published: str = ""  # the file that lists those repositories
    getter: str = ""  # the module that downloads a checkpoint or creates a tiny one
    data: str = ""  # the module that describes, checks and downloads its data sets
    verifier: str = ""  # the module that measures a checkpoint
    exporter: str = ""  # the module that exports to ONNX
    trainer: str = ""  # the module that fine-tunes it
    suite_setting: str = ""  # the setting for the suite
    options: Mapping[str, str] = field(default_factory=dict)  # task → MODULE:CLASS of its options
    settings: tuple[str, ...] = ()  # FILE:CLASS of dataclasses whose fields are variables of the service

    @property
    def example_suite(self) -> str:
        """The suite for examples in messages: the first with a published checkpoint."""
        return next(iter(self.checkpoints), "SUITE")

    @property
    def download_flag(self) -> str:
        """The flag of `./lab checkpoint` for examples in messages."""
        return f"--suite {self.example_suite}" if self.checkpoints else "--repo OWNER/NAME"

    def owns(self, config: Mapping[str, Any]) -> bool:
        """Return whether a checkpoint with that config.json is of this model."""
        return config.get(self.key) == self.type if self.type else self.key in config


@dataclass(frozen=True)
class BenchmarkEntry:
    """A benchmark, which a job of compose.yaml evaluates policies on.

    suites, cameras, profiles, variants and wide may be MODULE:NAME, which `benchmarks` loads.
    """

    title: str
    suites: tuple[str, ...]
    episodes: int  # per task: its init states
    cameras: tuple[str, ...]
    profiles: tuple[str, ...]  # the first is the default
    table: tuple[str, ...] = ()  # suites of its published table: `eval all`
    aliases: Mapping[str, str] = field(default_factory=dict)  # other name → suite
    variants: Mapping[str, str] = field(default_factory=dict)  # derived suite → its base suite
    wide: Mapping[str, str] = field(default_factory=dict)  # suite → the one whose starts are anywhere in reach
    scenes: bool = False  # its data sets may have scenes: rearranged steps with the places of things as labels
    fallback: str = "auto"  # default policy; needs no model and no GPU
    assets: str = ""  # the module that gets its assets
    offline: str = ""  # the module that queries a policy with recorded data
    audit: str = ""  # the module that audits a policy
    audit_suite: str = ""  # whose demonstrations are used where no suite is named
    datasets: str = ""  # the module that creates and reads data sets
    options: Mapping[str, str] = field(default_factory=dict)  # task → MODULE:CLASS of its options


@dataclass(frozen=True)
class ServiceEntry:
    """A service of compose.yaml: an entry of `services/<directory>/manifest.yaml`."""

    about: str
    memory_mb: int | None = None  # resident, measured; models with a tiny checkpoint
    model: ServiceModel | None = None
    benchmark: BenchmarkEntry | None = None
    notebooks: bool = False  # JupyterLab, with the notebooks of its directory
    opened: bool = False  # only by browsers, like notebooks; not by other services
    draws: bool = False  # renders: set up headless OpenGL first
    labs: Mapping[str, str] = field(default_factory=dict)  # course lab → its package, which has a config.py
    practice: tuple[str, ...] = ()  # modules in the directory practice, with a class in its settings.py
    recording: str = ""  # the variable with the name of the run to replay
    trained: str = ""  # the directory below checkpoints/ with the weights that `./lab train` makes for it
    needs: Mapping[str, str] = field(default_factory=dict)  # required variable → example
    simulated: bool = False  # a policy that needs the simulator's state
    variables: Mapping[str, str] = field(default_factory=dict)  # its variables that .env.example does not document

    @property
    def is_opened(self) -> bool:
        """Whether only browsers use it."""
        return self.opened or self.notebooks


@dataclass(frozen=True)
class ServiceManifest:
    """`services/<directory>/manifest.yaml`."""

    services: Mapping[str, ServiceEntry]


# --- reading ------------------------------------------------------------------------------------------------


def environment(name: str, directory: Path = paths.ROOT / "images") -> EnvironmentManifest:
    """Return the manifest of an environment or a variant ("openvla-cu130"). Raise LabError if missing or invalid."""
    base, _, variant = name.partition("-")
    manifest: EnvironmentManifest = _read(directory / base / NAME, EnvironmentManifest)
    if not variant:
        return manifest
    if variant not in manifest.variants:
        raise LabError(unknown(f"variant of {base}", variant, manifest.variants))
    return replace(manifest, stages={}, shared_gb={}, variants={}, **vars(manifest.variants[variant]))


def environments() -> dict[str, EnvironmentManifest]:
    """Return the manifest of every environment, by name."""
    return {name: environment(name) for name in paths.image_names()}


def default_environment() -> str:
    """Return the default environment."""
    return next(name for name, manifest in environments().items() if manifest.default)


def stages() -> dict[str, ImageStage]:
    """Return the stages of the Dockerfile that a directory can replace, by name."""
    return {name: stage for manifest in environments().values() for name, stage in manifest.stages.items()}


@functools.cache
def directories() -> dict[str, ServiceManifest]:
    """Return the manifests of services by directory. Raise LabError for an invalid one or a duplicate service."""
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
    """Return the directory in services/ whose manifest has the service."""
    return next(directory for directory, manifest in directories().items() if service in manifest.services)


def services() -> dict[str, ServiceEntry]:
    """Return the manifest entries of the services of compose.yaml, by name."""
    return {name: service for manifest in directories().values() for name, service in manifest.services.items()}


def models() -> dict[str, ServiceModel]:
    """Return the models by service."""
    return {name: service.model for name, service in services().items() if service.model}


def published_suites() -> tuple[str, ...]:
    """Return the suites with a published checkpoint of any model."""
    return tuple(dict.fromkeys(suite for model in models().values() for suite in model.checkpoints))


def notebooks() -> dict[str, str]:
    """Return directory in services/ → the JupyterLab service of its notebooks."""
    return {directory_of(name): name for name, service in services().items() if service.notebooks}


@functools.cache
def benchmarks() -> dict[str, BenchmarkEntry]:
    """Return the benchmarks by job of compose.yaml, those of the default environment first.

    Fields that their program defines, MODULE:NAME, are loaded.
    """
    loaded: dict[str, BenchmarkEntry] = {}
    for job, benchmark in ((name, service.benchmark) for name, service in services().items()):
        if benchmark:
            defined = {name: value for name in DEFINED if isinstance(value := getattr(benchmark, name), str)}
            values = {name: shared_code.load(location) for name, location in defined.items()}
            values = {
                name: dict(value) if isinstance(value, Mapping) else tuple(value) for name, value in values.items()
            }
            loaded[job] = replace(benchmark, **values)
    return dict(sorted(loaded.items(), key=lambda item: directory_of(item[0]) != default_environment()))


def suites() -> dict[str, str]:
    """Return suite → its job."""
    return {suite: job for job, benchmark in benchmarks().items() for suite in (*benchmark.suites, *benchmark.variants)}


def suite_aliases() -> dict[str, str]:
    """Return other name → suite."""
    return {name: suite for benchmark in benchmarks().values() for name, suite in benchmark.aliases.items()}


def base_of(suite: str) -> str:
    """Return the base of a derived suite, whose checkpoints it uses; any other suite is its own base."""
    return next(
        (benchmark.variants[suite] for benchmark in benchmarks().values() if suite in benchmark.variants), suite
    )


def format_suites() -> str:
    """Return the list of suites for help texts; derived ones as a count with an example."""
    named = [suite for benchmark in benchmarks().values() for suite in benchmark.suites]
    if further := [suite for benchmark in benchmarks().values() for suite in benchmark.variants]:
        named.append(f"one of {len(further)} perturbed variants ({further[-1]}, ...)")
    return " or ".join(", ".join(named).rsplit(", ", 1))


def default_job() -> str:
    """Return the job of the default environment's benchmark, for programs that need no benchmark."""
    return next(iter(benchmarks()))


def job_of(suite: str) -> str:
    """Return the job of a suite. Raise LabError for an unknown suite."""
    check_choices("suite", [suite], suites(), suite_aliases())
    return suites()[suite]


@functools.cache
def _read(path: Path, kind: type) -> Any:
    label = str(path.relative_to(paths.ROOT)) if path.is_relative_to(paths.ROOT) else str(path)
    try:
        return _parse(kind, yaml.load(path.read_text(encoding="utf-8"), LOADER), label)
    except OSError as error:
        raise LabError(f"{label} cannot be read ({error.strerror}); its format is in docs/architecture.md") from None
    except yaml.YAMLError as error:
        raise LabError(f"{label} is not valid YAML: {' '.join(str(error).split())}") from None


def _parse(kind: Any, data: Any, location: str) -> Any:
    """Convert `data` from YAML to `kind`: a dataclass, a mapping, a tuple or a plain value.

    Raise LabError for unknown and missing keys and for wrong types; `location` is its path in messages.
    """
    if isinstance(data, str) and location.rpartition(": ")[2] in DEFINED:
        return data
    arguments = typing.get_args(kind)
    if types.NoneType in arguments:
        return None if data is None else _parse(arguments[0], data, location)
    expected, is_class = _yaml_type(kind), dataclasses.is_dataclass(kind)
    data = float(data) if expected is float and type(data) is int else data
    actual: type = type(data)  # isinstance would accept true as a number
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
            raise LabError(f"{location} has no '{entry.name}'; expected {YAML_TYPES[_yaml_type(hints[entry.name])]}")
    return kind(**{key: _parse(hints[key], value, f"{location}: {key}") for key, value in data.items()})


def _yaml_type(kind: Any) -> type:
    """Return the YAML type of a dataclass, a mapping, a tuple or a plain value."""
    if dataclasses.is_dataclass(kind):
        return dict
    plain: type = {tuple: list, Mapping: dict}.get(typing.get_origin(kind), kind)
    return plain
