"""A whole class: JupyterHub, its proxy and students' JupyterLab on this machine, used with a browser."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request

import pytest

from tests import browser
from tests.classroom.real import RealClass, until, until_shown
from tests.classroom.room import unmount
from vlalab.environments import venvs

pytestmark = pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed for the browser tests")
PASSWORD = "sunflower-1"
# Back to the schema before display names, user's properties and PKCE.
DOWNGRADE = """import sys
from alembic import command
from alembic.config import Config
from jupyterhub import dbutil
with dbutil._temp_alembic_ini(sys.argv[1]) as file:
    command.downgrade(Config(file), "4621fec11365")
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    for name in ("hub", "ws_mdl"):
        venvs.ensure(name)
    made = RealClass(tmp_path_factory.mktemp("class"), memory="2", disk="0.2", idle="0")
    try:
        assert made.url in made.lab("up", *made.flags)
        lines = made.lab("add", "anna", "ben", "cho").splitlines()
        made.codes = dict(line.split(",") for line in lines if re.fullmatch(r"\w+,\w{5}-\w{5}", line))
        yield made
    finally:
        for page in made.browsers.values():
            page.close()
        made.lab("down", code=None)  # it may not have started
        unmount(made.path)


# What the pages of JupyterLab send with every request.
XSRF = "headers: {'X-XSRFToken': (document.cookie.match(/_xsrf=([^;]+)/) || [])[1]}"


def message(page):
    return until_shown(page, "document.querySelector('.login_error')?.innerText")


def test_the_first_login_replaces_the_code_by_a_password(room):
    page = room.log_in("anna", "wrong-codes")
    assert "Invalid" in message(page)
    assert "new password" in message(room.log_in("anna", room.codes["anna"]))
    assert "8 or more" in message(room.log_in("anna", room.codes["anna"], "short"))
    assert "Invalid" in message(room.log_in("eva", "nobody-has-it", PASSWORD))


def test_three_students_work_in_jupyterlab(room):
    for name, code in room.codes.items():
        page = room.log_in(name, code, PASSWORD)
        until_shown(page, f"location.pathname === '/user/{name}/lab'")
        if name == "anna":  # one page of JupyterLab takes a core for a while
            until_shown(page, "!!document.querySelector('.jp-LauncherCard')")
        page.go(f"{room.url}/user/{name}/no-such-page")  # lighter, with the same session
        until_shown(page, "location.pathname.endsWith('/no-such-page') && document.readyState === 'complete'")
        text = "import os, numpy; print(os.getuid() > 0, os.environ['VLALAB_VOLUME'], sorted(os.listdir('/home')))"
        assert room.run(name, text) == f"True /home/{name} ['{name}']\n"
        assert (room.home(name) / "notebooks" / "ws_mdl" / "MNIST.ipynb").is_file()
    assert "created" in room.run("cho", "%check transformer.mask")
    assert (room.home("cho") / "notebooks" / "exercises" / "transformer.mask.py").is_file()
    assert room.lab("list").count("ready") == 3


def test_the_teacher_sees_who_solved_what(room, tmp_path):
    text = room.lab("check", "--all", "--csv", tmp_path / "table.csv")
    assert re.search(r"cho +0 of \d+ right, 1 submitted\n +transformer.mask: ", text)
    assert re.search(r"anna +0 of", text) and "0    1  transformer.mask" in text
    assert (tmp_path / "table.csv").read_text(encoding="utf-8-sig").splitlines()[3].startswith("cho,blank,")


def test_tensorboard_is_behind_the_same_login(room):
    ask = "fetch('/user/anna/tensorboard/{}').then(a => window.board = a.status + a.headers.get('Content-Type')), 0"
    for path, kind in (("", "text/html"), ("data/environment", "application/json")):
        room.browsers["anna"].js(f"window.board = null, {ask.format(path)}")
        assert until_shown(room.browsers["anna"], "window.board").startswith(f"200{kind}")


def test_a_student_reaches_no_other_students_server(room):
    """With everything a notebook has: the browser's session and the server's own token."""
    page = room.browsers["anna"]
    names = room.run("anna", "import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    bens = room.run("ben", "import os; print(os.environ['JUPYTERHUB_SERVICE_URL'])").strip()
    settings = json.loads((room.path / "settings.json").read_text())
    hub, proxy = f"{settings['hub_url']}/hub/api", f"http://127.0.0.1:{settings['proxy_port']}/api"
    attempts = [
        *[("GET", f"{room.url}/user/ben/api/{path}") for path in ("contents", "kernels", "sessions", "terminals")],
        *[("GET", f"{bens}api/{path}") for path in ("contents", "kernels", "status")],
        ("POST", f"{bens}api/kernels"), ("POST", f"{bens}api/shutdown"),
        ("GET", f"{hub}/users"), ("GET", f"{hub}/users/ben"), ("DELETE", f"{hub}/users/ben"),
        ("DELETE", f"{hub}/users/ben/server"), ("POST", f"{hub}/users/ben/tokens"), ("POST", f"{hub}/users/eve"),
        ("POST", f"{hub}/shutdown"), ("GET", f"{proxy}/routes"), ("POST", f"{proxy}/routes/user/ben"),
        ("GET", f"{room.url}/hub/admin"),
    ]  # fmt: skip
    reached = []
    for method, url in attempts:
        for headers in ({"Authorization": f"token {names}"}, {}):
            request = urllib.request.Request(url, b"{}" if method == "POST" else None, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    if "/hub/login" not in answer.url:
                        reached.append((method, url, answer.status))
            except urllib.error.HTTPError as error:
                assert error.code in (401, 403, 404, 405), (method, url, error.code)
        path = (
            f"fetch({json.dumps(url)}, {{{XSRF}, method: {method!r}, redirect: 'manual'}}).then(a => a.status, e => 0)"
        )
        if url.startswith(room.url) and page.js(path) in range(200, 300):
            reached.append(("page", method, url))
    assert reached == [] and len(attempts) >= 15
    assert room.run("ben", "print('still here')") == "still here\n"


def test_a_running_cell_survives_a_killed_hub_and_proxy(room):
    code = "import os, time\nwhile True:\n"
    code += " with open(os.path.expanduser('~/count'), 'a') as f: f.write('x')\n time.sleep(0.1)"
    room.run("ben", code, wait=False)
    count = room.home("ben") / "count"
    until(lambda: count.exists() and count.stat().st_size > 3)
    for name in ("hub", "proxy"):
        before, size = room.process(name), count.stat().st_size
        os.kill(before, signal.SIGKILL)
        until(lambda name=name, before=before: room.process(name) not in (before, None))
        until(lambda size=size: count.stat().st_size > size + 10)
    ask = f"fetch('/user/ben/api/status', {{{XSRF}, signal: AbortSignal.timeout(5000)}}).then(a => a.status, e => 0)"
    until(lambda: room.browsers["ben"].js(ask) == 200)
    assert room.lab("list").count("ready") == 3
    size = count.stat().st_size
    until(lambda: count.stat().st_size > size)


def test_new_settings_restart_the_hub_only(room):
    count, before = room.home("ben") / "count", room.process("hub")
    assert room.url in room.lab("up", "--memory", "1.5")
    assert room.process("hub") != before and json.loads((room.path / "settings.json").read_text())["memory_gb"] == 1.5
    size = count.stat().st_size
    until(lambda: count.stat().st_size > size)


def test_a_hanging_server_is_restarted(room):
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and b"vla_notebooks.student" in command(pid)]
    uid = os.stat(room.home("cho")).st_uid
    (server,) = (pid for pid in pids if os.stat(f"/proc/{pid}").st_uid == uid)
    os.kill(server, signal.SIGSTOP)
    assert "cho: restarted" in room.lab("restart", "cho")
    room.load_again("cho")
    assert room.run("cho", "print('again')") == "again\n"


def command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_a_reset_ends_the_session_and_keeps_the_work(room):
    room.run("anna", "import os; open(os.path.expanduser('~/work.txt'), 'w').write('my work')")
    code = room.lab("reset", "anna").splitlines()[-1].partition(",")[2]
    room.browsers["anna"].go(f"{room.url}/hub/home")
    until_shown(room.browsers["anna"], "location.pathname.endsWith('/hub/login')")
    assert "Invalid" in message(room.log_in("anna", PASSWORD))
    page = room.log_in("anna", code, "another-flower")
    until_shown(page, "location.pathname === '/user/anna/lab'")
    room.load_again("anna")
    assert room.run("anna", "import os; print(open(os.path.expanduser('~/work.txt')).read())") == "my work\n"


def test_a_backup_brings_a_class_back_elsewhere(room, tmp_path):
    archive = tmp_path / "class.tar"
    room.lab("backup", archive)
    assert archive.stat().st_mode & 0o777 == 0o600
    other = RealClass(tmp_path)
    try:
        other.lab("restore", archive)
        work = other.home("anna") / "work.txt"
        assert work.read_text() == "my work" and work.stat().st_uid == (room.home("anna") / "work.txt").stat().st_uid
        assert os.path.ismount(other.home("anna"))
        assert "has students already" in other.lab("restore", archive, code=1)
    finally:
        unmount(other.path)


def test_remove_takes_the_work_or_keeps_it(room):
    homes = {name: room.home(name) for name in ("anna", "cho")}
    kept = room.lab("remove", "anna", "--keep-work")
    assert str(homes["anna"]) in kept and (homes["anna"] / "work.txt").read_text() == "my work"
    room.lab("remove", "cho")
    assert not homes["cho"].exists() and not homes["cho"].with_suffix(".img").exists()
    assert "Invalid" in message(room.log_in("anna", "another-flower"))
    room.lab("add", "dan")
    assert "dan: removed" in room.lab("remove", "dan")  # who has never logged in
    assert not {"anna", "dan"} & set(room.lab("list").split())


def test_a_class_of_an_older_lab_is_taken_over(room):
    """Settings that lack names and have an old one, no versions, and the database of JupyterHub 4."""
    room.lab("down")
    settings = json.loads((room.path / "settings.json").read_text())
    old = {name: value for name, value in settings.items() if name not in ("tmp_mb", "cert", "key")}
    (room.path / "settings.json").write_text(json.dumps({**old, "version": 1}))
    (room.path / "versions.json").unlink()
    database = f"sqlite:///{room.path}/hub.sqlite"
    subprocess.run([venvs.ensure("hub").python, "-c", DOWNGRADE, database], check=True, capture_output=True)
    assert room.url in room.lab("up")
    taken = json.loads((room.path / "settings.json").read_text())
    assert taken == settings and "layout" in (room.path / "versions.json").read_text()
    assert list(room.path.glob("hub.sqlite.*"))  # the copy
    room.browsers["ben"].go(f"{room.url}/hub/spawn/ben")  # in the same session
    room.load_again("ben")
    assert (room.home("ben") / "count").exists()
