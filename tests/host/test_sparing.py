"""How `./lab` imports Invoke: without what no task uses, and so that nobody else notices."""

import subprocess
import sys

from vlalab.host import paths, sparing

HEAVY = {"asyncio", "email", "http.client", "ssl", "unittest.mock", "multiprocessing", "xml.etree.ElementTree"}
LOADED = """
import runpy, sys
sys.argv = ["lab", "--version"]
try:
    runpy.run_module("vlalab", run_name="__main__")
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_a_command_starts_without_what_it_does_not_use():
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("lab ") and "invoke" in done.stderr.split()
    assert not HEAVY & {*done.stderr.split()}


def test_a_module_is_absent_in_the_block_alone_and_one_that_is_there_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with sparing.without({"colorsys": {"hue": 1}, "subprocess": {}}):
        import colorsys

        assert colorsys.hue == 1 and sys.modules["subprocess"] is subprocess
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)
