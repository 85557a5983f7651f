"""Proof on a GPU: every model and the renderer, with random weights of the published sizes; nothing is downloaded.

    ./lab bench gpu [--quick] [--minutes 10] [--options "--parts openvla,gr00t --out DIRECTORY"]
    python -m bench.gpu          # outside the lab's environments

Each part runs in a process and a time limit of its own. Its Python is that of the environment that it needs, where that
is made on this machine (`./lab env NAME`) and its torch sees a GPU, else the one that started this if that sees one. A
part whose packages are missing is skipped with the reason. --out stores results.json, and frames to compare with those
of another machine.
--tiny runs the same code with tiny models, on a CPU too.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.common import ROOT, flags, is_met

ENVIRONMENT = "host"  # this process only starts the others
PARTS = {  # environment that has its packages -> names of parts; functions in bench/parts/gpu_ENVIRONMENT.py
    "openvla": ("openvla", "openvla_flash", "openvla_nf4", "openvla_oft", "openvla_fp32"),
    "gr00t": ("gr00t", "gr00t_flash", "gr00t_fp32", "gr00t_training"),
    "ws_mdl": ("minivla",),
    "libero": ("egl_gpu", "egl_cpu"),
}
ENVIRONMENTS = {name: environment for environment, names in PARTS.items() for name in names}
SEES_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"
SKIPPED = 77  # a part's exit status where something that it needs is missing
FIGURE = re.compile(r"^FIGURE name=(\S+) value=(\S+) unit=(\S+) target=(\S+)$", re.MULTILINE)


def main() -> int:
    """Run the parts in turn, print their output and a table; return 1 where one failed."""
    parser = flags("Every model and the renderer on a GPU.", "fewer rounds")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together; default: 10")
    parser.add_argument("--part-minutes", type=float, default=4.0, help="for each part; default: 4")
    parser.add_argument("--parts", default=",".join(ENVIRONMENTS), help="separated by commas; default: all")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on a CPU too")
    parser.add_argument("--out", type=Path, help="directory for results.json and frames")
    parser.add_argument("--part", choices=list(ENVIRONMENTS), help="run this part in this process")
    options = parser.parse_args()
    if options.part:
        return run_part(options)
    names = options.parts.split(",")
    if unknown := set(names) - set(ENVIRONMENTS):
        raise SystemExit(f"--parts: {', '.join(sorted(unknown))} not found; expected some of {', '.join(ENVIRONMENTS)}")
    print(machine())
    results, deadline = {}, time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as directory:  # without --out, for frames that two parts compare
        out = options.out or Path(directory)
        out.mkdir(parents=True, exist_ok=True)
        for name in names:
            print(f"\n== {name}", flush=True)
            left_s = deadline - time.monotonic()
            arguments = [*sys.argv[1:], "--out", str(out.absolute())]
            results[name] = start_part(name, left_s, min(left_s, 60 * options.part_minutes), arguments)
            report = {"machine": machine(), "parts": results}
            (out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    print_table(results)
    return int(any(result["status"] == "failed" for result in results.values()))


def machine() -> str:
    """Return the GPU, its driver and the processor's cores in one line."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "no NVIDIA GPU"
    return f"{gpu}; {os.cpu_count()} cores"


@functools.cache
def python_of(environment: str) -> str:
    """Return the Python for an environment's parts: its own, if made, or this one if only this one sees a GPU."""
    own = ROOT / "images" / environment / ".venv" / "bin" / "python"
    if not own.is_file():
        return sys.executable

    def sees_gpu(python: str | Path) -> bool:
        return subprocess.run([python, "-c", SEES_GPU], capture_output=True).returncode == 0

    is_own = environment == "libero" or sees_gpu(own) or not sees_gpu(sys.executable)
    return str(own) if is_own else sys.executable


def start_part(name: str, left_s: float, limit_s: float, arguments: Sequence[str]) -> dict[str, object]:
    """Run a part in a process of its own for at most limit_s; return its status, seconds, reason and figures.

    left_s: what is left of --minutes.
    """
    if left_s < 1:
        print("skipped: --minutes are over")
        return {"status": "skipped", "reason": "--minutes are over"}
    python = python_of(ENVIRONMENTS[name])
    command = [python, "-m", "bench.gpu", *arguments, "--part", name]
    packages = [str(ROOT), *map(str, sorted((ROOT / "shared").iterdir())), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        flag = "--minutes are over" if limit_s == left_s else "the limit of a part (--part-minutes)"
        output += f"stopped after {limit_s:.0f} s: {flag}\n"
    print(output, end="", flush=True)
    status = {0: "ok", SKIPPED: "skipped"}.get(process.returncode, "failed")
    figures = [
        {"name": figure, "value": float(value), "unit": unit, "target": target, "met": is_met(float(value), target)}
        for figure, value, unit, target in FIGURE.findall(output)
    ]
    last_line = (output.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    reason = "" if status == "ok" else last_line.removeprefix("skipped: ")
    seconds = round(time.monotonic() - started, 1)
    return {"status": status, "python": python, "seconds": seconds, "reason": reason, "figures": figures}


def run_part(options: argparse.Namespace) -> int:
    """Run one part here; return its exit status. A missing package or GPU is a reason to skip, not a failure."""
    environment = ENVIRONMENTS[options.part]
    try:
        plan = importlib.import_module("bench.parts.gpu_plan")
        part = getattr(importlib.import_module(f"bench.parts.gpu_{environment}"), options.part)
        part(plan.Plan(options.tiny, 3 if options.quick else 10, options.out))
    except ImportError as error:
        print(f"skipped: {error}; the environment {environment} has it: ./lab env {environment}")
        return SKIPPED
    except plan.Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return 0


def print_table(results: dict[str, dict[str, object]]) -> None:
    """Print the figures as the rows of a Markdown table, which bench/RESULTS.md takes, then what did not run."""
    print("\n| part | figure | value | target |\n|---|---|---|---|")
    for part, result in results.items():
        for figure in result.get("figures", []):
            target = figure["target"] if figure["met"] else f"{figure['target']}, **missed**"
            print(f"| {part} | {figure['name']} | {figure['value']:.4g} {figure['unit']} | {target} |")
    for part, result in results.items():
        if result["status"] != "ok":
            print(f"{part}: {result['status']}: {result['reason']}")


if __name__ == "__main__":
    sys.exit(main())
