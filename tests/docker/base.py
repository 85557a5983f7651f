"""A base image made from nothing that must be pulled: debootstrap and this machine's Python 3.10.

The images' own base is Ubuntu's, pinned by digest; a build argument names another one. The tests
build on this one, so that they need no registry and no rate limit decides about them. It has no certificates: what this
machine trusts reaches the builds as a secret.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.docker import packages
from tests.docker.packages import System, Unavailable
from vlalab.engine import bake, docker
from vlalab.environments import pythons

VERSION = "3.10"
# Parts of a Python installation that no image uses.
LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "_tkinter.*", "*.a", "config-3.10-*", "lib2to3", "*.opt-?.pyc")
KEPT_PACKAGES = ("pip", "setuptools", "pkg_resources")  # of site-packages
NOT_NEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists")


def python() -> Path:
    """Returns this machine's Python 3.10. Raises Unavailable where it has none: nothing here compiles one."""
    found = pythons.find(VERSION)
    if found is None:
        raise Unavailable(f"no Python {VERSION} on this machine to put into the test's base image (pyenv install 3.10)")
    return Path(found)


def image(folder: Path, say: Callable[[str], None]) -> str | None:
    """Makes the base image, in `folder`, and returns its reference. None where only root could: the pinned one serves.

    Raises Unavailable where neither can be had.
    """
    if os.geteuid() != 0:
        _pull_pinned(say)
        return None
    reference = f"vla-lab-test/base:{os.getpid()}"
    say("making a base image with debootstrap")
    load(make(python(), folder), reference)
    return reference


def _pull_pinned(say: Callable[[str], None]) -> None:
    """Pulls the base of the images, so that a machine which cannot is told so before anything is built."""
    pinned = bake.arguments("libero")["BASE"]
    say(f"pulling {pinned.split('@')[0]}, since only root can make a base image")
    if docker.run(["pull", "--quiet", pinned], check=False).returncode != 0:
        raise Unavailable(f"only root can make a base image, and {pinned.split('@')[0]} could not be pulled")


def make(interpreter: Path, folder: Path) -> Path:
    """Makes the base's root file system below `folder` and returns it. Raises Unavailable where debootstrap cannot."""
    of = packages.system()
    packages.install("debootstrap")
    root = folder / "base"
    prefix = Path(_ask(interpreter, "sys.base_prefix"))
    owned = prefix == Path("/usr")
    wanted = _python_packages() if owned else _library_packages(prefix)
    _debootstrap(of, root, wanted)
    if not owned:
        _copy_python(prefix, root / "usr" / "local")
    _copy_proxy(root)
    for name in NOT_NEEDED:
        shutil.rmtree(root / name, ignore_errors=True)
    subprocess.run(["chroot", str(root), "ldconfig"], check=True)
    if not owned:
        _compile(root)
    subprocess.run(["chroot", str(root), f"python{VERSION}", "-c", "import ssl, sqlite3, ctypes, lzma"], check=True)
    return root


def load(root: Path, reference: str) -> None:
    """Imports the root file system as an image of that name."""
    files = subprocess.Popen(["tar", "-C", str(root), "--numeric-owner", "-c", "."], stdout=subprocess.PIPE)
    with docker.open_pipe(
        ["import", "--change", 'CMD ["bash"]', "-", reference], stdin=files.stdout, stdout=subprocess.DEVNULL
    ) as importing:
        files.stdout.close()
    if files.wait() or importing.returncode:
        raise RuntimeError(f"the base image {reference} could not be imported")


def _debootstrap(of: System, root: Path, include: list[str]) -> None:
    """debootstrap mounts /proc into its target: in a mount namespace of its own, nothing stays mounted."""
    signed = [f"--keyring={packages.keyring(of)}"] if packages.keyring(of).exists() else []
    command = [
        "unshare", "--mount", "--propagation", "slave", "debootstrap", "--variant=minbase", *signed,
        f"--components={'main,universe' if of.id == 'ubuntu' else 'main'}",
        *([f"--include={','.join(include)}"] if include else []), of.codename, str(root), of.mirror,
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"debootstrap could not make a base image: {' / '.join(done.stdout.splitlines()[-2:])}")


# --- Python -------------------------------------------------------------------------------------------------


def _ask(interpreter: Path, expression: str) -> str:
    command = [str(interpreter), "-I", "-c", f"import sys; print({expression})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _python_packages() -> list[str]:
    """Returns what Python 3.10 consists of where it is the distribution's own (Ubuntu 22.04)."""
    return ["python3.10", "python3-distutils", "python3-pip"]


def _library_packages(prefix: Path) -> list[str]:
    """Returns the packages of the shared libraries that the Python below `prefix` is linked against."""
    libraries = {path for binary in _binaries(prefix) for path in _linked(binary) if not path.is_relative_to(prefix)}
    owners = {owner for path in libraries if (owner := _owner(path))}
    return sorted(owners - {"libc6", "libgcc-s1", "libstdc++6"})


def _binaries(prefix: Path) -> list[Path]:
    library = prefix / "lib" / f"python{VERSION}"
    modules = [path for path in (library / "lib-dynload").glob("*.so") if not path.name.startswith("_tkinter")]
    return [prefix / "bin" / f"python{VERSION}", *modules]


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


def _copy_python(prefix: Path, target: Path) -> None:
    """Copies an installation's programs, modules, headers and libraries below `target`, without others' packages."""
    name = f"python{VERSION}"
    for part in (f"lib/{name}", f"include/{name}"):
        shutil.copytree(prefix / part, target / part, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT),
                        dirs_exist_ok=True)  # fmt: skip
    for library in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy2(library, target / "lib", follow_symlinks=False)
    shutil.copy2(prefix / "bin" / name, target / "bin" / name)
    for link in ("python3", "python"):
        (target / "bin" / link).symlink_to(name)
    for entry in (target / "lib" / name / "site-packages").iterdir():
        if not entry.name.startswith(KEPT_PACKAGES):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _compile(root: Path) -> None:
    """Writes bytecode where none was copied, as a distribution's package has it: with a read-only root, every start of
    Python would compile what it imports of the standard library.
    """
    compile_it = f"import compileall; compileall.compile_dir('/usr/local/lib/python{VERSION}', quiet=2)"
    subprocess.run(["chroot", str(root), f"python{VERSION}", "-c", compile_it], check=True)


def _copy_proxy(root: Path) -> None:
    """Gives the base the proxy that this machine's apt uses, if there is one."""
    shown = subprocess.run(["apt-config", "dump"], capture_output=True, text=True).stdout
    proxies = [line for line in shown.splitlines() if re.match(r'Acquire::https?::proxy[^"]* "..*";', line, re.I)]
    if proxies:
        (root / "etc/apt/apt.conf.d/00proxy").write_text("\n".join(proxies) + "\n")
