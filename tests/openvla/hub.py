"""A model hub on loopback: the few routes that a download needs, with faults on request."""

import hashlib
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `directory` as repository `repo`, and `others`: repository → directory.

    Its revisions are `main` and COMMIT; of a repository in `commits`, that commit only. `cut` bytes into its first
    answer, a file's connection breaks.
    """

    daemon_threads = True

    def __init__(self, directory: Path, repo: str):
        super().__init__(("127.0.0.1", 0), Handler)
        self.directory, self.repo = directory, repo
        self.others: dict[str, Path] = {}
        self.commits: dict[str, str] = {}
        self.gated: set[str] = set()  # repositories whose files need a token
        self.cut: dict[str, int] = {}
        self.lies: set[str] = set()  # files whose promised sha256 is wrong
        self.pause_s = 0.0  # before the bytes of a file
        self.asked: list[tuple[str, str, str | None]] = []  # method, file, Range

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.partition("?")[0]
        repo, _ = self._repository()
        if path.startswith(f"/api/models/{repo}/revision/"):
            commit = self.server.commits.get(repo)
            known = (commit,) if commit else ("main", COMMIT)
            return self._json(self._listing()) if path.rpartition("/")[2] in known else self._missing()
        self._file(path, body=True)

    def do_HEAD(self):
        self._file(self.path, body=False)

    def log_message(self, *args):
        pass

    def _repository(self):
        """The (repository, directory) that the path names; the first one if it names none."""
        served = {self.server.repo: self.server.directory, **self.server.others}
        return next((item for item in served.items() if f"/{item[0]}/" in self.path), next(iter(served.items())))

    def _listing(self):
        siblings = []
        repo, directory = self._repository()
        for path in sorted(path for path in directory.rglob("*") if path.is_file()):
            facts = {"rfilename": path.relative_to(directory).as_posix(), "size": path.stat().st_size}
            if path.suffix == ".safetensors":
                sha = "0" * 64 if path.name in self.server.lies else hashlib.sha256(path.read_bytes()).hexdigest()
                facts["lfs"] = {"sha256": sha, "size": facts["size"], "pointerSize": 130}
            siblings.append(facts)
        return {"id": repo, "modelId": repo, "sha": self.server.commits.get(repo, COMMIT), "siblings": siblings}

    def _file(self, path, body):
        repo, directory = self._repository()
        commit = self.server.commits.get(repo, COMMIT)
        prefix = f"/{repo}/resolve/{commit}/"
        name = path.removeprefix(prefix)
        file = directory / name
        if repo in self.server.gated:
            return self._missing(403, "GatedRepo")
        if not path.startswith(prefix) or not file.is_file():
            return self._missing()
        self.server.asked.append((self.command, name, self.headers.get("Range")))
        data = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-") or 0)
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            cut = self.server.cut.pop(name, None)
            time.sleep(self.server.pause_s)
            self.wfile.write(data[start:cut])
            self.close_connection = self.close_connection or cut is not None

    def _json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _missing(self, status=404, code=""):
        self.send_response(status)
        usual = "RevisionNotFound" if self._repository()[0] in self.path else "RepoNotFound"
        self.send_header("X-Error-Code", code or usual)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def hub(directory: Path, repo: str):
    """Serves while the block runs."""
    server = Hub(directory, repo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
