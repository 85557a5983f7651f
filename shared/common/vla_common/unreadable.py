"""Why a file that exists could not be read, from errno and its first bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

HEAD_BYTES = 512
LFS = b"version https://git-lfs.github.com/spec/"
MAX_ERROR = 200  # characters of a library's own message


def explain(path: str | os.PathLike[str], error: Exception | None = None) -> str:
    """Return why a file cannot be read and what to do, in one sentence without its name.

    error: what a library raised on reading it; its text is used if no other cause is found
    """
    text = " ".join(str(error or "").split())[:MAX_ERROR]
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    except PermissionError:
        owner = Path(path).stat().st_uid if os.access(Path(path).parent, os.X_OK) else "another user"
        return f"this user may not read it (its owner has uid {owner}); ask the owner for `chmod +r`"
    except OSError as failure:
        return f"it cannot be read ({failure.strerror or failure})"
    if getattr(error, "errno", None) in (errno.EAGAIN, errno.EACCES) or "unable to lock file" in text:
        return "another program has it open for writing; wait for that program or close it"
    if not head:
        return "it is empty; copy it again"
    if head.startswith(LFS):
        return "it is a Git LFS pointer and not the file itself; run `git lfs pull` in its repository"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page and not the file itself, such as an error or login page; download it again"
    return f"it is damaged or incomplete{f' ({text})' if text else ''}; copy or download it again"
