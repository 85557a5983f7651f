"""Proof on a GPU: every model and the renderer, with random weights of the published sizes; nothing is downloaded.

    ./lab bench gpu [--quick] [--options "--minutes 10 --parts openvla,gr00t --out DIRECTORY"]
    python -m bench.gpu          # outside the lab's environments

Each part runs in a process and a time limit of its own, with the Python of the environment that it needs where that is
made on this machine (`./lab env NAME`), else with the Python that started this. A part whose packages are missing is
skipped with the reason. --out stores results.json, and frames to compare with those of another machine.
--tiny runs the same code with tiny models, on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.common import flags

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = "host"  # this process only starts the others
PARTS = {  # name -> the environment that has its packages
    "openvla": "openvla",
    "openvla_flash": "openvla",
    "openvla_nf4": "openvla",
    "openvla_fp32": "openvla",
    "gr00t": "gr00t",
    "gr00t_flash": "gr00t",
    "gr00t_fp32": "gr00t",
    "gr00t_training": "gr00t",
    "minivla": "ws_mdl",
    "egl_gpu": "libero",
    "egl_cpu": "libero",
}
SKIPPED = 77  # a part's exit status where something that it needs is missing
FIGURE = re.compile(r"^FIGURE name=(\S+) value=(\S+) unit=(\S+) target=(\S+)$", re.MULTILINE)


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = flags("Every model and the renderer on a GPU.", "fewer rounds")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together")
    parser.add_argument("--parts", default=",".join(PARTS), help="separated by commas; default: all")
    parser.add_argument("--tiny", action="store_true", help="tiny models, on a CPU too")
    parser.add_argument("--out", type=Path, help="directory for results.json and frames")
    parser.add_argument("--part", choices=list(PARTS), help="run this part in this process")
    return parser.parse_args()


def main() -> int:
    """Run the parts in turn, print their output and a table; return 1 where one failed or missed its target."""
    options = parse_options()
    if options.part:
        return run_part(options)
    names = options.parts.split(",")
    if unknown := set(names) - set(PARTS):
        raise SystemExit(f"--parts: {', '.join(sorted(unknown))} not found; expected some of {', '.join(PARTS)}")
    print(machine())
    results, deadline = {}, time.monotonic() + 60 * options.minutes
    for name in names:
        print(f"\n== {name}", flush=True)
        results[name] = start_part(name, deadline - time.monotonic(), sys.argv[1:])
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            report = {"machine": machine(), "parts": results}
            (options.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
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


def start_part(name: str, seconds_left: float, arguments: Sequence[str]) -> dict[str, object]:
    """Run a part in a process of its own; return its status, seconds, reason and figures."""
    if seconds_left < 1:
        print("skipped: --minutes are over")
        return {"status": "skipped", "reason": "--minutes are over"}
    python = ROOT / "images" / PARTS[name] / ".venv" / "bin" / "python"
    command = [str(python) if python.is_file() else sys.executable, "-m", "bench.gpu", *arguments, "--part", name]
    packages = [str(ROOT), *map(str, sorted((ROOT / "shared").iterdir())), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(packages)}
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=seconds_left)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        output += f"stopped after {seconds_left:.0f} s: --minutes are over\n"
    print(output, end="", flush=True)
    status = {0: "ok", SKIPPED: "skipped"}.get(process.returncode, "failed")
    figures = [
        {"name": figure, "value": float(value), "unit": unit, "target": target}
        for figure, value, unit, target in FIGURE.findall(output)
    ]
    last_line = (output.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    reason = "" if status == "ok" else last_line.removeprefix("skipped: ")
    return {"status": status, "seconds": round(time.monotonic() - started, 1), "reason": reason, "figures": figures}


def run_part(options: argparse.Namespace) -> int:
    """Run one part here; return its exit status. A missing package or GPU is a reason to skip, not a failure."""
    try:
        from bench.parts import gpu_parts

        getattr(gpu_parts, options.part)(gpu_parts.Plan(options.tiny, 3 if options.quick else 10, options.out))
    except ImportError as error:
        print(f"skipped: {error}; the environment {PARTS[options.part]} has it: ./lab env {PARTS[options.part]}")
        return SKIPPED
    except gpu_parts.Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    return 0


def print_table(results: dict[str, dict[str, object]]) -> None:
    """Print the figures as the rows of a Markdown table, which bench/RESULTS.md takes, then what did not run."""
    print("\n| part | figure | value | target |\n|---|---|---|---|")
    for part, result in results.items():
        for figure in result.get("figures", []):
            print(f"| {part} | {figure['name']} | {figure['value']:.4g} {figure['unit']} | {figure['target']} |")
    for part, result in results.items():
        if result["status"] != "ok":
            print(f"{part}: {result['status']}: {result['reason']}")


if __name__ == "__main__":
    sys.exit(main())
