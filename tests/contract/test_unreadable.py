"""A file that could not be read: the reason comes from errno and its first bytes."""

import os

import pytest

from vla_common.unreadable import explain

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"b" * 64 + b"\nsize 6948961960\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (POINTER, "git lfs pull"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
        (b"\xef\xbb\xbf\n<html>", "web page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "web page"),
        (b"", "empty"),
        (b"\x89HDF\r\n", "damaged or incomplete (header too large); copy or download it again"),
    ],
)
def test_the_first_bytes_tell_what_a_file_is(tmp_path, content, says):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert says in explain(path, ValueError("header too large"))


def test_a_lock_of_another_program_is_named(tmp_path):
    path = tmp_path / "demo.hdf5"
    path.write_bytes(b"\x89HDF\r\n")
    error = BlockingIOError(11, "Unable to synchronously open file (unable to lock file, errno = 11)")
    assert "another program" in explain(path, error)
    assert "another program" in explain(path, OSError("unable to lock file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_names_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    path.chmod(0)
    assert f"uid {os.geteuid()}" in explain(path)


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    assert "No such file" in explain(tmp_path / "none")
    assert "directory" in explain(tmp_path)
