"""The smoke test of an environment: versions against the lock, imports, torch, EGL, one small piece of real work.

    python images/common/selftest.py libero --json

images/<env>/selftest.py has MODULES to import, and checks in two parts: DEPENDENCIES need the environment alone,
SERVICES its services as well. The image's build runs the first part once per environment and the second after every
change; without --part both run, at any time, in the image or in the local environment.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMAGES = Path(__file__).resolve().parents[1]
EXTRA_PACKAGES = {"pip", "flash-attn"}  # allowed packages that are not in the lock


class Failure(Exception):
    """A failed check. The text names the problem, what was expected, and the fix."""


def expect(holds: bool, text: str) -> None:
    """Raise Failure with `text` unless `holds`."""
    if not holds:
        raise Failure(text)


def pins(env: str) -> dict[str, str]:
    """Return the lock's pins that apply to this Python: name → version."""
    versions = {}
    own = Path(sys.prefix).parent / "requirements.lock"  # outside an image a variant has its own directory
    lock = own if own.is_relative_to(IMAGES / env) else IMAGES / env / "requirements.lock"
    for line in lock.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9][^\s\\]*==[^\\]*)", line):
            pin = Requirement(match[1].strip())
            if pin.marker is None or pin.marker.evaluate():
                versions[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return versions


def installed() -> dict[str, str]:
    """Return the packages installed in this environment: name → version."""
    distributions = (d for d in metadata.distributions() if Path(str(d.locate_file(""))).is_relative_to(sys.prefix))
    return {canonicalize_name(d.metadata["Name"]): d.version for d in distributions}


def check_versions(env: str) -> str:
    """Check that the installed packages equal the lock: every pin, in its version, and nothing else."""
    pinned, have = pins(env), installed()
    problems = [f"{n} {have.get(n, 'is missing')}, pinned {v}" for n, v in pinned.items() if have.get(n) != v]
    problems += [f"{n} {v} is not in the lock" for n, v in have.items() if n not in pinned and n not in EXTRA_PACKAGES]
    expect(not problems, f"{'; '.join(problems)}. Build the image again, or: ./lab env {env}")
    return f"{len(pinned)} pins"


def check_imports(modules: Sequence[str]) -> str:
    """Check that each module can be imported. Importing may neither ask a question nor need a writable directory."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise Failure(f"cannot import {name}: {type(error).__name__}: {error}") from error
    return f"{len(modules)} modules"


def check_torch(env: str) -> str:
    """Check the CUDA and the GPUs that torch was built for, and that numpy and torch share memory.

    The manifest states both: by it the host tool tells whether a driver or a GPU fits.
    """
    import numpy as np
    import torch

    variant = os.environ.get("VLALAB_VARIANT", "")
    start = rf"^  {variant}:.*?^    torch" if variant else "^torch"
    pattern = rf'(?ms){start}: {{cuda: "([\d.]+)", architectures: \[(.*?)\]'
    manifest = re.search(pattern, (IMAGES / env / "manifest.yaml").read_text())
    assert manifest
    stated = [manifest[1], *manifest[2].replace(",", " ").split()]
    built = [torch.version.cuda, *torch._C._cuda_getArchFlags().split()]  # get_arch_list() needs a GPU
    expect(stated == built, f"images/{env}/manifest.yaml says {stated}; this torch was built for {built}")
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = torch.from_numpy(array)  # raises where torch was built against another numpy
    tensor += 1
    expect(float(array[0, 0]) == 1.0 and float((tensor @ tensor.T).sum()) > 0, "torch and numpy do not share memory")
    return f"torch {torch.__version__}, CUDA {built[0]}, numpy {np.__version__}"


def check_attention() -> str:
    """Check torch's attention against its definition, and flash-attn's where that is installed."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = torch.randn(3, 1, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    reference = torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v
    expect(torch.allclose(scaled_dot_product_attention(q, k, v), reference, atol=1e-5), "SDPA differs from attention")
    if "flash-attn" not in installed():
        return "SDPA; flash-attn is not installed"
    from flash_attn import flash_attn_func  # its library fails to load with a torch that it was not built for

    if torch.cuda.is_available():
        q, k, v = (x.transpose(1, 2).to("cuda", torch.bfloat16) for x in (q, k, v))
        out = flash_attn_func(q, k, v).transpose(1, 2).float().cpu()
        expect(torch.allclose(out, reference, atol=2e-2), "flash-attn's kernel differs from attention")
    return f"SDPA; flash-attn {installed()['flash-attn']}"


def check_egl() -> str:
    """Check that EGL has a device to render on: Mesa's on the CPU, or a GPU's."""
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    count = ctypes.c_int(0)
    query(egl.eglGetProcAddress(b"eglQueryDevicesEXT"))(0, None, ctypes.byref(count))
    expect(count.value > 0, "EGL has no device: neither Mesa's nor a GPU's driver is installed")
    vendors = sorted(path.name for path in Path("/usr/share/glvnd/egl_vendor.d").glob("*.json"))
    return f"{count.value} EGL devices; drivers {', '.join(vendors)}"


def check_frame(render: Callable[[], Any], size: int, mean: float, spread: float) -> str:
    """Check a frame, uint8 [size, size, 3]: mean and spread on Mesa, and equality when rendered twice."""
    from OpenGL import GL  # bound to the renderer that was chosen

    first, second = render(), render()
    vendor = (GL.glGetString(GL.GL_RENDERER) or b"unknown").decode(errors="replace").split(" (")[0]
    statistics = f"mean {first.mean():.1f}, spread {first.std():.1f}"
    expect(first.shape == (size, size, 3) and str(first.dtype) == "uint8", f"a frame is {first.dtype} {first.shape}")
    is_close = abs(first.mean() - mean) < 3 and abs(first.std() - spread) < 3  # room for other drivers
    expect(is_close, f"the frame has {statistics}; expected mean {mean}, spread {spread}")
    expect(bool((first == second).all()), "rendering the same state twice gives different images")
    return f"{vendor}: {statistics}"


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run `function` in a new process, without earlier imports, and return its result.

    Output of packages goes to stderr there: stdout is for the results.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
        return pool.submit(function, *arguments).result()


def main() -> int:
    """Run the checks of the command line's part and print each result. Return the exit code."""
    flags = argparse.ArgumentParser(description="Checks an environment.")
    flags.add_argument("env", help="the environment's name, as in images/")
    flags.add_argument("--part", choices=("dependencies", "services"), help="default: both")
    flags.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = flags.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded, and the volume may be absent
    os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "hf")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny, and threads that wait for busy cores take long
    own = importlib.import_module(f"images.{options.env}.selftest")
    torch = {"torch": lambda: check_torch(options.env), "attention": check_attention} if "torch" in installed() else {}
    imports = {"imports": lambda: check_imports(own.MODULES)}
    parts = {
        "dependencies": {
            "versions": lambda: check_versions(options.env),
            **torch,
            **imports,
            **getattr(own, "DEPENDENCIES", {}),
        },
        "services": own.SERVICES,
    }
    results = {}
    for part in [options.part] if options.part else list(parts):
        for name, check in parts[part].items():
            start = time.perf_counter()
            try:
                with contextlib.redirect_stdout(sys.stderr):  # some packages print as they go
                    report, is_ok = check(), True
            except Failure as error:
                report, is_ok = str(error), False
            except Exception:  # in full: a failed build has to show where
                report, is_ok = traceback.format_exc(), False
            seconds = round(time.perf_counter() - start, 2)
            results[name] = {"ok": is_ok, "found": report, "seconds": seconds}
            if not options.json:
                print(f"{'ok' if is_ok else 'FAILED':6} {name:12} {seconds:5.1f} s  {report}", flush=True)
    if options.json:
        print(json.dumps({"env": options.env, "python": sys.version.split()[0], "checks": results}, indent=1))
    return 0 if all(result["ok"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.path.insert(0, str(IMAGES.parent))
    from images.common import selftest  # not as __main__: the environments' checks raise its Failure

    sys.exit(selftest.main())
