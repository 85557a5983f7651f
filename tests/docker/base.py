"""A base image made from nothing that must be pulled from a registry: Ubuntu from its archive, by mmdebstrap.

The images' own base is Ubuntu's, pinned by digest; a build argument names another one. The tests build on this one, so
that no rate limit decides about them. Like Ubuntu's it has neither Python nor certificates: builds install Python, and
what this machine trusts reaches them as a secret. Where the archive does not answer, it is this machine's own system
and a Python of that version.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.docker import packages
from tests.docker.packages import System, Unavailable
from vlalab.engine import docker, images
from vlalab.environments import pythons

RELEASES = {"3.10": "jammy", "3.12": "noble"}  # Python → the Ubuntu that has it
ARCHIVE = "http://archive.ubuntu.com/ubuntu"
# What Ubuntu signs with, as its own package lists, signed with the same key, name it: no Debian 12 has it.
KEYS = "pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
KEYS_SHA256 = "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f"
# As Ubuntu's image is set: neither translated lists, nor waiting for the disk, nor manuals. The last while it is made
# would have mmdebstrap filter every package in a process of Python.
LIKE_UBUNTUS = (
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=force-unsafe-io",
    """--customize-hook=printf 'path-exclude=/usr/share/%s/*\\n' doc man locale > "$1/etc/dpkg/dpkg.cfg.d/excludes\"""",
    '--customize-hook=cd "$1/usr/share" && rm -rf doc/* man/* locale/*',
)
# Universe's lists are the longest, and nothing of the base itself is of it.
AND_UNIVERSE = 'sed -i "s/main$/& universe/" "$1/etc/apt/sources.list"'
# Makes the archive in memory, in a mount namespace of its own: nothing stays mounted, and nothing waits for the disk.
IN_MEMORY = 'mount -t tmpfs -o size=2g tmpfs "$TMPDIR" && exec "$@"'
# Parts of a Python installation that no image uses.
LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "_tkinter.*", "*.a", "config-3.*-*", "lib2to3", "*.opt-?.pyc")
KEPT_PACKAGES = ("pip", "setuptools", "pkg_resources")  # of site-packages


def image(directory: Path, say: Callable[[str], None], python: str) -> str | None:
    """Makes the base image for a Python, in `folder`, and returns its reference. None where only root could.

    The pinned one serves there. Raises Unavailable where neither can be had.
    """
    if os.geteuid() != 0:
        _pull_pinned(say, python)
        return None
    reference = f"vla-lab-test/base-{RELEASES[python]}:{os.getpid()}"
    _load(make(directory, say, python), reference)
    return reference


def _pull_pinned(say: Callable[[str], None], python: str) -> None:
    """Pulls the base of the images of a Python, so that a machine which cannot is told so before anything is built."""
    arguments = map(images.arguments, images.buildable())
    pinned = next(one["BASE"] for one in arguments if one["PYTHON"] == python)
    say(f"pulling {pinned.split('@')[0]}, since only root can make a base image")
    if docker.run(["pull", "--quiet", pinned], check=False).returncode != 0:
        raise Unavailable(f"only root can make a base image, and {pinned.split('@')[0]} could not be pulled")


def make(directory: Path, say: Callable[[str], None], python: str) -> Path:
    """Makes an archive of the base's root file system in `folder`. Raises Unavailable where mmdebstrap cannot."""
    of = packages.system()
    packages.install("mmdebstrap")
    say(f"making a base image of Ubuntu, {RELEASES[python]}")
    try:
        return _ubuntu(of, directory, RELEASES[python])
    except Unavailable as error:
        if of.id == "ubuntu":
            raise
        say(f"{error}; the base image is {of.id} {of.codename} with this machine's Python {python} instead")
        return _this_machines(of, directory, python)


def _ubuntu(of: System, directory: Path, codename: str) -> Path:
    mirror, keys = (of.mirror, packages.keyring(of)) if of.id == "ubuntu" else (ARCHIVE, _keys(directory))
    sources = [f"deb {mirror} {suite} main" for suite in (codename, f"{codename}-updates")]
    return _bootstrap(directory, keys, sources, f"--customize-hook={AND_UNIVERSE}")


def _keys(directory: Path) -> Path:
    """Returns Ubuntu's keys, fetched into `folder`. Raises Unavailable where its archive does not answer."""
    fetched = directory / "keys.deb"
    if words := packages.fetch(f"{ARCHIVE}/{KEYS}", fetched, KEYS_SHA256):
        raise Unavailable(f"Ubuntu's archive does not answer ({words})")
    subprocess.run(["dpkg", "-x", str(fetched), str(directory / "keys")], check=True)
    return directory / "keys/usr/share/keyrings/ubuntu-archive-keyring.gpg"


def _bootstrap(directory: Path, keys: Path, sources: list[str], *more: str) -> Path:
    """Returns an archive of what those sources of apt make up; `more` are further options of mmdebstrap."""
    made, memory = directory / "base.tar", directory / "memory"
    memory.mkdir(exist_ok=True)
    command = [
        "unshare", "--mount", "--propagation", "slave", "sh", "-c", IN_MEMORY, "sh",
        "mmdebstrap", "--variant=minbase", "--include=apt", f"--keyring={keys}", *LIKE_UBUNTUS, *_proxies(), *more,
        sources[0].split()[2], str(made), *sources,
    ]  # fmt: skip
    variables = {**os.environ, "TMPDIR": str(memory)}
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise Unavailable(f"mmdebstrap could not make a base image: {' / '.join(errors[:2])}")
    return made


def _proxies() -> list[str]:
    """Returns options that give the base the proxy that this machine's apt uses, if there is one."""
    shown = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
    found = [line for line in shown.splitlines() if re.match(r'Acquire::https?::proxy[^"]* "..*";', line, re.I)]
    return [f"--aptopt={line}" for line in found]


def _load(archive: Path, reference: str) -> None:
    """Imports the root file system as an image of that name."""
    docker.run(["import", "--change", 'CMD ["bash"]', str(archive), reference])
    archive.unlink()


# --- this machine's system and Python -----------------------------------------------------------------------


def _this_machines(of: System, directory: Path, python: str) -> Path:
    if (interpreter := pythons.find(python)) is None:
        raise Unavailable(
            f"no Python {python} on this machine to put into the test's base image (pyenv install {python})"
        )
    prefix = Path(_ask(interpreter, "sys.base_prefix"))
    _copy_python(prefix, directory / "local", python)
    chroot, library = 'chroot "$1" ', f"/usr/local/lib/python{python}"
    hooks = [
        f"sync-in {shlex.quote(str(directory / 'local'))} /usr/local",
        f"{chroot} ldconfig",
        # As a distribution's package has it: with a read-only root, every start would compile what it imports.
        f"{chroot} python{python} -m compileall -q {library} || true",
        f"{chroot} python{python} -c 'import ssl, sqlite3, ctypes, lzma'",
    ]
    wanted = [
        f"--include={','.join(_library_packages(prefix, python))}",
        *(f"--customize-hook={hook}" for hook in hooks),
    ]
    return _bootstrap(directory, packages.keyring(of), [f"deb {of.mirror} {of.codename} main"], *wanted)


def _ask(interpreter: Path, expression: str) -> str:
    command = [str(interpreter), "-I", "-c", f"import sys; print({expression})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _library_packages(prefix: Path, python: str) -> list[str]:
    """Returns the packages of the shared libraries that the Python below `prefix` is linked against."""
    libraries = {
        path for binary in _binaries(prefix, python) for path in _linked(binary) if not path.is_relative_to(prefix)
    }
    owners = {owner for path in libraries if (owner := _owner(path))}
    return sorted(owners - {"libc6", "libgcc-s1", "libstdc++6"})


def _binaries(prefix: Path, python: str) -> list[Path]:
    library = prefix / "lib" / f"python{python}"
    modules = [path for path in (library / "lib-dynload").glob("*.so") if not path.name.startswith("_tkinter")]
    return [prefix / "bin" / f"python{python}", *modules]


def _linked(binary: Path) -> list[Path]:
    shown = subprocess.run(["ldd", str(binary)], capture_output=True, text=True).stdout
    return [Path(os.path.normpath(found)) for found in re.findall(r"=> (/\S+)", shown)]


def _owner(library: Path) -> str | None:
    """Returns the package of a library. /lib is a link to /usr/lib, and either name may be the registered one."""
    merged = library.is_relative_to("/usr")
    other = Path("/", library.relative_to("/usr")) if merged else Path("/usr", library.relative_to("/"))
    for path in (library, other):
        asked = subprocess.run(["dpkg-query", "-S", str(path)], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.split(":")[0]
    return None


def _copy_python(prefix: Path, target: Path, python: str) -> None:
    """Copies an installation's programs, modules, headers and libraries below `target`, without others' packages."""
    name = f"python{python}"
    for part in (f"lib/{name}", f"include/{name}"):
        shutil.copytree(prefix / part, target / part, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT),
                        dirs_exist_ok=True)  # fmt: skip
    for library in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy2(library, target / "lib", follow_symlinks=False)
    (target / "bin").mkdir()
    shutil.copy2(prefix / "bin" / name, target / "bin" / name)
    for link in ("python3", "python"):
        (target / "bin" / link).symlink_to(name)
    for entry in (target / "lib" / name / "site-packages").iterdir():
        if not entry.name.startswith(KEPT_PACKAGES):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
