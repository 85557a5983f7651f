"""`./lab support`: what is in the archive, and that planted secrets are not."""

import json
import os
import stat
import subprocess
import sys
import tarfile

import pytest

from vlalab.commands import support
from vlalab.host import paths, secrets
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
LONG = "a1B2" * 9
# What an attack found to be left in, and what is left of it now.
LEAKED_BYTES = [
    (f"VLALAB_BRIDGE_KEY={SECRET}", "VLALAB_BRIDGE_KEY=[removed]"),
    (f"      VLALAB_BRIDGE_KEY: {SECRET}", "      VLALAB_BRIDGE_KEY: [removed]"),
    (f"MYSQL_PWD={SECRET} mysqldump lab", "MYSQL_PWD=[removed] mysqldump lab"),
    (f"HTTP_PROXY=anna:{SECRET}@proxy.example:3128", "HTTP_PROXY=[removed]@proxy.example:3128"),
    (f"by proxy anna:p@{SECRET}@10.0.0.1:3128 now", "by proxy [removed]@10.0.0.1:3128 now"),
    (f'{{"auths": {{"ghcr.io": {{"auth": "{SECRET}=="}}}}}}', '{"auths": {"ghcr.io": {"auth": "[removed]"}}}'),
    (f'{{\\"auth\\": \\"{SECRET}==\\"}}', '{\\"auth\\": \\"[removed]\\"}'),
    ("auth: YW5uYTpzM2NyZXQtMQ==", "auth: [removed]"),
    (f"docker login -u anna -p {SECRET} ghcr.io", "docker login -u anna -p [removed] ghcr.io"),
    (f"X-Registry-Auth: {SECRET}", "X-Registry-Auth: [removed]"),
    (f"machine hub login anna password {SECRET}", "machine hub login anna password [removed]"),
    (f"machine hub\n  login anna\n  password {SECRET}\n", "machine hub\n  login anna\n  password [removed]\n"),
    (f"password {SECRET}\nlogin anna\n", "password [removed]\nlogin anna\n"),
    (f"curl -u anna:{SECRET} http://h/x", "curl -u [removed] http://h/x"),
    (f"curl -sS -uanna:{SECRET} http://h/x", "curl -sS -u[removed] http://h/x"),
    (f"['curl', '-u', 'anna:{SECRET}', 'http://h']", "['curl', '-u', '[removed]', 'http://h']"),
    (f"curl -ksu anna:{SECRET} http://h", "curl -ksu [removed] http://h"),
    (f"curl --proxy-user anna:{SECRET} http://h", "curl --proxy-user [removed] http://h"),
    (f"sent ghu_{LONG} twice", "sent [removed] twice"),
    (f"sent ghr_{LONG}_{SECRET} twice", "sent [removed] twice"),
    (f"sent sk_live_{LONG} twice", "sent [removed] twice"),
    (f"https://hooks.slack.com/services/T0AB/B0CD/{LONG}", "https://hooks.slack.com/services/[removed]"),
    (f"/x.bin?X-Amz-Signature={LONG}&y=1", "/x.bin?X-Amz-Signature=[removed]&y=1"),
    (f"AccountName=lab;AccountKey={LONG * 2}ab==;Suffix=x", "AccountName=lab;AccountKey=[removed];Suffix=x"),
    (f"/x?sv=2024&sig={LONG}%3D&y=1", "/x?sv=2024&sig=[removed]&y=1"),
    (f"token is ya29.{LONG}-{SECRET}", "token is [removed]"),
    (f"AGE-SECRET-KEY-1{'QPZRY9X8' * 7}", "[removed]"),
    (f"api_key {SECRET}", "api_key [removed]"),
    (f"api_key {'hunter' * 4}", "api_key [removed]"),
    (f"using API-Key\t{SECRET}", "using API-Key\t[removed]"),
    (f"runner glrt-{LONG}", "runner [removed]"),
    (f"xoxe-1-{LONG}", "[removed]"),
    (f"xoxe.xoxp-1-{LONG}", "[removed]"),
    (f"said: \\nghp_{LONG}", "said: \\n[removed]"),
    ("b3BlbnNzaC1r\n" * 40 + "-----END OPENSSH PRIVATE KEY-----\nready", "[removed]\nready"),
    ("MIIEowIBAAKC\\n" * 40 + "-----END RSA PRIVATE KEY-----\\n, ready", "[removed]\\n, ready"),
    # Kinds that detect-secrets alone knows.
    (f"bot 123456789:{LONG[:35]} up", "bot [removed] up"),
    (f"SG.{LONG[:22]}.{LONG[:36]}abcdefg", "[removed]"),
    ("AC" + "a1b2" * 8, "[removed]"),
]
HARMLESS = [
    "loaded tokenizer from checkpoints/x", "7 tokens, max_tokens: 256", "author: anna", "KeyError: 'primary_key'",
    "http://127.0.0.1:8001/v1/act 200", "basic block", "the secret of it is patience", "path /data/keys", "auth ok",
    f"commit {'57cf140a' * 5}", f"    --hash=sha256:{'57cf140a' * 8} \\", f"vla-lab/libero:dev@sha256:{'57cf140a' * 8}",
    f"lab:5000/libero@sha256:{'57cf140a' * 8}", "run libero_goal-oracle-1 in shared/volume/runs/libero_goal-oracle-1",
    "docker run -u 1000:1000 -p 8000:8000", "python -u -m x", "VLALAB_OPENVLA_UNNORM_KEY=libero_goal",
    "unnorm_key libero_goal_no_noops_2", "PWD=/data/vla-lab", "in hf_hub_download(repo_id)", "npm_config_registry",
    "pypi-attestations 0.0.28", "git@github.com:lab/lab.git", "GPU-8f6c3a2e-1b7d-4c5e-9f00-11223344", "keyJoint.name",
    "password authentication is off", "log in, then stop -p", "10.0.0.12:8000",
    "auth: enabled", "2026-11-25T12:00:00.123456+00:00",
]  # fmt: skip


@pytest.mark.parametrize("text", PLANTED)
def test_what_looks_like_a_secret_is_removed(text):
    around = f"before\n{text}\nafter"
    told = secrets.redact(around)
    assert SECRET not in told and secrets.HIDDEN in told and told.startswith("before")


@pytest.mark.parametrize(("text", "expected"), LEAKED_BYTES)
def test_secrets_found_by_an_attack_are_removed(text, expected):
    assert secrets.redact(text) == expected


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays(text):
    assert secrets.redact(text) == text


def test_a_value_that_is_known_is_removed_wherever_it_stands():
    known = secrets.secret_values(
        {"VLALAB_TOKEN": SECRET, "HTTP_PROXY": f"http://anna:{SECRET}9@proxy:1", "LANG": "C.UTF-8"}
    )
    assert known == {SECRET, f"{SECRET}9"}
    assert secrets.redact(f"the page said <{SECRET}9>", known) == f"the page said <{secrets.HIDDEN}>"
    known = secrets.secret_values(
        {"VLALAB_BRIDGE_KEY": "bridge-1", "MYSQL_PWD": "mysql-2", "https_proxy": "anna:proxy-3@proxy:3128"}
        | {"PWD": "/data/anna", "VLALAB_OPENVLA_UNNORM_KEY": "libero_goal", "IMAGE": "libero:dev@sha256:57cf140a"}
    )
    assert known == {"bridge-1", "mysql-2", "proxy-3"}
    known = secrets.secret_values({"HF_TOKEN": "a/b+c d", "HTTPS_PROXY": "http://anna:p%40ss%2Fword@proxy:1"})
    for text in ("a/b+c d", "a%2Fb%2Bc%20d", "a%2Fb%2Bc+d", "p@ss/word", "p%40ss%2Fword"):
        assert secrets.redact(f"<{text}>", known) == f"<{secrets.HIDDEN}>"
    assert secrets.secret_values({"TOKEN": "abc"}) == set()  # too short to be looked for in all other words


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A clone whose programs, settings and logs are full of secrets."""
    root = tmp_path / "clone"
    root.mkdir()
    (root / ".env").write_text(
        f"# VLALAB_TOKEN={SECRET}-old\nVLALAB_TOKEN={SECRET}\nVLALAB_OPENVLA_PORT=8100\nMY_OWN=mine-{SECRET[:8]}\n"
    )
    (root / "lab").write_text(f'#!/bin/sh\nprintf \'{{"task": "%s", "seen": "{SECRET}"}}\' "$*"\n')
    (root / "lab").chmod(0o755)
    monkeypatch.setenv("VLALAB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HTTPS_PROXY", f"http://anna:{SECRET}@proxy.example:3128")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("HF_ANYTHING", "what nobody knows")
    for name, private in (("oracle", False), ("random-7", True)):
        log = logs.log_path(name, private, make=True)
        log.write_text("the first line of a long log\n" * 20_000 + "\n".join(PLANTED[:-1]) + "\nready\n")
    return root


def test_archive_has_the_expected_files_and_no_secret(clone, tmp_path, capsys):
    path = support.write(tmp_path / "a.tar.gz", clone)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        files = {getmember.name: archive.extractfile(getmember).read().decode() for getmember in archive.getmembers()}
        assert all(getmember.mode == 0o600 and getmember.uid == 0 for getmember in archive.getmembers())
    short = {name.removeprefix("vla-lab-support/"): text for name, text in files.items()}
    assert {"README.txt", "doctor.json", "status.json", "versions.json", "compose.yaml", "variables.txt"} <= set(short)
    assert [name for name, text in short.items() if SECRET in text] == []
    assert json.loads(short["doctor.json"]) == {"task": "doctor --json", "seen": secrets.HIDDEN}
    dotenv, _, shell = short["variables.txt"].partition("# the shell\n")
    assert dotenv == "# .env\nMY_OWN=[removed]\nVLALAB_OPENVLA_PORT=8100\nVLALAB_TOKEN=[removed]\n\n"
    assert {"HTTPS_PROXY=[removed]", "CUDA_VISIBLE_DEVICES=1", "HF_ANYTHING=[removed]"} <= set(shell.splitlines())
    assert {"system", "kernel", "lab", "docker", "environments"} <= set(json.loads(short["versions.json"]))
    assert "oracle:" in short["compose.yaml"]
    for log in ("logs/oracle.log", "logs/random-7.log"):
        assert short[log].endswith("ready\n") and len(short[log]) <= support.MAX_LOG and log in short["README.txt"]
    assert "logs/oracle.log" in capsys.readouterr().out


def test_an_env_file_that_cannot_be_read_is_not_quoted(clone, tmp_path):
    (clone / ".env").write_text(f"VLALAB_PORT=1\n{SECRET} is the password\n")
    with tarfile.open(support.write(tmp_path / "a.tar.gz", clone)) as archive:
        text = archive.extractfile("vla-lab-support/variables.txt").read().decode()
    assert SECRET not in text and "line 2" in text


def test_the_host_tool_starts_without_the_rules():
    code = "import sys, vlalab.cli, vlalab.commands.support; print('detect_secrets' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_existing_file_is_not_overwritten(clone, tmp_path):
    there = tmp_path / "a.tar.gz"
    there.write_text("mine")
    with pytest.raises(LabError, match="name another file"):
        support.write(there, clone)
    os.symlink(tmp_path / "elsewhere", tmp_path / "link.tar.gz")
    with pytest.raises(LabError):
        support.write(tmp_path / "link.tar.gz", clone)
    assert there.read_text() == "mine" and not (tmp_path / "elsewhere").exists()
