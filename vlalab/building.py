"""`./lab build`: makes images from images/<env>/Dockerfile, the repository being the context, one after the other.

What a Dockerfile declares decides what it is given: a build argument that it does not know is not passed to it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlalab import docker, environments, images, paths, state
from vlalab.console import LabError, Status, say, status, unknown

FLASH_ATTN = ("prebuilt", "compile", "none")
PROGRESS = ("line", "plain", "tty")
# Uncompressed, in GB, before anything is measured: bench/images.py holds the images to these.
EXPECTED_GB = {"libero": 1.5, "openvla": 6.5, "gr00t": 8.0, "ws_mdl": 7.0, "ui": 1.0}
CACHE_FACTOR = 2.2  # a first build also fills the cache of downloads and unpacked wheels
REBUILD_GB = 1.0
SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
ADDED_BY_ADMINS = ("/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors")
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
INDEX_VARIABLE = "VLALAB_INDEX"


@dataclass(frozen=True)
class Options:
    """How to build. None leaves a choice to the Dockerfile or, for the CA bundle, to what this machine says."""

    no_cache: bool = False
    flash_attn: str | None = None  # prebuilt, compile or none
    base: str | None = None  # base image instead of the pinned one
    flash_attn_wheel: str | None = None  # folder with its wheel, instead of a download
    gr00t_source: str | None = None  # folder with Isaac-GR00T, or the word none: an image up to it
    libero_assets: str | None = None  # folder with LIBERO's assets, or the word official
    ca_bundle: str | None = None
    index: str | None = None  # file that holds a package index mirror's URL
    arguments: tuple[str, ...] = ()  # further build arguments, NAME=VALUE
    progress: str = "line"
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.flash_attn not in (None, *FLASH_ATTN):
            raise LabError(unknown("--flash-attn", str(self.flash_attn), FLASH_ATTN))
        if self.progress not in PROGRESS:
            raise LabError(unknown("--progress", self.progress, PROGRESS))
        for text in self.arguments:
            if not re.match(r"\w+=", text):
                raise LabError(f"--arg {text} is no build argument; expected NAME=VALUE")


def _places(options: Options) -> list[tuple[str, str | None, str, str]]:
    """Returns (stage that a folder may replace, what was given, build argument, the word it takes instead)."""
    return [
        ("gr00t-source", options.gr00t_source, "GR00T_SOURCE", "none"),
        ("libero-assets", options.libero_assets, "LIBERO_ASSETS", "official"),
        ("flash-attn-wheel", options.flash_attn_wheel, "", ""),
    ]


@dataclass(frozen=True)
class Built:
    """What a build came to."""

    image: images.Image
    seconds: float


# --- the command --------------------------------------------------------------------------------------------


def arguments(name: str, options: Options) -> list[str]:
    """Returns the arguments of docker that build an environment's image."""
    dockerfile = images.folder(name) / "Dockerfile"
    text = dockerfile.read_text()
    known = declared(text)
    given = {key: value for key, value in build_arguments(name, options).items() if key in known}
    return [
        "buildx", "build", "--file", str(dockerfile), "--tag", images.reference(name), "--load",
        "--provenance=false",  # the image is one manifest under both of the engine's stores
        "--label", f"{images.OWNER_LABEL}={state.owner()}",
        "--progress", "tty" if options.progress == "tty" else "plain",
        *(["--no-cache"] if options.no_cache else []),
        *(word for key, value in given.items() for word in ("--build-arg", f"{key}={value}")),
        *_secrets(options),
        *_contexts(text, options),
        str(paths.ROOT),
    ]  # fmt: skip


def build_arguments(name: str, options: Options, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the build arguments for an environment; the base comes from --base, $VLALAB_BASE_<ENV>, $VLALAB_BASE."""
    known = os.environ if variables is None else variables
    base = options.base or known.get(f"VLALAB_BASE_{name.upper()}") or known.get("VLALAB_BASE")
    wanted = {
        "LOCK_HASH": environments.named(name, paths.ROOT).lock_hash,
        "COMMIT": commit(),
        "BASE": base,
        "BASE_DEVEL": known.get("VLALAB_BASE_DEVEL"),
        "FLASH_ATTN": options.flash_attn,
        **{argument: word for _, given, argument, word in _places(options) if given and given == word},
    }
    more = dict(text.split("=", 1) for text in options.arguments)
    return {**{key: value for key, value in wanted.items() if value}, **more}


def declared(dockerfile: str) -> set[str]:
    """Returns the names of the build arguments that a Dockerfile declares: ARG one=default two …"""
    lines = re.findall(r"(?mi)^\s*ARG\s+(.+)", dockerfile.replace("\\\n", " "))
    return {word.partition("=")[0] for line in lines for word in shlex.split(line, comments=True)}


def stages(dockerfile: str) -> set[str]:
    """Returns the names of a Dockerfile's stages, which a named context may replace."""
    return set(re.findall(r"(?mi)^\s*FROM\s.*\sAS\s+([\w.-]+)", dockerfile))


def commit(root: Path | None = None) -> str:
    """Returns the checked-out commit, with -dirty behind it when what goes into images differs; else "unknown"."""
    folder = str(root or paths.ROOT)
    git = ["git", "-c", f"safe.directory={folder}", "-C", folder]  # an install may be somebody else's
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changed = ["status", "--porcelain", "--", "services", "shared/contract", "shared/modelkit", "images"]
        dirty = subprocess.run([*git, *changed], capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    if head.returncode != 0 or dirty.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")


# --- secrets and contexts -----------------------------------------------------------------------------------


def _secrets(options: Options) -> list[str]:
    """Returns the flags of build secrets: they reach the build's commands and stay in no layer and no history."""
    flags = []
    if bundle := ca_bundle(options.ca_bundle):
        flags += ["--secret", f"id=ca,src={bundle}"]
    if options.index:
        flags += ["--secret", f"id=index,src={_index_file(options.index)}"]
    elif os.environ.get(INDEX_VARIABLE):
        _check_index(os.environ[INDEX_VARIABLE], f"variable {INDEX_VARIABLE}")
        flags += ["--secret", f"id=index,env={INDEX_VARIABLE}"]
    return flags


def _index_file(name: str) -> Path:
    path = _existing(name, "--index", Path.is_file, "a file that holds the mirror's URL")
    _check_index(path.read_text().strip(), str(path))
    return path


def _check_index(url: str, where: str) -> None:
    """The URL may hold a password, so no message repeats it."""
    if not re.fullmatch(r"https?://\S+", url):
        raise LabError(f"{where} holds no URL of a package index mirror; expected one line that begins with https://")


def ca_bundle(given: str | None, variables: Mapping[str, str] | None = None) -> Path | None:
    """Returns the CA bundle that builds need: the given file; else one that a variable names or an admin added to.

    None where the machine trusts only what every machine does, and for the word none.
    """
    if given == "none":
        return None
    if given and given != "auto":
        return _existing(given, "--ca-bundle", Path.is_file, "a file of certificates (PEM)")
    known = os.environ if variables is None else variables
    named = [Path(known[name]) for name in BUNDLE_VARIABLES if known.get(name)]
    own = [path for path in named if str(path) not in SYSTEM_BUNDLES and path.is_file()]
    if own:
        return own[0]
    added = any(path.suffix in (".crt", ".pem") for place in ADDED_BY_ADMINS for path in Path(place).glob("*"))
    system = [Path(path) for path in SYSTEM_BUNDLES if Path(path).is_file()]
    return system[0] if added and system else None


def _contexts(dockerfile: str, options: Options) -> list[str]:
    """Returns the flags of local folders that replace a stage which would fetch its files."""
    flags = []
    for stage, given, _, word in _places(options):
        if given and given != word and stage in stages(dockerfile):
            path = _existing(given, f"--{stage}", Path.is_dir, "a folder")
            flags += ["--build-context", f"{stage}={path}"]
    return flags


def _existing(given: str, flag: str, test, what: str) -> Path:
    path = Path(given).expanduser().absolute()
    if not test(path):
        raise LabError(f"{flag} {given} is not there; expected {what}")
    if "," in str(path):
        raise LabError(f"{flag} {given} has a comma in its path, which docker's flags cannot take; move or link it")
    return path


# --- building -----------------------------------------------------------------------------------------------


def build(names: Sequence[str], options: Options) -> list[Built]:
    """Returns what was built, in the order of the names (none or "all": every environment). Prints a table of it.

    Raises LabError at the first image that cannot be built, or where the disk is too full for it.
    """
    chosen = images.choose(names)
    _check_flags(chosen, options)
    plans = {name: arguments(name, options) for name in chosen}
    if options.dry_run:
        for args in plans.values():
            print(shlex.join(docker.command(args)))
        return []
    docker.require("buildx")
    done = []
    for name, args in plans.items():
        check_space(name, options.no_cache)
        done.append(_build_one(name, args, options))
    print_table(done)
    return done


def _check_flags(chosen: list[str], options: Options) -> None:
    """Raises LabError for a flag that none of the chosen Dockerfiles has a use for."""
    texts = {name: (images.folder(name) / "Dockerfile").read_text() for name in chosen}
    if options.flash_attn and not any("FLASH_ATTN" in declared(text) for text in texts.values()):
        raise LabError(f"--flash-attn means nothing to {', '.join(chosen)}; images with flash-attn: openvla, gr00t")
    for stage, given, _, _ in _places(options):
        if given and not any(stage in stages(text) for text in texts.values()):
            raise LabError(f"--{stage} means nothing to {', '.join(chosen)}")
    known = sorted(set().union(*(declared(text) for text in texts.values())))
    for name in (text.split("=")[0] for text in options.arguments):
        if name not in known:
            raise LabError(unknown("build argument", name, known))


def _build_one(name: str, args: list[str], options: Options) -> Built:
    started = time.monotonic()
    if options.progress == "line":
        with status(f"building {images.reference(name)}") as line:
            code, words = _run_quietly(args, line)
    else:
        say(f"building {images.reference(name)}")
        code, words = docker.stream(args), []
    if code != 0:
        raise LabError(_failure(name, words))
    image = images.found([name]).get(name)
    if image is None:
        raise LabError(f"the build of {name} left no image {images.reference(name)}; does DOCKER_HOST name its engine?")
    return Built(image, time.monotonic() - started)


def _run_quietly(args: list[str], line: Status) -> tuple[int, list[str]]:
    """Returns a build's exit code and what it printed; the line shows the step it is at."""
    words: list[str] = []
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with docker.open_pipe(args, **options) as process:
        assert process.stderr is not None
        for raw in process.stderr:
            text = raw.decode(errors="replace").rstrip()
            words.append(text)
            if text:
                line.update(re.sub(r"^#\d+ (\d+\.\d+ )?", "", text))
    return process.returncode, words


def _failure(name: str, words: list[str]) -> str:
    said = "\n  ".join(word for word in words[-40:] if word.strip())
    hint = docker.advice("\n".join(words))
    parts = [f"image '{name}' could not be built" + (f":\n  {said}" if said else " (its words are above)"), hint]
    return "\n".join(part for part in [*parts, "all of its words: --progress plain"] if part)


def check_space(name: str, no_cache: bool = False) -> None:
    """Raises LabError where the engine's disk has less than a build of that image takes."""
    free = free_at_engine()
    is_new = no_cache or images.unusable(name, images.found([name]).get(name)) is not None
    need = EXPECTED_GB.get(name, 2.0) * CACHE_FACTOR if is_new else REBUILD_GB
    if free is not None and free / 1e9 < need:
        raise LabError(
            f"building '{name}' takes up to {need:.1f} GB and {docker.info()['DockerRootDir']} has {free / 1e9:.1f} GB "
            "free; see what can be freed: ./lab clean"
        )


def free_at_engine() -> int | None:
    """Returns the bytes free where the engine keeps images; None where that place is not on this machine."""
    place = Path(docker.info().get("DockerRootDir", ""))
    try:
        return shutil.disk_usage(place).free if place.is_absolute() else None
    except OSError:
        return None


def print_table(done: Sequence[Built]) -> None:
    """Prints a row per image: its time and its size."""
    print(f"{'image':<24}{'seconds':>8}{'size':>10}  lock")
    for built in done:
        size = images.spell_size(built.image.size)
        fits = "fits" if built.image.fits() else "another one"
        print(f"{built.image.reference:<24}{built.seconds:>8.0f}{size:>10}  {fits}")
