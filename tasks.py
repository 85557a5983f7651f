"""Invoke tasks: they parse flags and call vlalab. `./lab --list` shows them, `./lab TASK --help` one of them."""

from invoke import task

from vlalab.console import LabError

# Plain words after a task go into this list argument: `./lab up oracle random`.
WORDS = {"env": "names", "lock": "names"}
# The order of `./lab --list`.
ORDER = ["env", "lock"]


def split(words: str) -> list[str]:
    """Returns the parts of a comma-separated list."""
    return [word for word in words.replace(" ", ",").split(",") if word]


@task(auto_shortflags=False, help={"names": "environments; default: all that this machine's tasks need"})
def env(c, names="libero"):
    """Make an environment from its lock, as eval and test do on first use.

    ./lab env libero
    """
    from vlalab import environments

    for name in split(names):
        print(environments.ensure(name).python)


@task(
    auto_shortflags=False,
    help={
        "names": "locks to make: host, contract or an environment; default: all",
        "check": "change nothing; fail when a lock does not fit its requirements.in",
        "upgrade": "take the newest versions that fit, not the ones already pinned",
    },
)
def lock(c, names="", check=False, upgrade=False):
    """Make requirements.lock from requirements.in: exact versions with hashes.

    ./lab lock libero            after a change in images/libero/requirements.in
    ./lab lock --check           fails when any lock and its requirements.in disagree
    """
    from vlalab import locks

    known = locks.all_locks()
    for name in split(names) or known:
        if name not in known:
            raise LabError(f"no lock '{name}'; known: {', '.join(known)}")
        if not check:
            print(f"{name}: {'new lock' if locks.make(known[name], upgrade) else 'unchanged'}")
    if check:
        found = [p for name in split(names) or known for p in locks.problems(known[name])]
        if found:
            raise LabError("\n  ".join(["locks and requirements disagree:", *found]))
        print(f"{len(split(names) or known)} locks fit their requirements")
