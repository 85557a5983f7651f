"""Freed memory is used again."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from vla_contract.memory import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
image = np.ones((720, 1280, 3), np.uint8).tobytes()
def step():
    copies = [bytearray(image) for _ in range(3)]
step()
before = faults()
for _ in range(20):
    step()
print(faults() - before)
"""


@pytest.mark.parametrize(("memory", "is_kept"), [("kept", True), ("returned", False)])
def test_images_of_later_steps_get_the_pages_of_earlier_ones(memory, is_kept):
    done = subprocess.run([sys.executable, "-c", PROGRAM, memory], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1_000) is is_kept, done.stdout
