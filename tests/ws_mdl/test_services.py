"""The notebook and TensorBoard services as programs: who gets in, what runs, and what is shown."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import browser, forked
from tests.ports import free_ports
from vla_common import healthcheck
from vla_notebooks import __main__ as notebook_module

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "open-sesame"
MODULES = {
    "notebook": ("vla_notebooks", "--of", "ws_mdl"),
    "starving": ("tests.ws_mdl.starving_notebooks", "--of", "ws_mdl"),
    "tensorboard": ("services.ws_mdl.tensorboard",),
}
CLONE_NEWUSER, PR_SET_DUMPABLE = 0x10000000, 4  # linux/sched.h, linux/prctl.h
AS_ROOT = ["--allow-root"] if os.geteuid() == 0 else []


def program(module: str, *words: str, **variables: str) -> subprocess.Popen:
    """Starts a service; its output, both streams, is read line by line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLALAB_", "JUPYTER"))}
    path = os.pathsep.join(
        map(str, (ROOT, *(ROOT / "shared" / name for name in ("common", "contract", "modelkit", "notebooks"))))
    )
    env = {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "HOME": "/nonexistent", **variables}
    command = [sys.executable, "-m", *MODULES[module], *words]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@contextmanager
def serving(module: str, route: str, *words: str, **variables: str):
    """Starts a service on a free port; gives its address and its output as soon as `route` answers 200."""
    (port,), log = free_ports(1), Path(variables["VLALAB_VOLUME"]) / f"{module}.log"
    process = program(module, "--port", str(port), *words, **variables)
    try:
        end = time.monotonic() + 120
        while not healthcheck.check(f"http://127.0.0.1:{port}{route}", 2.0)[0]:
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < end, f"{module} does not answer {route}"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process
        process.send_signal(signal.SIGTERM)
        log.write_text(process.communicate(timeout=30)[0])
        assert process.returncode in (0, 1, -signal.SIGTERM, 128 + signal.SIGTERM), log.read_text()
    finally:
        process.kill()
        process.wait()


def ask(url: str, token: str | None = None, method: str = "GET", body: dict | None = None, scheme: str = "token"):
    """Return an answer's status and body."""
    headers = {"Authorization": f"{scheme} {token}"} if token else {}
    data = json.dumps(body).encode() if body is not None else None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def basic(password: str) -> str:
    return base64.b64encode(f"student:{password}".encode()).decode()


@pytest.mark.parametrize("module", ["notebook", "tensorboard"])
@pytest.mark.parametrize("reached", [{"VLALAB_BIND": "0.0.0.0"}, {}])
def test_the_network_gets_in_with_a_token_only(module, reached, tmp_path):
    words = [] if reached else ["--host", "0.0.0.0"]
    words += AS_ROOT if module == "notebook" else []
    with program(module, "--port", "0", *words, VLALAB_VOLUME=str(tmp_path), **reached) as process:
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "VLALAB_TOKEN" in output and "Traceback" not in output


@pytest.mark.parametrize("module", ["notebook", "tensorboard"])
def test_a_token_too_short_to_protect_is_refused(module, tmp_path):
    words = AS_ROOT if module == "notebook" else []
    with program(module, "--port", "0", *words, VLALAB_VOLUME=str(tmp_path), VLALAB_TOKEN="abc") as process:
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "8 or more" in output and "Traceback" not in output


# --- notebook -----------------------------------------------------------------------------------------------


# Becomes an ordinary user whom his own namespace calls root, as rootless engines do, and asks.
ROOTLESS = f"""
import ctypes, os, pathlib
from vla_notebooks import __main__ as notebook
libc = ctypes.CDLL(None, use_errno=True)
user = os.geteuid() or 65534
os.setresuid(user, user, user)
libc.prctl({PR_SET_DUMPABLE}, 1)  # its files in /proc are its own again
if libc.unshare({CLONE_NEWUSER}):
    raise SystemExit("no user namespaces here: " + os.strerror(ctypes.get_errno()))
try:
    pathlib.Path("/proc/self/uid_map").write_text(f"0 {{user}} 1")
except OSError as error:
    raise SystemExit(f"no user namespaces here: {{error}}")
print(os.geteuid(), notebook.is_root())
"""


def test_root_of_a_rootless_engine_is_not_root():
    done = subprocess.run([sys.executable, "-c", ROOTLESS], capture_output=True, text=True, timeout=120)
    if done.stderr.startswith("no user namespaces here"):
        pytest.skip(done.stderr.strip())
    assert done.stdout.split() == ["0", "False"], done.stderr
    assert notebook_module.is_root() == (os.geteuid() == 0)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook server behind TOKEN: its address and its volume."""
    volume = tmp_path_factory.mktemp("volume")
    with serving("notebook", "/api", *AS_ROOT, VLALAB_VOLUME=str(volume), VLALAB_TOKEN=TOKEN) as (url, _):
        yield url, volume


def test_without_the_token_nothing_but_the_version_is_reported(notebook):
    url, _ = notebook
    assert set(json.loads(ask(f"{url}/api")[1])) == {"version"}
    for token in (None, "another-token"):
        assert ask(f"{url}/api/contents", token)[0] == 403
        assert ask(f"{url}/api/kernels", token, "POST", {})[0] == 403
    assert ask(f"{url}/api/contents", TOKEN)[0] == 200


def test_files_lie_on_the_volume(notebook):
    url, volume = notebook
    body = {"type": "file", "format": "text", "content": "print('hello')\n"}
    assert ask(f"{url}/api/contents/hello.py", TOKEN, "PUT", body)[0] == 201
    assert (volume / "notebooks" / "hello.py").read_text() == "print('hello')\n"
    assert sorted(path.name for path in (volume / "notebooks").iterdir()) == ["hello.py", "ws_mdl"], (
        "settings elsewhere"
    )


def test_a_kernel_computes_in_this_environment(notebook):
    url, _ = notebook
    code = "import sys, torch, vla_contract; print(1 + 1, torch.__version__, sys.executable)"
    two, version, executable = run_code(url, code).splitlines()[0].split(maxsplit=2)  # a path may have spaces
    assert two == "2" and version.startswith("2.6.0")
    assert os.path.dirname(executable) == os.path.dirname(sys.executable)


def test_an_idle_kernel_is_stopped_and_a_silent_busy_one_is_not(tmp_path):
    """The busy one computes, without output, for longer than the limit."""
    limit_s = 10
    variables = {"VLALAB_VOLUME": str(tmp_path), "VLALAB_TOKEN": TOKEN, "VLALAB_NOTEBOOK_IDLE_MIN": str(limit_s / 60)}
    with serving("notebook", "/api", *AS_ROOT, **variables) as (url, _):
        busy, idle = (json.loads(ask(f"{url}/api/kernels", TOKEN, "POST", {})[1])["id"] for _ in range(2))
        channel = _connect(url, busy, TOKEN)
        list(_messages(channel, _execute(channel, f"import time; time.sleep({2 * limit_s})")))
        ended = time.monotonic()
        alive = {kernel["id"] for kernel in json.loads(ask(f"{url}/api/kernels", TOKEN)[1])}
        assert busy in alive and idle not in alive
        while json.loads(ask(f"{url}/api/kernels", TOKEN)[1]):
            assert time.monotonic() < ended + 60, "an idle kernel is never stopped"
            time.sleep(0.2)
        channel.close()


DIES = """
import os, signal, time
from pathlib import Path
time.sleep(1)  # until its server knows which cell runs
events = Path(os.environ["CGROUP"]) / "memory.events"
events.write_text(events.read_text().replace("oom_kill 3", "oom_kill {count}"))
os.kill(os.getpid(), signal.{signal})
"""


def test_a_kernel_that_was_killed_for_memory_reports_it_below_its_cell(tmp_path):
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\noom_group_kill 0\n")
    (tmp_path / "memory.max").write_text("4000000000\n")
    variables = {"VLALAB_VOLUME": str(tmp_path), "VLALAB_TOKEN": TOKEN, "CGROUP": str(tmp_path)}
    with serving("starving", "/api", *AS_ROOT, **variables) as (url, _):
        kernel = json.loads(ask(f"{url}/api/kernels", TOKEN, "POST", {})[1])["id"]
        channel = _connect(url, kernel, TOKEN)
        said = {}
        for name, code in {
            "memory": DIES.format(count=4, signal="SIGKILL"),
            "killed": DIES.format(count=4, signal="SIGKILL"),
            "crashed": DIES.format(count=4, signal="SIGABRT"),
        }.items():
            channel.settimeout(120)
            request = _execute(channel, code)
            said[name] = _until_restarted(channel, request)
            _until_back(channel)
        channel.close()
    assert "killed because memory ran out (4.0 GB" in said["memory"] and "메모리가 모자라" in said["memory"]
    assert "killed from outside (SIGKILL)" in said["killed"] and "memory" not in said["killed"]
    assert "killed" not in said["crashed"]
    assert "This kernel was killed because memory ran out" in (tmp_path / "starving.log").read_text()


def _until_restarted(channel, request: str) -> str:
    """Return what a cell put out until its kernel was started again."""
    text = ""
    while True:
        message = json.loads(channel.recv())
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "restarting":
            return text
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == request:
            text += message["content"]["text"]


def _until_back(channel) -> None:
    """Waits until a kernel that was started again answers. What is sent or printed before may be lost, so it is sent
    again."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with suppress(TimeoutError):
            if _text(list(_messages(channel, _execute(channel, "print('back')"), limit_s=10))) == "back\n":
                return
    pytest.fail("the kernel that was started again does not print")


def test_kernels_are_killed_before_their_server_where_memory_runs_out(notebook):
    url, _ = notebook
    scores = "open('/proc/self/oom_score_adj').read(), open(f'/proc/{os.getppid()}/oom_score_adj').read()"
    kernel, server = map(int, run_code(url, f"import os; print({scores})").split())
    assert kernel > server


PLOT = """
import warnings
warnings.simplefilter("error")
import matplotlib.pyplot as plt
plt.plot([1, -2])
plt.title("Loss 손실")
plt.savefig("/dev/null", format="png")
from matplotlib import font_manager, rcParams
print(font_manager.FontProperties(family=rcParams["font.family"][:1]).get_name(), rcParams["font.family"])
"""


def test_hangul_in_a_students_plot_has_glyphs_and_latin_looks_as_ever(notebook):
    url, _ = notebook
    # Before it matplotlib may say that its folder cannot be written.
    assert run_code(url, PLOT).splitlines()[-1] == "DejaVu Sans ['sans-serif', 'NanumGothic']"


def run_code(url: str, code: str, token: str = TOKEN) -> str:
    """Return what a new kernel prints for `code`, over the server's own WebSocket."""
    return _text(run_cell(url, code, token))


def run_cell(url: str, code: str, token: str = TOKEN) -> list[dict]:
    """Return the messages that a new kernel sends while it runs `code`. Fails with the traceback of an error."""
    kernel = json.loads(ask(f"{url}/api/kernels", token, "POST", {})[1])["id"]
    channel = _connect(url, kernel, token)
    try:
        return list(_messages(channel, _execute(channel, code)))
    finally:
        channel.close()
        ask(f"{url}/api/kernels/{kernel}", token, "DELETE")


def _connect(url: str, kernel: str, token: str):
    """Return a WebSocket to a kernel that reports its state on it.

    The kernel's status messages are published: what it sends before the server has subscribed is lost. After a minute
    of waiting for a kernel the server never subscribes that WebSocket, so another is opened.
    """
    import websocket

    where = f"{url.replace('http', 'ws')}/api/kernels/{kernel}/channels"
    end = time.monotonic() + 300
    while time.monotonic() < end:
        channel = websocket.create_connection(where, header=[f"Authorization: token {token}"], timeout=120)
        for _ in range(10):
            with suppress(TimeoutError):
                list(_messages(channel, _send(channel, "kernel_info_request", {}), limit_s=2))
                return channel
        channel.close()
    pytest.fail(f"the kernel does not report its state: {ask(f'{url}/api/kernels/{kernel}', token)}")


def _execute(channel, code: str) -> str:
    content = {"code": code, "silent": False, "store_history": False, "stop_on_error": True}
    return _send(channel, "execute_request", content)


def _send(channel, kind: str, content: dict) -> str:
    """Sends a request to a kernel. Returns the request's id."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "username": "", "session": "s", "version": "5.3"}
    request = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    channel.send(json.dumps(request | {"channel": "shell", "buffers": []}))
    return header["msg_id"]


def _messages(channel, request: str, limit_s: float = 300):
    """Yield the messages that answer `request`. Raises TimeoutError where the last of them does not come in time."""
    import websocket

    end = time.monotonic() + limit_s
    channel.settimeout(1)
    while time.monotonic() < end:  # the server's pings would renew a limit of the socket for ever
        with suppress(websocket.WebSocketTimeoutException):
            message = json.loads(channel.recv())
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "error":
                pytest.fail("\n".join(message["content"]["traceback"]))
            yield message
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return
    raise TimeoutError(f"the kernel has not reported the end of the request within {limit_s} s")


def _text(messages: list[dict]) -> str:
    return "".join(message["content"]["text"] for message in messages if message["msg_type"] == "stream")


@pytest.mark.outside  # no image holds the docs
def test_the_documented_notebook_shows_an_image(notebook):
    """The cell of docs/transformer.md, as it stands there, over a run that was trained on the volume."""
    url, volume = notebook
    train_small(volume)
    (cell,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "transformer.md").read_text(), re.S)
    results = [m["content"]["data"] for m in run_cell(url, cell) if m["msg_type"] in ("execute_result", "display_data")]
    images = [base64.b64decode(data["image/png"]) for data in results if "image/png" in data]
    assert len(images) == 1 and images[0].startswith(b"\x89PNG") and len(images[0]) > 5000


def train_small(volume: Path) -> None:
    """Leaves a run of one short epoch on the volume."""
    (volume / "datasets").mkdir(exist_ok=True)
    rows = [f"{word} {other}\t{other} {word}" for word in "abcdefgh" for other in "abcdefgh"]
    (volume / "datasets" / "letters.tsv").write_text("\n".join(rows) + "\n")
    flags = (
        "--d-model 16 --N 1 --h 2 --d-ff 32 --batch-tokens 128 --device cpu --epochs 1 --corpus letters.tsv --name run"
    )
    command = forked.python("-m", "services.ws_mdl.transformer.train", *flags.split())
    subprocess.run(command, env={**os.environ, "VLALAB_VOLUME": str(volume)}, check=True, capture_output=True)


def test_jupyter_asks_the_internet_for_nothing(notebook):
    url, _ = notebook
    page = ask(f"{url}/lab", TOKEN)[1].decode()
    settings = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert settings["news"] == {"disabled": True}
    assert settings["extensionManager"]["name"] == "read-only"
    elsewhere = re.findall(r'(?:src|href)="(https?://[^"]+)"', page)
    assert elsewhere == []


@pytest.mark.outside
@pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed to open JupyterLab with")
def test_jupyter_asks_nobody_about_news(notebook):
    """Its page asks whether to fetch news once its launcher is up, also where the server says that there are none."""
    url, _ = notebook
    with browser.Browser() as shown:
        shown.go(f"{url}/lab?token={TOKEN}")
        shown.until("!!document.querySelector('.jp-LauncherCard')", 120)
        time.sleep(3)  # the question came within a second of that
        assert "news" not in shown.js("document.body.innerText").lower()
        assert {urlsplit(at).netloc for at in shown.requests if at.startswith("http")} == {urlsplit(url).netloc}


def test_without_a_token_of_the_labs_the_log_names_a_random_one(tmp_path):
    with serving("notebook", "/api", *AS_ROOT, VLALAB_VOLUME=str(tmp_path)) as (url, process):
        line = next(line for line in iter(process.stdout.readline, "") if "/lab?token=" in line)
        token = re.search(r"token=(\S+)", line)[1]
        assert f"{url}/lab?token={token}" in line and len(token) >= 32
        assert ask(f"{url}/api/contents", token)[0] == 200 and ask(f"{url}/api/contents")[0] == 403
        assert token not in Path(f"/proc/{process.pid}/cmdline").read_text()
    assert TOKEN not in (tmp_path / "notebook.log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be refused for being root")
def test_root_is_refused(tmp_path):
    with program("notebook", "--port", "0", VLALAB_VOLUME=str(tmp_path)) as process:
        output = process.communicate(timeout=120)[0]
    assert process.returncode == 1 and "must not run as root" in output and "Traceback" not in output


# --- TensorBoard --------------------------------------------------------------------------------------------


def write_scalar(volume: Path, value: float) -> None:
    """Write a training run's curve of one point."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(volume / "logs" / "tensorboard" / "transformer" / "first")) as writer:
        writer.add_scalar("train/loss", value, 7)


def wait_for_scalars(url: str, **asking) -> list:
    """Return the points of the curve as soon as TensorBoard has read it: [wall time, step, value] each."""
    query = "/data/plugin/scalars/scalars?tag=train%2Floss&run=transformer%2Ffirst"
    end = time.monotonic() + 60
    while (answer := ask(url + query, **asking))[0] != 200:
        assert time.monotonic() < end, f"the curve is not shown: {answer}"
        time.sleep(0.5)
    return json.loads(answer[1])


def test_tensorboard_shows_a_curve_of_the_volume(tmp_path):
    write_scalar(tmp_path, 2.5)
    with serving("tensorboard", "/", VLALAB_VOLUME=str(tmp_path)) as (url, _):
        assert [point[1:] for point in wait_for_scalars(url)] == [[7, 2.5]]
        page = ask(url)[1].decode()
        assert re.findall(r'(?:src|href)="(https?://[^"]+)"', page) == []


def test_tensorboard_asks_for_the_password_and_its_probes_do_not(tmp_path):
    write_scalar(tmp_path, 0.25)
    with serving("tensorboard", "/readyz", VLALAB_VOLUME=str(tmp_path), VLALAB_TOKEN=TOKEN) as (url, _):
        for route in ("/", "/data/runs", "/data/plugin/scalars/tags"):
            assert ask(url + route)[0] == 401
            assert ask(url + route, basic("a guess"), scheme="Basic")[0] == 401
            assert ask(url + route, "no base64!", scheme="Basic")[0] == 401
            assert ask(url + route, TOKEN, scheme="Bearer")[0] == 200
        assert wait_for_scalars(url, token=basic(TOKEN), scheme="Basic")[0][2] == 0.25
        assert ask(f"{url}/livez")[0] == 200


def test_a_browser_is_reported_whose_password_it_is():
    from services.ws_mdl.tensorboard import protect
    from vla_contract.server.auth import TokenCheck

    answered = []
    guarded = protect(lambda environ, start: [b"curves"], TokenCheck(TOKEN))
    body = b"".join(guarded({"PATH_INFO": "/"}, lambda status, headers: answered.append((status, dict(headers)))))
    status, headers = answered[0]
    assert status.startswith("401") and "VLALAB_TOKEN" in headers["WWW-Authenticate"] and b"VLALAB_TOKEN" in body


@pytest.mark.parametrize("given", [True, False])
def test_the_notebooks_token_is_in_no_file_that_others_read_and_on_no_command_line(tmp_path, given):
    variables = {"TMPDIR": str(tmp_path / "tmp"), **({"VLALAB_TOKEN": TOKEN} if given else {})}
    (tmp_path / "tmp").mkdir(mode=0o755)
    umask = os.umask(0)
    try:
        with serving("notebook", "/api", *AS_ROOT, VLALAB_VOLUME=str(tmp_path), **variables) as (url, process):
            token = TOKEN if given else _named_in(process)
            run_code(url, "print(1)", token)  # a kernel has files of its own
            found = [path for path in tmp_path.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
            assert [path for path in found if path.stat().st_mode & 0o077 and not _closed(path, tmp_path)] == []
            lines = [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
            assert any(lines) and not [line for line in lines if token.encode() in line]
    finally:
        os.umask(umask)


def _named_in(process) -> str:
    line = next(line for line in iter(process.stdout.readline, "") if "/lab?token=" in line)
    return re.search(r"token=(\S+)", line)[1]


def _closed(path: Path, top: Path) -> bool:
    """Return whether a folder on the way from `top` lets nobody else through."""
    return any(not directory.stat().st_mode & 0o011 for directory in path.parents if directory.is_relative_to(top))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""
