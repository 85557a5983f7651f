"""`./lab test`: counts from pytest's reports, the sum, and the exit code."""

import sys
from collections import Counter

import pytest

from vlalab import gl, paths, testing
from vlalab.console import LabError
from vlalab.testing import Result

FEW = """
import pytest
def test_good(): pass
def test_bad(): assert 0
@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError
def test_error(broken): pass
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A root with a tests/few folder."""
    (tmp_path / "tests" / "few").mkdir(parents=True)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def few(tree, text: str) -> Result:
    (tree / "tests" / "few" / "test_few.py").write_text(text)
    return testing.run_pytest("few", sys.executable, ["tests/few"], {})


def test_counts_come_from_the_report(tree):
    result = few(tree, FEW)
    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert result.reasons == Counter(["no such machine"])


def test_a_file_that_cannot_be_imported_fails(tree):
    assert few(tree, "import nothing_of_that_name").failed == 1


def test_a_folder_without_tests_is_skipped_with_the_reason(tree):
    result = testing.run_pytest("none", sys.executable, ["tests/none"], {})
    assert (result.failed, result.skipped) == (0, 1)
    assert "no tests in tests/none" in result.reasons


def test_a_run_that_dies_fails(tree):
    assert few(tree, "import os\ndef test_it(): os._exit(9)").failed == 1


@pytest.mark.parametrize(
    ("results", "line", "code"),
    [
        ([Result("a", passed=3), Result("b", passed=1, skipped=2)], "4 passed, 0 failed, 2 skipped", 0),
        ([Result("a", passed=3), Result("b", failed=1)], "3 passed, 1 failed, 0 skipped", 1),
        ([Result("a", skipped=5)], "0 passed, 0 failed, 5 skipped", 1),
        ([], "0 passed, 0 failed, 0 skipped", 1),
    ],
)
def test_one_plain_line_sums_everything(results, line, code, capsys):
    assert testing._print_sum(results) == code
    assert capsys.readouterr().out.splitlines()[-1] == line


def test_an_environment_that_cannot_be_made_is_a_failure_not_a_skip(monkeypatch, capsys):
    def broken(how: testing.How) -> list[Result]:
        raise LabError("no Python 3.10")

    monkeypatch.setitem(testing.PARTS, "libero", broken)
    assert testing.run(["libero"], testing.How()) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


# --- headless rendering -------------------------------------------------------------------------------------


def test_missing_libraries_are_told_with_the_exact_command(monkeypatch):
    monkeypatch.setattr(gl, "_loads", lambda library: False)
    monkeypatch.setattr(gl.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(gl.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(LabError, match=r"Run: sudo apt-get install -y libegl1 .*libosmesa6"):
        gl.ensure()


def test_egl_without_a_driver_is_not_enough(monkeypatch):
    monkeypatch.setattr(gl, "_loads", lambda library: library == "libEGL.so.1")
    monkeypatch.setattr(gl, "egl_devices", lambda: 0)
    assert "no driver" in gl.missing()
    monkeypatch.setattr(gl, "egl_devices", lambda: 1)
    assert gl.missing() is None


def test_root_on_debian_installs_and_looks_again(monkeypatch):
    done = []
    monkeypatch.setattr(gl, "_loads", lambda library: bool(done))
    monkeypatch.setattr(gl, "_install", lambda: done.append("installed"))
    monkeypatch.setattr(gl.os, "geteuid", lambda: 0)
    monkeypatch.setattr(gl.shutil, "which", lambda name: f"/usr/bin/{name}")
    gl.ensure()
    assert done == ["installed"]


def test_asking_egl_for_devices_never_raises():
    assert gl.egl_devices() >= 0
