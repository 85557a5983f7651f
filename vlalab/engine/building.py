"""`./lab build`: build images from images/Dockerfile in one bake, so shared layers are built once.

An image gets only the build arguments that images/bake.json declares for it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlalab.description import manifests
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import paths, shared_code, state
from vlalab.host.console import LabError, log_info, status, unknown
from vlalab.host.memory import format_size

FLASH_ATTN = ("prebuilt", "compile", "none")
PROGRESS = ("line", "plain", "tty")
SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
ADDED_BY_ADMINS = ("/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors")
BUNDLE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
INDEX_VARIABLE = "VLALAB_INDEX"


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build. None: the Dockerfile's default or, for the CA bundle, this machine's."""

    no_cache: bool = False
    flash_attn: str | None = None  # prebuilt, compile or none
    base: str | None = None  # base image instead of the pinned one
    stages: Mapping[str, str] = field(default_factory=dict)  # stage → the directory that replaces it, or its keyword
    ca_bundle: str | None = None
    index: str | None = None  # file with the URL of a package index mirror
    arguments: tuple[str, ...] = ()  # further build arguments, NAME=VALUE
    progress: str = "line"
    dry_run: bool = False

    def __post_init__(self) -> None:
        for text in self.arguments:
            if not re.match(r"\w+=", text):
                raise LabError(f"invalid build argument --arg {text}; expected NAME=VALUE")


# --- the command --------------------------------------------------------------------------------------------


def arguments(names: Sequence[str], options: BuildOptions) -> list[str]:
    """Return docker's arguments that build the images of these environments together."""
    overrides = [f"*.context={paths.ROOT}", f"*.labels.{images.OWNER_LABEL}={state.owner()}"]
    overrides += [f"*.secrets={secret}" for secret in _secrets(options)]
    for name in names:
        accepted = images.arguments(name)
        overrides.append(f"{name}.tags={images.reference(name)}")
        build_args = build_arguments(name, options)
        overrides += [f"{name}.args.{key}={value}" for key, value in build_args.items() if key in accepted]
        for stage, (manifest, value) in _stages(options).items():
            if value != manifest.word and manifest.argument in accepted:  # a directory replaces the stage
                directory = _existing(value, f"--{stage}", Path.is_dir, "a directory")
                overrides.append(f"{name}.contexts.{stage}={directory}")
    return [
        "buildx", "bake", "--file", str(paths.ROOT / images.BAKE_FILE),
        "--progress", "tty" if options.progress == "tty" else "plain",
        *(["--no-cache"] if options.no_cache else []),
        *(part for word in overrides for part in ("--set", word)),
        *names,
    ]  # fmt: skip


def build_arguments(name: str, options: BuildOptions) -> dict[str, str]:
    """Return the build arguments for an environment; the base comes from --base, $VLALAB_BASE_<ENV>, $VLALAB_BASE."""
    base = f"VLALAB_BASE_{name.partition('-')[0].upper()}"
    values = {
        "LOCK_HASH": venvs.get(name, paths.ROOT).lock_hash,
        "COMMIT": commit(),
        "VERSION": shared_code.version(),
        "BASE": options.base or os.environ.get(base) or os.environ.get("VLALAB_BASE"),
        "BASE_DEVEL": os.environ.get("VLALAB_BASE_DEVEL"),
        "FLASH_ATTN": options.flash_attn,
        **{stage.argument: value for stage, value in _stages(options).values() if value == stage.word},
    }
    extra = dict(text.split("=", 1) for text in options.arguments)
    return {**{key: value for key, value in values.items() if value}, **extra}


def commit(root: Path | None = None) -> str:
    """Return the checked-out commit, with suffix -dirty if the images' sources differ from it; else "unknown"."""
    directory = str(root or paths.ROOT)
    git = ["git", "-c", f"safe.directory={directory}", "-C", directory]  # the clone may belong to another user
    changed = ["status", "--porcelain", "--", "services", "lessons", *paths.SHARED, "images"]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, *changed], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")


def _stages(options: BuildOptions) -> dict[str, tuple[manifests.ImageStage, str]]:
    """Return the stages with a value: name → (manifest entry, directory or keyword)."""
    stages = manifests.stages()
    return {name: (stages[name], value) for name, value in options.stages.items() if value}


def _secrets(options: BuildOptions) -> list[str]:
    """Return the build secrets, which build steps can read but no layer or history stores."""
    bundle = ca_bundle(options.ca_bundle)
    secrets = [f"id=ca,src={bundle}"] if bundle else []
    source, url, secret = INDEX_VARIABLE, os.environ.get(INDEX_VARIABLE, ""), f"id=index,env={INDEX_VARIABLE}"
    if options.index:
        path = _existing(options.index, "--index", Path.is_file, "a file with the mirror's URL")
        source, url, secret = str(path), path.read_text().strip(), f"id=index,src={path}"
    elif not url:
        return secrets
    if not re.fullmatch(r"https?://\S+", url):  # it may hold a password, so the message does not repeat it
        raise LabError(f"{source} has no URL of a package index mirror; expected one line that begins with https://")
    return [*secrets, secret]


def ca_bundle(choice: str | None) -> Path | None:
    """Return the CA bundle for builds: the chosen file, else a variable's, else the system's with added authorities.

    None if the machine trusts only the default authorities, or for "none".
    """
    if choice == "none":
        return None
    if choice and choice != "auto":
        return _existing(choice, "--ca-bundle", Path.is_file, "a file of certificates (PEM)")
    named = [Path(os.environ[name]) for name in BUNDLE_VARIABLES if os.environ.get(name)]
    custom = [path for path in named if str(path) not in SYSTEM_BUNDLES and path.is_file()]
    if custom:
        return custom[0]
    added = any(path.suffix in (".crt", ".pem") for root in ADDED_BY_ADMINS for path in Path(root).glob("*"))
    return next((path for path in map(Path, SYSTEM_BUNDLES) if added and path.is_file()), None)


def _existing(value: str, flag: str, test: Callable[[Path], bool], expected: str) -> Path:
    path = Path(value).expanduser().absolute()
    if not test(path):
        raise LabError(f"{flag} {value} not found; expected {expected}")
    if "," in str(path):
        raise LabError(f"the path of {flag} {value} must not contain a comma; move or link it")
    return path


# --- building -----------------------------------------------------------------------------------------------


def build(names: Sequence[str], options: BuildOptions, variant: str | None = None) -> list[images.Image]:
    """Build the images of these environments (none or "all": all), print a table and return them in order.

    variant: the one to build instead of this machine's default. Raises LabError for a flag that none of the images
    uses, or if one cannot be built; the others are cancelled too.
    """
    selected = images.choose(names, variant)
    accepted = sorted({argument for name in selected for argument in images.arguments(name)})
    if options.flash_attn and "FLASH_ATTN" not in accepted:
        supporting = ", ".join(name for name in images.buildable() if "FLASH_ATTN" in images.arguments(name))
        raise LabError(f"--flash-attn does not apply to {', '.join(selected)}; images with flash-attn: {supporting}")
    for name, (stage, _) in _stages(options).items():
        if stage.argument not in accepted:
            raise LabError(f"--{name} does not apply to {', '.join(selected)}")
    for argument in (text.split("=")[0] for text in options.arguments):
        if argument not in accepted:
            raise LabError(unknown("build argument", argument, accepted))
    args = arguments(selected, options)
    if options.dry_run:
        print(shlex.join(docker.command(args)))
        return []
    docker.require("buildx")
    started, lines = time.monotonic(), list[str]()
    title = f"building {', '.join(map(images.reference, selected))}"
    if options.progress == "line":
        with status(title) as line:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
            with docker.open_pipe(args, **pipes) as process:
                for raw in process.stderr:
                    if text := raw.decode(errors="replace").strip():
                        lines.append(text)
                        line.update(re.sub(r"^#\d+ (\d+\.\d+ )?", "", text))
            code = process.returncode
    else:
        log_info(title)
        code = docker.stream(args)
    if code != 0:
        text, last = "\n".join(lines), "\n  ".join(lines[-40:])
        culprit = re.search(r"(?m)^ERROR: target (\S+):", text)
        name = culprit[1] if culprit else " or ".join(selected)
        output = f":\n  {last}" if last else " (see its output above)"
        parts = [f"image '{name}' could not be built{output}", docker.advice(text)]
        raise LabError("\n".join(part for part in [*parts, "for the full output: --progress plain"] if part))
    built = images.existing(selected)
    if missing := [images.reference(name) for name in selected if name not in built]:
        raise LabError(
            f"image {missing[0]} not found after the build; check that DOCKER_HOST names the engine that built it"
        )
    print(f"{'image':<24}{'size':>10}  lock")
    for image in (built[name] for name in selected):
        print(f"{image.reference:<24}{format_size(image.size):>10}  {'current' if image.fits() else 'another'}")
    print(f"built in {time.monotonic() - started:.0f} s")
    return [built[name] for name in selected]
