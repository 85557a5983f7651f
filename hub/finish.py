"""The last step of the environment `hub`: install JupyterHub's proxy from package-lock.json, verified by hash."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = ("package.json", "package-lock.json")


def main() -> None:
    """Install the proxy into .venv/proxy with npm of the environment's own Node."""
    target = Path(sys.prefix) / "proxy"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for name in FILES:
        shutil.copy(HERE / name, target)
    npm = Path(sys.prefix) / "bin" / "npm"
    subprocess.run([npm, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=target, check=True)


if __name__ == "__main__":
    main()
