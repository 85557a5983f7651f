"""Which GPU renders: EGL's numbers for CUDA's devices, with a libEGL of the test's own that counts in either way."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from vlalab.doctor.check import WARN
from vlalab.doctor.checks.graphics import judge_renderer
from vlalab.host.paths import COMMON

# Two GPUs and a software device. The second in EGL's order is nvidia-smi's GPU 0. RELATIVE: numbers count within
# CUDA_VISIBLE_DEVICES, and a GPU that it hides has none.
STUB = r"""
#include <stdlib.h>
#include <string.h>
static long absolute[] = {1, 0, -1};
static unsigned query(int most, void **handles, int *count) {
    if (getenv("CRASH")) abort();
    for (*count = 0; *count < 3 && *count < most; ++*count) handles[*count] = (void *)(long)(*count + 1);
    return 1;
}
static const char *text(void *device, int name) {
    return (long)device == 3 ? "EGL_MESA_device_software" : "EGL_NV_device_cuda";
}
static unsigned attribute(void *device, int name, long *value) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    long number = absolute[(long)device - 1];
    if (number < 0) return 0;
    *value = number;
    if (RELATIVE && visible) {
        char *copy = strdup(visible), *word = strtok(copy, ",");
        for (*value = 0; word; word = strtok(NULL, ","), ++*value)
            if (atol(word) == number) return 1;
        return 0;
    }
    return 1;
}
static void *display(int platform, void *device, const int *wanted) { return platform == 0x313F ? device : NULL; }
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return query;
    if (!strcmp(name, "eglQueryDeviceStringEXT")) return text;
    if (!strcmp(name, "eglGetPlatformDisplayEXT")) return display;
    return strcmp(name, "eglQueryDeviceAttribEXT") ? NULL : attribute;
}
unsigned eglInitialize(void *device, int *major, int *minor) {
    const char *slice = getenv("WITHOUT_GRAPHICS");
    return !slice || atol(slice) + 1 != (long)device;
}
int eglGetError(void) { return 0x3002; }
unsigned eglBindAPI(unsigned api) { return api == 0x30A2; }
unsigned eglChooseConfig(void *device, const int *wanted, void **config, int size, int *count) {
    *config = device;
    return *count = 1;
}
void *eglCreateContext(void *device, void *config, void *shared, const int *wanted) { return device; }
"""
ASKS = """
import json
from vla_common import gl
print(json.dumps([gl.choose("gpu").device, [gl.spread(worker) for worker in range(2)]]))
"""


@pytest.fixture(scope="module", params=[0, 1], ids=["absolute numbers", "numbers within the variable"])
def libegl(request, tmp_path_factory):
    """The directory of a libEGL.so.1."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) for a libEGL of the test's own")
    directory = tmp_path_factory.mktemp("egl")
    (directory / "egl.c").write_text(STUB)
    command = ["cc", "-shared", "-fPIC", f"-DRELATIVE={request.param}", "-o", "libEGL.so.1", "egl.c"]
    subprocess.run(command, cwd=directory, check=True)
    return directory


def ask(libegl, script: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a script with that libEGL."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "MUJOCO_"))}
    kept |= {"LD_LIBRARY_PATH": str(libegl), "PYTHONPATH": str(COMMON), **variables}
    return subprocess.run([sys.executable, "-c", script], env=kept, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("visible", "device", "turns"),
    [(None, 0, [0, 1]), ("0", 1, None), ("1", 0, None), ("1,0", 0, [0, 1]), ("0,1", 1, [1, 0])],
)
def test_the_gpu_that_is_visible_renders(libegl, visible, device, turns):
    done = ask(libegl, ASKS, **({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    expected = [{"MUJOCO_EGL_DEVICE_ID": str(turn)} for turn in turns] if turns else [{}, {}]
    assert json.loads(done.stdout) == [device, expected], done.stderr


CHOOSES = """
import sys
from vla_common import gl
choice = gl.choose(sys.argv[-1] if sys.argv[1:] else "auto")
print(choice.device, choice.software, choice.note)
"""
LISTING = """#!/bin/sh
echo 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa-1)'
echo 'GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb-2)'
echo '  MIG 1g.5gb     Device  0: (UUID: MIG-cccc-3)'
"""


@pytest.mark.parametrize(("name", "device"), [("GPU-aaaa-1", 1), ("GPU-bbbb", 0), ("MIG-cccc-3", 0), ("GPU-gone", 2)])
def test_a_gpu_named_by_its_uuid_or_a_slice_of_it_renders(libegl, tmp_path, name, device):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(LISTING)
    tool.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = ask(libegl, CHOOSES, CUDA_VISIBLE_DEVICES=name, PATH=path)
    assert done.stdout.split()[:2] == [str(device), str(device == 2)], done.stderr


@pytest.mark.parametrize("visible", [{}, {"CUDA_VISIBLE_DEVICES": "1"}])
def test_a_slice_that_is_listed_and_cannot_render_leaves_it_to_the_cpu_and_says_why(libegl, visible):
    done = ask(libegl, CHOOSES, WITHOUT_GRAPHICS="0", **visible)
    assert done.stdout.startswith("2 True EGL lists GPU 1, but it cannot render (eglInitialize fails"), done.stderr
    assert "0x3002" in done.stdout
    refused = ask(libegl, CHOOSES.replace('"auto"', '"gpu"'), WITHOUT_GRAPHICS="0", **visible)
    assert refused.returncode == 1 and "cannot render (eglInitialize fails" in refused.stderr


def test_an_egl_that_crashes_is_reported_and_no_missing_gpu(libegl):
    done = ask(libegl, CHOOSES.replace('"auto"', '"gpu"'), CUDA_VISIBLE_DEVICES="1", CRASH="1")
    assert "EGL's devices cannot be listed: its process ended with code -6" in done.stderr
    assert "found no GPU" not in done.stderr


@pytest.mark.parametrize("reason", ["EGL lists GPU 1, but it cannot render (eglInitialize fails)", ""])
def test_the_doctor_says_who_renders_and_why_it_is_the_cpu(reason):
    finding = judge_renderer("llvmpipe (LLVM 15.0.6, 256 bits), 4.5 Mesa", has_gpu=True, messages=reason)
    assert finding.verdict == WARN and "llvmpipe" in finding.reason and "on the CPU" in finding.reason
    assert (reason or "takes hours") in finding.reason
