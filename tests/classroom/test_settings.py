"""A class with other settings: HTTPS, another login, a served policy, an idle limit of seconds."""

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from tests.classroom.real import RealClass, until
from tests.classroom.room import ClassDirectory, unmount
from vlalab.environments import venvs

LOGIN = 'c.JupyterHub.authenticator_class = "dummy"\n'  # stands for OAuth or LDAP


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    for name in ("hub", "ws_mdl"):
        venvs.ensure(name)
    directory = tmp_path_factory.mktemp("class")
    made = RealClass(directory, memory="2", disk="0.2", idle="0.1", policy="http://127.0.0.1:9")
    made.cert, key = directory / "cert.pem", directory / "key.pem"
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=lab"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made.cert]
    subprocess.run(words, check=True, capture_output=True)
    made.path.mkdir(mode=0o700)
    (made.path / "jupyterhub_extra.py").write_text(LOGIN)
    try:
        assert made.url.replace("http", "https") in made.lab("up", *made.flags, "--cert", made.cert, "--key", key)
        yield made
    finally:
        made.lab("down", code=None)
        unmount(made.path)


def ask(room, path, method="GET"):
    """Return the hub's answer through its proxy, over TLS, as the admin."""
    token = json.loads((room.path / "secrets.json").read_text())["api"]
    url = room.url.replace("http", "https") + path
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"}, method=method)
    context = ssl.create_default_context(cafile=room.cert)
    with urllib.request.urlopen(request, context=context, timeout=600) as answer:
        return answer.read().decode()


def test_passwords_are_sent_over_tls_only(room):
    assert 'id="password_input"' in ask(room, "/hub/login")
    with pytest.raises((urllib.error.URLError, OSError)):
        urllib.request.urlopen(f"{room.url}/hub/login", timeout=60)


def test_a_student_of_another_login_gets_an_account_a_token_and_is_stopped_when_idle(room):
    tokens = room.volume / "tokens.json"
    ask(room, "/hub/api/users/eva", "POST")
    ask(room, "/hub/api/users/eva/server", "POST")
    until(lambda: '"ready": true' in ask(room, "/hub/api/users/eva"), 600)
    assert room.account("eva")["secret"] == "" and os.path.ismount(room.home("eva"))
    assert list(json.loads(tokens.read_text())["tokens"]) == ["eva"]
    until(lambda: json.loads(ask(room, "/hub/api/users/eva"))["servers"] == {}, 600)
    home = room.home("eva")
    room.lab("remove", "eva")
    assert not home.exists() and json.loads(tokens.read_text())["tokens"] == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--host", "0.0.0.0"], "unencrypted"),
        (["--cert", "/etc/passwd"], "--cert and --key together"),
        (["--runtime", "docker", "--policy", "http://127.0.0.1:8000"], "containers do not reach http://127.0.0.1:8000"),
    ],
)
def test_settings_that_would_not_work_or_not_be_safe_are_refused(tmp_path, words, expected):
    assert expected in RealClass(tmp_path).lab("up", *words, code=1)


def test_the_form_offers_the_class_environments_and_no_other(tmp_path):
    room = ClassDirectory(tmp_path / "volume")
    text = """
from hub.spawners import StudentSpawner
one = StudentSpawner()
one.settings, one.user_options = {"environments": ["ws_mdl", "libero"]}, {}
print(one._options_form_default(), one.environment_name)
for one.user_options["environment"] in ("libero", "openvla"):
    try:
        print(one.environment_name)
    except ValueError as error:
        print(error)
"""
    first, *others = room.python(text).splitlines()
    assert "<option>ws_mdl</option><option>libero</option>" in first and first.endswith(" ws_mdl")
    assert others == ["libero", "environment 'openvla' is not one of ws_mdl, libero"]
