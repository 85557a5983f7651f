"""The images: how large, how quickly rebuilt and brought up, and whether two builds hold the same packages.

    ./lab bench images [--quick]

Needs a Docker engine and images (./lab build all); what cannot be taken is said with the reason. Everything is measured
beside what is in use: under a tag, a Compose project, ports and a volume of its own, which are taken away again.
What images share is told apart by the engine's own folders (overlay2), which root alone can read.
--quick: the packages of libero and ui only.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.common import figure, flags
from tests.ports import free_ports
from vlalab.commands import examining
from vlalab.description import manifests, ports
from vlalab.engine import building, docker, images
from vlalab.environments import venvs
from vlalab.host import paths
from vlalab.host.console import LabError

ENVIRONMENT = "host"
LIMIT_GB = {name: one.image_gb for name, one in manifests.environments().items()}
PEER_GB = 6.0  # vla-eval 0.8.0's LIBERO image, which has LIBERO's assets
ASSETS = paths.ROOT / "services" / "libero" / "assets" / "official.txt"  # sha1, bytes and path of every official file
TAG = f"bench-{os.getpid()}"
ALL_GB = 21.9  # hf's own layer is about 1.5, it has the others in common with ws_mdl; metaworld has all to itself
BUMP = ("tqdm", "4.66.5")  # a package that many need and that brings little
ANEW = [f"no-cache-filter={stage}" for stage in ("nvidia", "torch", "dependencies")]
SERVICES = ("oracle", "random")  # both from libero's image, ready without weights
# Prints one line per file and link below /opt/venv: mode, sha256 or the link's target, path.
LIST = """
import hashlib, os
for folder, folders, files in sorted(os.walk("/opt/venv")):
    for name in sorted(files + [f for f in folders if os.path.islink(os.path.join(folder, f))]):
        path = os.path.join(folder, name)
        link = os.path.islink(path)
        what = os.readlink(path) if link else hashlib.sha256(open(path, "rb").read()).hexdigest()
        print(oct(os.lstat(path).st_mode), what, path)
"""


def main() -> None:
    """Prints the tables and the FIGURE lines."""
    quick = flags("Sizes, times and equal packages of the images.", "packages of libero and ui only").parse_args().quick
    try:
        docker.require("buildx", "compose")
        built = images.found()
    except LabError as error:
        return print(f"not taken: all figures; {error}")
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; times hold for an idle one")
    sizes(built)
    together(built)
    rebuilds(built)
    bump(built)
    commands(built)
    packages({name: built[name] for name in built if not quick or name in ("libero", "ui")})


def left_out(name: str, reason: object) -> None:
    """Says which figure could not be taken, and why."""
    print(f"not taken: {name}; {reason}", flush=True)


# --- sizes --------------------------------------------------------------------------------------------------


def sizes(built: dict[str, images.Image]) -> None:
    """Uncompressed sizes as the engine has them, shared layers counted in each."""
    for name, limit in LIMIT_GB.items():
        if problem := images.unusable(name, built.get(name)):
            left_out(f"size_{name}", problem)
            continue
        figure(f"size_{name}", built[name].size / 1e9, "GB", f"<={limit}", quick=True)
    if "libero" in built:
        ours = built["libero"].size / 1e9 + (0.0 if has_assets(built["libero"]) else assets_gb())
        print(f"libero with assets: {ours:.2f} GB; vla-eval's image: {PEER_GB} GB, {PEER_GB / ours:.1f} times as large")


def assets_gb() -> float:
    """Returns the size of LIBERO's official files, which an image of ours holds only when it was built with them."""
    rows = (line.split(" ") for line in ASSETS.read_text().splitlines() if not line.startswith("#"))
    return sum(int(size) for _, size, *_ in rows) / 1e9


def has_assets(image: images.Image) -> bool:
    """Returns whether an image of libero was built with assets."""
    there = ["run", "--rm", "--network", "none", image.reference, "python", "-c"]
    done = docker.run([*there, "import os; print(len(os.listdir('/opt/libero-assets')))"], check=False)
    return done.returncode == 0 and int(done.stdout) > 0


# --- what they share ----------------------------------------------------------------------------------------


def together(built: dict[str, images.Image]) -> None:
    """What all images take on the engine's disk, each layer counted once."""
    if missing := [name for name in LIMIT_GB if images.unusable(name, built.get(name))]:
        return left_out("all_images", f"of {', '.join(missing)} there is no image that fits")
    try:
        mine = {name: layers(image.reference) for name, image in built.items()}
        figure("all_images", stored(set().union(*mine.values())) / 1e9, "GB", f"<={ALL_GB}", quick=True)
        print(f"gr00t and ws_mdl share {stored(mine['gr00t'] & mine['ws_mdl']) / 1e9:.2f} GB")
    except OSError as error:
        left_out("all_images", error)


def layers(reference: str) -> set[Path]:
    """Returns the engine's folders that an image consists of. Raises OSError where it keeps none that can be read."""
    driver = docker.json_lines(["image", "inspect", reference])[0].get("GraphDriver") or {}
    known = driver.get("Data") or {}
    found = [text for key in ("UpperDir", "LowerDir") for text in known.get(key, "").split(":") if text]
    if not found or not all(os.access(path, os.R_OK) for path in found):
        raise PermissionError("the engine's folders can be read by root, on its own machine, with overlay2 only")
    return set(map(Path, found))


def stored(folders: Iterable[Path]) -> int:
    """Returns the bytes of the files in folders, each file once."""
    files = (os.lstat(os.path.join(root, name)) for top in folders for root, _, names in os.walk(top) for name in names)
    return sum({stat.st_ino: stat.st_size for stat in files}.values())


def bump(built: dict[str, images.Image]) -> None:
    """How much of ws_mdl is new, and has to be moved to another machine, after one package came in another version."""
    if problem := images.unusable("ws_mdl", built.get("ws_mdl")):
        return left_out("bump_ws_mdl", problem)
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as folder, tagged("ws_mdl"):
        copy = copy_of_the_tree(Path(folder) / "copy")
        try:
            before = layers(built["ws_mdl"].reference)
            replace_pin(copy / "images" / "ws_mdl" / "requirements.lock", *BUMP)
            lab(copy, "build", "ws_mdl")
            new = layers(images.reference("ws_mdl", TAG)) - before
            figure("bump_ws_mdl", stored(new) / 1e9, "GB", "<=1.5", quick=True)
        except (LabError, OSError) as error:
            left_out("bump_ws_mdl", error)


def replace_pin(lock: Path, name: str, version: str) -> None:
    """Lets a lock name another version of a package, with the hashes that the package index gives for it."""
    wanted, pin = lock.with_suffix(".bump.in"), lock.with_suffix(".bump")
    wanted.write_text(f"{name}=={version}\n")
    flags = ["--generate-hashes", "--no-deps", "--no-header", "--no-annotate"]
    venvs.uv(["pip", "compile", *flags, "--output-file", str(pin), str(wanted)])
    text, changed = re.subn(rf"(?m)^{name}==.*\n(?:    --hash.*\n)+", lambda _: pin.read_text(), lock.read_text())
    if changed != 1:
        raise LabError(f"{lock} pins {name} {changed} times, expected once")
    lock.write_text(text)


# --- rebuild after a change ---------------------------------------------------------------------------------


def rebuilds(built: dict[str, images.Image]) -> None:
    """A copy of the tree is built, one line is added to a service, and it is built again: the second time counts."""
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as folder:
        copy = copy_of_the_tree(Path(folder) / "copy")
        for name in built:
            try:
                figure(f"rebuild_{name}", rebuild_s(copy, name, built[name]), "s", "<=10", quick=True)
            except LabError as error:
                left_out(f"rebuild_{name}", error)


def rebuild_s(copy: Path, name: str, image: images.Image) -> float:
    """Returns the seconds of `build NAME` after a change in services/NAME, the whole command counted."""
    options = options_of(image)
    with tagged(name):
        flags = flags_of(options)
        lab(copy, "build", name, *flags)
        with (copy / "services" / name / "__init__.py").open("a") as file:
            file.write(f"# changed at {time.time()}\n")
        docker.run(["image", "rm", images.reference(name, TAG)])  # it would stay without a name
        started = time.perf_counter()
        lab(copy, "build", name, *flags)
        return time.perf_counter() - started


def copy_of_the_tree(target: Path) -> Path:
    """Returns a copy of what images and the host tool are made of."""
    leave = shutil.ignore_patterns(".venv", "__pycache__", "volume", ".git", "*.pyi")
    for name in ("images", "services", "shared", "vlalab"):
        shutil.copytree(paths.ROOT / name, target / name, ignore=leave)
    for name in ("tasks.py", "compose.yaml", "compose.gpu.yaml", "requirements.lock", ".dockerignore"):
        shutil.copy(paths.ROOT / name, target / name)
    return target


def options_of(image: images.Image) -> building.Options:
    """Returns the options with which an image can be built again: its flash-attn."""
    with_flash = image.name in ("openvla", "gr00t")
    return building.Options(flash_attn=image.labels.get(images.FLASH_ATTN_LABEL) if with_flash else None)


def flags_of(options: building.Options) -> list[str]:
    """Returns those options as flags of `./lab build`."""
    return ["--flash-attn", options.flash_attn] if options.flash_attn else []


def lab(root: Path, *words: str, **variables: str) -> str:
    """Returns what `lab WORDS` of a tree printed, run as a command of its own. Raises LabError where it fails."""
    command = [sys.executable, "-m", "vlalab", *words]
    known = {**os.environ, "PYTHONPATH": str(root), "VLALAB_TAG": TAG, **variables}
    done = subprocess.run(command, cwd=root, env=known, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise LabError(f"./lab {' '.join(words)} failed: {done.stderr.strip()[-600:]}")
    return done.stdout


@contextmanager
def tagged(*names: str) -> Iterator[None]:
    """Removes the bench's own images of those environments at the end, by their tag."""
    try:
        yield
    finally:
        for name in names:
            docker.run(["image", "rm", "--force", images.reference(name, TAG)], check=False)


# --- commands when all is up --------------------------------------------------------------------------------


def commands(built: dict[str, images.Image]) -> None:
    """`up` of services that are up, and `status`: medians of five, each a command of its own."""
    if problem := images.unusable("libero", built.get("libero")):
        for name in ("up_when_up", "status"):
            left_out(name, problem)
        return
    with tempfile.TemporaryDirectory(prefix="vlalab-bench-") as folder:
        os.chmod(folder, 0o755)
        known = {
            "VLALAB_TAG": images.tag(), "COMPOSE_PROJECT_NAME": f"vlalab-{TAG}", "VLALAB_VOLUME": f"{folder}/volume",
            **{ports.port_variable(name): str(*free_ports(1)) for name in SERVICES},
        }  # fmt: skip
        (Path(folder) / "volume").mkdir()
        up = ("up", *SERVICES, "--runtime", "docker")
        try:
            lab(paths.ROOT, *up, **known)
            figure("up_when_up", median_s(up, known), "s", "<=3", quick=True)
            figure("status", median_s(("status",), known), "s", "<=1", quick=True)
        except LabError as error:
            left_out("up_when_up, status", error)
        finally:
            lab(paths.ROOT, "down", **known)


def median_s(words: Sequence[str], known: dict[str, str]) -> float:
    """Returns the median time of a command."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        lab(paths.ROOT, *words, **known)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


# --- two builds of one commit -------------------------------------------------------------------------------


def packages(built: dict[str, images.Image]) -> None:
    """Builds each image's packages twice, the second time without a cache, and counts the files that differ."""
    for name, image in built.items():
        try:
            first, again = listing(name, image, []), listing(name, image, ANEW)
        except LabError as error:
            left_out(f"differing_files_{name}", error)
            continue
        differing = sorted(path for path in first.keys() | again.keys() if first.get(path) != again.get(path))
        print(f"{name}: {len(first)} files below /opt/venv")
        for path in differing[:20]:
            print(f"  {path}: {first.get(path, 'not there')} and {again.get(path, 'not there')}")
        figure(f"differing_files_{name}", len(differing), "files", "<=0", quick=True)


def listing(name: str, image: images.Image, flags: list[str]) -> dict[str, str]:
    """Returns path → mode and sha256 of the packages of a build, whose image and cache records are removed again."""
    examining.require("build", {"names": [name], "no_cache": True})
    before = cache_records()
    options = options_of(image)
    with tagged(name), own_tag():
        args = building.arguments([name], options)
        docker.run([*args[:2], *(word for flag in flags for word in ("--set", f"{name}.{flag}")), *args[2:]])
        program = ["run", "--rm", "--network", "none", images.reference(name), "python", "-I", "-c", LIST]
        lines = [line.split(" ", 2) for line in docker.run(program).stdout.splitlines()]
    if flags:
        forget([record for record in cache_records() if record not in before])
    return {path: f"{mode} {what}" for mode, what, path in lines}


@contextmanager
def own_tag() -> Iterator[None]:
    """Lets images be called by the bench's tag."""
    before = os.environ.get("VLALAB_TAG")
    os.environ["VLALAB_TAG"] = TAG
    try:
        yield
    finally:
        os.environ.pop("VLALAB_TAG")
        if before is not None:
            os.environ["VLALAB_TAG"] = before


def cache_records() -> list[str]:
    """Returns the ids of the engine's build cache, the newest first."""
    said = docker.run(["buildx", "du", "--verbose"]).stdout
    found = re.findall(r"(?m)^ID:\s+(\S+)(?:\n.+)*?\nCreated at:\s+(\S+ \S+)", said)
    return [record for record, created in sorted(found, key=lambda pair: pair[1], reverse=True)]


def forget(records: Sequence[str]) -> None:
    """Removes records of the build cache, so that a second build of gigabytes does not stay on the disk.

    The newest must come first: a record stays as long as another one is built on it.
    """
    for record in records:
        docker.run(["buildx", "prune", "--force", "--all", "--filter", f"id={record}"], check=False)


if __name__ == "__main__":
    main()
