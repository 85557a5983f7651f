"""`./lab support`: what is in the archive, and that planted secrets are not."""

import json
import os
import stat
import tarfile

import pytest

from vlalab.commands import support
from vlalab.host import secrets
from vlalab.host.console import LabError
from vlalab.runtimes import logs

SECRET = "Tr0ub4dor-and-3"
KEY = f"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA{SECRET}\n-----END OPENSSH PRIVATE KEY-----"
PLANTED = [
    f"Authorization: Bearer {SECRET}",
    f"authorization: Basic {SECRET}==",
    f'{{"Authorization": "Bearer {SECRET}", "status": 401}}',
    f"curl -H 'Proxy-Authorization: Basic {SECRET}' http://127.0.0.1:8001",
    f"Set-Cookie: session={SECRET}; Path=/",
    f"sent bearer {SECRET} to the hub",
    f"HTTPS_PROXY=http://anna:{SECRET}@proxy.example:3128",
    f"https_proxy=http://anna:p@{SECRET}@proxy.example:3128/",
    f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQOYBF{SECRET}\n-----END PGP PRIVATE KEY BLOCK-----",
    f'{{"cookie": "jupyter=2|1:0|{SECRET}; _xsrf={SECRET}", "status": 403}}',
    f"npm_{'a1B2' * 9}{SECRET}",
    f"cloned from https://{SECRET}@github.com/lab/lab.git",
    f"VLALAB_TOKEN={SECRET}",
    f"export HF_TOKEN='{SECRET} with more'",
    f'  "api_key": "{SECRET}",',
    f'said \\"password\\": \\"{SECRET}\\" in a string',
    f"db-password: {SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"http://127.0.0.1:8888/lab?token={SECRET}&x=1",
    f"python -m service --token {SECRET} --port 1",
    f"hf_{'a1B2' * 9}{SECRET}",
    f"github_pat_{'a1B2' * 9}{SECRET}",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{SECRET}",
    f'{{\\"Authorization\\": \\"Bearer {SECRET}\\"}}',
    KEY,
    KEY.replace("\n", "\\n"),
    KEY.partition("\n-----END")[0],  # the end of a log, cut off within a key
]
HARMLESS = [
    "loaded tokenizer from checkpoints/x", "7 tokens, max_tokens: 256", "author: anna", "KeyError: 'primary_key'",
    "http://127.0.0.1:8001/v1/act 200", "basic block", "the secret of it is patience", "path /data/keys", "auth ok",
]  # fmt: skip


@pytest.mark.parametrize("text", PLANTED)
def test_what_looks_like_a_secret_is_removed(text):
    around = f"before\n{text}\nafter"
    told = secrets.removed(around)
    assert SECRET not in told and secrets.HIDDEN in told and told.startswith("before")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text):
    assert secrets.removed(text) == text


def test_a_value_that_is_known_is_removed_wherever_it_stands():
    known = secrets.values({"VLALAB_TOKEN": SECRET, "HTTP_PROXY": f"http://anna:{SECRET}9@proxy:1", "LANG": "C.UTF-8"})
    assert known == {SECRET, f"{SECRET}9"}
    assert secrets.removed(f"the page said <{SECRET}9>", known) == f"the page said <{secrets.HIDDEN}>"
    known = secrets.values({"HF_TOKEN": "a/b+c d", "HTTPS_PROXY": "http://anna:p%40ss%2Fword@proxy:1"})
    for text in ("a/b+c d", "a%2Fb%2Bc%20d", "a%2Fb%2Bc+d", "p@ss/word", "p%40ss%2Fword"):
        assert secrets.removed(f"<{text}>", known) == f"<{secrets.HIDDEN}>"
    assert secrets.values({"TOKEN": "abc"}) == set()  # too short to be looked for in all other words


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone whose programs, settings and logs are full of secrets."""
    root = tmp_path / "clone"
    root.mkdir()
    (root / ".env").write_text(f"VLALAB_TOKEN={SECRET}\nVLALAB_OPENVLA_PORT=8100\n")
    (root / "lab").write_text(f'#!/bin/sh\nprintf \'{{"task": "%s", "seen": "{SECRET}"}}\' "$*"\n')
    (root / "lab").chmod(0o755)
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HTTPS_PROXY", f"http://anna:{SECRET}@proxy.example:3128")
    for name, private in (("oracle", False), ("random-7", True)):
        log = logs.place(name, private, make=True)
        log.write_text("the first line of a long log\n" * 20_000 + "\n".join(PLANTED[:-1]) + "\nready\n")
    return root


def test_the_archive_holds_what_is_asked_for_first_and_no_secret(clone, tmp_path, capsys):
    path = support.write(tmp_path / "a.tar.gz", clone)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        files = {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers()}
        assert all(one.mode == 0o600 and one.uid == 0 for one in archive.getmembers())
    short = {name.removeprefix("vla-lab-support/"): text for name, text in files.items()}
    assert {"README.txt", "doctor.json", "status.json", "versions.json", "compose.yaml", "variables.txt"} <= set(short)
    assert [name for name, text in short.items() if SECRET in text] == []
    assert json.loads(short["doctor.json"]) == {"task": "doctor --json", "seen": secrets.HIDDEN}
    assert "VLALAB_OPENVLA_PORT=8100" in short["variables.txt"] and "proxy.example:3128" in short["variables.txt"]
    assert {"system", "kernel", "lab", "docker", "environments"} <= set(json.loads(short["versions.json"]))
    assert "oracle:" in short["compose.yaml"]
    for log in ("logs/oracle.log", "logs/random-7.log"):
        assert short[log].endswith("ready\n") and len(short[log]) <= support.LONGEST and log in short["README.txt"]
    assert "logs/oracle.log" in capsys.readouterr().out


def test_a_file_that_is_there_is_not_written_over(clone, tmp_path):
    there = tmp_path / "a.tar.gz"
    there.write_text("mine")
    with pytest.raises(LabError, match="name another file"):
        support.write(there, clone)
    os.symlink(tmp_path / "elsewhere", tmp_path / "link.tar.gz")
    with pytest.raises(LabError):
        support.write(tmp_path / "link.tar.gz", clone)
    assert there.read_text() == "mine" and not (tmp_path / "elsewhere").exists()
