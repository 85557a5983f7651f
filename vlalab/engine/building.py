"""`./lab build`: makes images from images/Dockerfile, all in one go, so that what they share is made once.

What images/bake.json names for an image decides what it is given: no other build argument is passed to it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vlalab.description import manifests
from vlalab.engine import docker, images
from vlalab.environments import venvs
from vlalab.host import borrowed, paths, state
from vlalab.host.console import LabError, Status, say, status, unknown

FLASH_ATTN = ("prebuilt", "compile", "none")
PROGRESS = ("line", "plain", "tty")
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
    stages: Mapping[str, str] = field(default_factory=dict)  # stage → the folder that replaces it, or its word
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


# --- the command --------------------------------------------------------------------------------------------


def arguments(names: Sequence[str], options: Options) -> list[str]:
    """Returns the arguments of docker that build the images of those environments in one go."""
    return [
        "buildx", "bake", "--file", str(paths.ROOT / images.BAKE_FILE),
        "--progress", "tty" if options.progress == "tty" else "plain",
        *(["--no-cache"] if options.no_cache else []),
        *_set("*", {"context": str(paths.ROOT), f"labels.{images.OWNER_LABEL}": state.owner()}),
        *(word for secret in _secrets(options) for word in _set("*", {"secrets": secret})),
        *(word for name in names for word in _set(name, _own(name, options))),
        *names,
    ]  # fmt: skip


def _set(target: str, values: Mapping[str, str]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{target}.{key}={value}")]


def _own(name: str, options: Options) -> dict[str, str]:
    """Return what differs for one environment from what images/bake.json says."""
    known = images.arguments(name)
    given = {key: value for key, value in build_arguments(name, options).items() if key in known}
    directories = {  # which replace stages that would fetch their files
        name: str(_existing(given, f"--{name}", Path.is_dir, "a folder"))
        for name, (stage, given) in _given(options).items()
        if given != stage.word and stage.argument in known
    }
    return {
        "tags": images.reference(name),
        **{f"args.{key}": value for key, value in given.items()},
        **{f"contexts.{stage}": directory for stage, directory in directories.items()},
    }


def build_arguments(name: str, options: Options, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the build arguments for an environment; the base comes from --base, $VLALAB_BASE_<ENV>, $VLALAB_BASE."""
    known = os.environ if variables is None else variables
    base = options.base or known.get(f"VLALAB_BASE_{name.upper()}") or known.get("VLALAB_BASE")
    wanted = {
        "LOCK_HASH": venvs.named(name, paths.ROOT).lock_hash,
        "COMMIT": commit(),
        "VERSION": borrowed.version(),
        "BASE": base,
        "BASE_DEVEL": known.get("VLALAB_BASE_DEVEL"),
        "FLASH_ATTN": options.flash_attn,
        **{stage.argument: given for stage, given in _given(options).values() if given == stage.word},
    }
    more = dict(text.split("=", 1) for text in options.arguments)
    return {**{key: value for key, value in wanted.items() if value}, **more}


def commit(root: Path | None = None) -> str:
    """Returns the checked-out commit, with -dirty behind it when what goes into images differs; else "unknown"."""
    folder = str(root or paths.ROOT)
    git = ["git", "-c", f"safe.directory={folder}", "-C", folder]  # an install may be somebody else's
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changed = ["status", "--porcelain", "--", "services", "lessons", *paths.SHARED, "images"]
        dirty = subprocess.run([*git, *changed], capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    if head.returncode != 0 or dirty.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("-dirty" if dirty.stdout.strip() else "")


# --- secrets and contexts -----------------------------------------------------------------------------------


def _secrets(options: Options) -> list[str]:
    """Return the build secrets: they reach the build's commands and stay in no layer and no history."""
    bundle = ca_bundle(options.ca_bundle)
    secrets = [f"id=ca,src={bundle}"] if bundle else []
    if options.index:
        path = _existing(options.index, "--index", Path.is_file, "a file that holds the mirror's URL")
        where, url, secret = str(path), path.read_text().strip(), f"id=index,src={path}"
    elif url := os.environ.get(INDEX_VARIABLE, ""):
        where, secret = f"variable {INDEX_VARIABLE}", f"id=index,env={INDEX_VARIABLE}"
    else:
        return secrets
    if not re.fullmatch(r"https?://\S+", url):  # it may hold a password, so the message does not repeat it
        raise LabError(f"{where} holds no URL of a package index mirror; expected one line that begins with https://")
    return [*secrets, secret]


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


def _given(options: Options) -> dict[str, tuple[manifests.Stage, str]]:
    """Returns the stages for which something was given: what the manifests say of them, and what it was."""
    known = manifests.stages()
    return {name: (known[name], given) for name, given in options.stages.items() if given}


def _existing(given: str, flag: str, test, what: str) -> Path:
    path = Path(given).expanduser().absolute()
    if not test(path):
        raise LabError(f"{flag} {given} is not there; expected {what}")
    if "," in str(path):
        raise LabError(f"{flag} {given} has a comma in its path, which docker's flags cannot take; move or link it")
    return path


# --- building -----------------------------------------------------------------------------------------------


def build(names: Sequence[str], options: Options) -> list[images.Image]:
    """Return the images that were built, in the order of the names (none or "all": every environment), with a table.

    Raises LabError where one cannot be built, which ends the others too.
    """
    chosen = images.choose(names)
    _check_flags(chosen, options)
    args = arguments(chosen, options)
    if options.dry_run:
        print(shlex.join(docker.command(args)))
        return []
    docker.require("buildx")
    started, words = time.monotonic(), list[str]()
    what = f"building {', '.join(map(images.reference, chosen))}"
    if options.progress == "line":
        with status(what) as line:
            code, words = _run_quietly(args, line)
    else:
        say(what)
        code = docker.stream(args)
    if code != 0:
        raise LabError(_failure(chosen, words))
    built = images.found(chosen)
    for name in chosen:
        if name not in built:
            raise LabError(
                f"the build of {name} left no image {images.reference(name)}; does DOCKER_HOST name its engine?"
            )
    done = [built[name] for name in chosen]
    print_table(done, time.monotonic() - started)
    return done


def _check_flags(chosen: list[str], options: Options) -> None:
    """Raises LabError for a flag that none of the chosen images has a use for."""
    known = sorted({argument for name in chosen for argument in images.arguments(name)})
    if options.flash_attn and "FLASH_ATTN" not in known:
        others = ", ".join(name for name in images.buildable() if "FLASH_ATTN" in images.arguments(name))
        raise LabError(f"--flash-attn means nothing to {', '.join(chosen)}; images with flash-attn: {others}")
    for name, (stage, _) in _given(options).items():
        if stage.argument not in known:
            raise LabError(f"--{name} means nothing to {', '.join(chosen)}")
    for argument in (text.split("=")[0] for text in options.arguments):
        if argument not in known:
            raise LabError(unknown("build argument", argument, known))


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


def _failure(names: Sequence[str], words: list[str]) -> str:
    text = "\n".join(words)
    culprit = next(iter(re.findall(r"(?m)^ERROR: target (\S+):", text)), None)
    which = culprit if culprit or len(names) != 1 else names[0]
    what = f"image '{which}'" if which else f"one of the images {', '.join(names)}"
    said = "\n  ".join(word for word in words[-40:] if word.strip())
    parts = [f"{what} could not be built" + (f":\n  {said}" if said else " (its words are above)"), docker.advice(text)]
    return "\n".join(part for part in [*parts, "all of its words: --progress plain"] if part)


def print_table(done: Sequence[images.Image], seconds: float) -> None:
    """Prints a row per image, and what they took together."""
    print(f"{'image':<24}{'size':>10}  lock")
    for image in done:
        print(f"{image.reference:<24}{images.spell_size(image.size):>10}  {'fits' if image.fits() else 'another one'}")
    print(f"built in {seconds:.0f} s")
