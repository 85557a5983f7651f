"""Which GPU renders: EGL's numbers for CUDA's devices, with a libEGL of the test's own that counts in either way."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from vlalab.host.paths import COMMON

# Two GPUs and a software device. The second in EGL's order is nvidia-smi's GPU 0. RELATIVE: numbers count within
# CUDA_VISIBLE_DEVICES, and a GPU that it hides has none.
STUB = r"""
#include <stdlib.h>
#include <string.h>
static long absolute[] = {1, 0, -1};
static unsigned query(int most, void **handles, int *count) {
    for (*count = 0; *count < 3; ++*count) handles[*count] = (void *)(long)(*count + 1);
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
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return query;
    if (!strcmp(name, "eglQueryDeviceStringEXT")) return text;
    return strcmp(name, "eglQueryDeviceAttribEXT") ? NULL : attribute;
}
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


@pytest.mark.parametrize(
    ("visible", "device", "turns"),
    [(None, 0, [0, 1]), ("0", 1, None), ("1", 0, None), ("1,0", 0, [0, 1]), ("0,1", 1, [1, 0])],
)
def test_the_gpu_that_is_visible_renders(libegl, visible, device, turns):
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "MUJOCO_"))}
    variables |= {"LD_LIBRARY_PATH": str(libegl), "PYTHONPATH": str(COMMON)}
    variables |= {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    done = subprocess.run([sys.executable, "-c", ASKS], env=variables, capture_output=True, text=True)
    expected = [{"MUJOCO_EGL_DEVICE_ID": str(turn)} for turn in turns] if turns else [{}, {}]
    assert json.loads(done.stdout) == [device, expected], done.stderr
