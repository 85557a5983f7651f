"""This machine as text: files, output of programs, GPUs, network. Tests replace it with recorded machines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_S = 5.0  # time limit of a program
FETCH_S = 3.0


@dataclass(frozen=True)
class Output:
    """A program's output and exit code; 127 if it is not installed, as in a shell."""

    code: int
    out: str = ""
    err: str = ""

    def json(self) -> dict[str, Any]:
        """Return the output as a JSON object; empty if it is not one."""
        try:
            value = json.loads(self.out)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class Disk:
    """A file system: bytes, and the fraction of its inodes that is free (1.0 where it has none)."""

    total: int
    free: int
    free_inodes: float = 1.0


@dataclass(frozen=True)
class ClockResponse:
    """A web server's clock in seconds since the epoch, or the reason for a failed request."""

    date: float | None = None
    error: str = ""


class Machine:
    """This machine. Each program, address and the GPUs are queried once, however many checks need them."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = dict(os.environ if variables is None else variables)
        self._guard = threading.Lock()
        self._answers: dict[tuple[Any, ...], Future[Any]] = {}

    def _once(self, query: Callable[..., Any], *args: Any) -> Any:
        with self._guard:
            is_first = (query.__name__, *args) not in self._answers
            answer = self._answers.setdefault((query.__name__, *args), Future())
        if is_first:
            try:
                answer.set_result(query(*args))
            except Exception as error:
                answer.set_exception(error)
        return answer.result()

    def which(self, program: str) -> str | None:
        """Return the path of a program with links resolved, None where it is not installed."""
        path = shutil.which(program, path=self.variables.get("PATH", os.defpath))
        return os.path.realpath(path) if path else None

    def run(self, *command: str, limit_s: float = RUN_S) -> Output:
        """Return a program's output. Raises TimeoutError after limit_s."""
        return self._once(self._run, limit_s, *command)  # type: ignore[no-any-return]

    def _run(self, limit_s: float, *command: str) -> Output:
        path = shutil.which(command[0], path=self.variables.get("PATH", os.defpath))
        if path is None:
            return Output(127)
        try:
            done = subprocess.run(
                [path, *command[1:]], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                timeout=limit_s, env=self.variables,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} did not answer within {limit_s:g} s") from None
        except OSError as error:
            return Output(126, err=f"{path} cannot be run: {error.strerror}")
        return Output(done.returncode, done.stdout, done.stderr)

    def read(self, path: str) -> str | None:
        """Return a file's text, None where it is missing or not readable."""
        try:
            return Path(path).read_text(errors="replace")
        except OSError:
            return None

    def names(self, directory: str) -> list[str]:
        """Return a directory's entries, sorted; none where it is missing."""
        try:
            return sorted(os.listdir(directory))
        except OSError:
            return []

    def disk(self, path: str) -> Disk | None:
        """Return the file system that a path is, or would be, on."""
        absolute = Path(path).absolute()
        try:
            status = os.statvfs(next(parent for parent in (absolute, *absolute.parents) if parent.exists()))
        except OSError:
            return None
        inodes = status.f_favail / status.f_files if status.f_files else 1.0
        return Disk(status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail, inodes)

    def gpus(self) -> dict[str, Any]:
        """Return the report of NVIDIA's library (`nvml`). It runs in a separate process: drivers may hang or crash."""
        return self.run(sys.executable, "-I", "-m", "vlalab.doctor.machine").json() or {"error": "NoAnswer"}

    def fetch(self, url: str) -> ClockResponse:
        """Return the answer to a HEAD request, through the proxy that the environment names."""
        import urllib.error  # here, as ssl takes a tenth of the tool's start
        import urllib.request
        from email.utils import parsedate_to_datetime

        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=FETCH_S) as response:
                date = response.headers.get("Date")
        except urllib.error.HTTPError as error:  # it answers, even if it refuses
            date = error.headers.get("Date")
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return ClockResponse(error=str(getattr(reason, "strerror", None) or reason))
        return ClockResponse(parsedate_to_datetime(date).timestamp() if date else None)

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return time.time()


def nvml() -> dict[str, Any]:
    """Return the GPUs as NVIDIA's library (NVML) reports them.

    {"error": "LibRmVersionMismatch"} (NVML's name of an error), or {"driver": "570.86.15", "devices": […]}.
    Memory is in bytes. A value that a GPU does not know is null.
    """
    import pynvml

    def name_of(error: Exception) -> str:
        return type(error).__name__.removeprefix("NVMLError_")

    def device(index: int) -> dict[str, Any]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        except pynvml.NVMLError as error:  # the GPU has fallen off the bus
            return {"index": index, "error": name_of(error)}

        def value(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
            try:
                return convert(getattr(pynvml, f"nvmlDeviceGet{name}")(handle))
            except pynvml.NVMLError:
                return None

        memory = value("MemoryInfo")
        compute, graphics = value("ComputeRunningProcesses"), value("GraphicsRunningProcesses")
        pids = None if compute is None else sorted({process.pid for process in (*compute, *(graphics or ()))})
        return {
            "index": index, "name": value("Name"), "uuid": value("UUID"),
            "capability": value("CudaComputeCapability", list), "memory": memory and memory.total,
            "used": memory and memory.used, "mig": value("MigMode", lambda modes: bool(modes[0])), "processes": pids,
        }  # fmt: skip

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"error": name_of(error)}
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "devices": [device(index) for index in range(pynvml.nvmlDeviceGetCount())],
    }


if __name__ == "__main__":
    print(json.dumps(nvml()))
