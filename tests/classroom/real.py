"""A class that `./lab class up` started: JupyterHub, its proxy, students' servers, and a browser for each student."""

import json
import os
import subprocess
import time

from tests import ports
from tests.browser import Browser
from vlalab.host import paths

# Runs a cell through the page: a kernel over REST with the page's _xsrf, its output over a websocket.
RUN = """(async (base, code, wait) => {
  const xsrf = document.cookie.match(/_xsrf=([^;]+)/)?.[1] ?? '';
  const post = (path, body) => fetch(base + path, {method: 'POST', body: JSON.stringify(body),
    headers: {'X-XSRFToken': xsrf, 'Content-Type': 'application/json'}}).then(answer => answer.json());
  const id = (await post('api/kernels', {name: 'python3'})).id;
  const socket = new WebSocket(location.origin.replace('http', 'ws') + base + 'api/kernels/' + id + '/channels');
  let text = '';
  await new Promise((resolve, reject) => {
    socket.onerror = reject;
    socket.onopen = () => socket.send(JSON.stringify({channel: 'shell', parent_header: {}, metadata: {}, buffers: [],
      header: {msg_id: 'm1', username: '', session: 's1', msg_type: 'execute_request', version: '5.3'},
      content: {code, silent: false, store_history: false, allow_stdin: false, stop_on_error: true}}));
    socket.onmessage = event => {
      const message = JSON.parse(event.data);
      if (message.msg_type === 'stream') text += message.content.text;
      if (message.msg_type === 'error') text += message.content.ename + ': ' + message.content.evalue;
      // Idle and not the reply: a reply may overtake what the cell printed, which comes on another channel.
      const state = message.parent_header.msg_id === 'm1' && message.content.execution_state;
      if (state === 'idle' || !wait && state === 'busy') resolve();
    };
  });
  return text;
})"""


class RealClass:
    """A class that `./lab class up` started, and its students' browsers."""

    def __init__(self, directory, variables=None, **settings):
        self.volume, self.state = directory / "volume", directory / "state"
        self.volume.mkdir()
        self.state.mkdir(mode=0o700)
        port = ports.free_ports(1)[0]
        self.url, self.path = f"http://127.0.0.1:{port}", self.volume / "class"
        self.flags = ["--port", port, *(word for item in settings.items() for word in (f"--{item[0]}", item[1]))]
        self.browsers, self.variables = {}, variables or os.environ

    def lab(self, *words, code=0):
        """Return what a `./lab class` command printed. code: the expected exit code, None for any."""
        variables = {**self.variables, "VLALAB_VOLUME": str(self.volume), "VLALAB_STATE": str(self.state)}
        command = [paths.ROOT / "lab", *([] if words[0] == "check" else ["class"]), *map(str, words)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900)
        assert code in (None, done.returncode), done.stdout + done.stderr
        return done.stdout + done.stderr

    def account(self, name):
        """Return a student's entry of accounts.json."""
        return json.loads((self.path / "accounts.json").read_text())["accounts"][name]

    def home(self, name):
        """Return a student's home as root sees it."""
        return self.path / "homes" / self.account(name)["id"]

    def log_in(self, name, secret, new=""):
        """Fill the form in a browser of the student's own, and return the browser."""
        page = self.browsers.setdefault(name, Browser())
        page.go(f"{self.url}/hub/login")
        page.type("#username_input", name)
        page.type("#password_input", secret)
        for field in ("#new_input", "#again_input") if new else ():
            page.type(field, new)
        page.click("#login_submit")
        return page

    def open(self, name, secret, new=""):
        """Log in and wait for JupyterLab, then show a small page of the same session."""
        page = self.log_in(name, secret, new)
        until_shown(page, f"location.pathname === '/user/{name}/lab'")
        self.load_again(name)
        return page

    def load_again(self, name):
        """Log in to a student's server, which may be a new one, and load a small page of it."""
        page = self.browsers[name]
        for path in ("lab", "no-such-page"):
            page.go(f"{self.url}/user/{name}/{path}")
            until_shown(page, f"location.pathname === '/user/{name}/{path}' && document.readyState === 'complete'")

    def run(self, name, code, wait=True):
        """Return the output of a cell that the student's page ran."""
        page, call = self.browsers[name], f"{RUN}('/user/{name}/', {json.dumps(code)}, {json.dumps(wait)})"
        page.js(f"window.ran = null, {call}.then(text => window.ran = [text], error => window.ran = [`${{error}}`]), 0")
        return until_shown(page, "window.ran")[0]

    def process(self, name):
        """Return the pid of the hub or the proxy."""
        (file,) = self.state.rglob(f"class-{name}.json")
        return (json.loads(file.read_text())["child"] or {}).get("pid")


def until(condition, timeout_s=120.0):
    """Wait until a condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.2)


def until_shown(page, expression, timeout_s=600.0):
    """Return an expression's value as soon as it is true, also from a browser that is slow to answer."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            return page.until(expression, timeout_s)
        except TimeoutError as error:
            if "did not answer" not in str(error) or time.monotonic() > end:
                raise
