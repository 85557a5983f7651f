"""Whose model and data a lab takes, and what is said where they is not available; a hub is on 127.0.0.1."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.hf import classify, sources

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "c0ffee" + 34 * "0"
TOKEN = "hf_of_nobody"


def test_what_comes_from_the_hub_is_named_by_commit_but_one_that_may_move():
    parse_repository = {**sources.MODELS, **sources.DATA}
    moving = {kind for kind, one in parse_repository.items() if not re.fullmatch("[0-9a-f]{40}", one.revision)}
    assert moving == {"reviews"} and parse_repository["reviews"].revision == "refs/convert/parquet"
    assert {one.name for one in parse_repository.values()} >= {"beomi/kcbert-base", "skt/kogpt2-base-v2", "e9t/nsmc"}


def test_without_a_network_auto_takes_what_is_made_here_and_says_why(volume, directories):
    found = sources.model("bert", "auto", volume, 20)
    assert found.directory == directories["bert"] and not found.real
    assert (
        "made locally" in found.description
        and "beomi/kcbert-base is not available: HF_HUB_OFFLINE is set" in found.description
    )
    rows = sources.data("pairs", "auto", 30, volume, test_count=10)
    assert (len(rows.train), len(rows.test), rows.real) == (30, 10, False)
    assert "made locally" in rows.description and "Helsinki-NLP/opus_books is not available" in rows.description


def test_a_name_without_a_network_is_one_sentence_with_the_way_out(volume):
    with pytest.raises(
        ValueError, match=r"model 'klue/bert-base' is not available: HF_HUB_OFFLINE is set; use `--model made`"
    ):
        sources.model("bert", "klue/bert-base@main", volume)


@pytest.mark.parametrize("name", ["no spaces/please", "a/b/c", "-x/y", ""])
def test_what_is_not_a_name_is_refused(name, volume):
    with pytest.raises(ValueError, match=r"is not a valid hub name; expected OWNER/NAME"):
        sources.model("bert", name, volume)


def test_unknown_data_is_refused(volume):
    with pytest.raises(ValueError, match=r"'mine'; expected auto"):
        sources.data("reviews", "mine", 10, volume)
    with pytest.raises(ValueError, match=r"more than the 5000"):
        sources.data("news", "made", 1, volume, test_count=5000)


def test_a_push_without_a_token_is_refused_before_anything_is_trained(volume, monkeypatch):
    monkeypatch.setattr(sources, "get_token", lambda: None)
    monkeypatch.setattr(sources, "model", lambda *_: pytest.fail("nothing is loaded"))
    with pytest.raises(ValueError, match=r"--push me/mine .* set HF_TOKEN .* nothing was trained or sent"):
        classify.run(classify.Classify(push="me/mine"), volume)
    with pytest.raises(ValueError, match=r"--push 'not a name' is not a valid hub name"):
        sources.require_push("not a name")
    monkeypatch.setattr(sources, "get_token", lambda: TOKEN)
    with pytest.raises(ValueError, match=r"--push me/mine .* HF_HUB_OFFLINE is set"):
        sources.require_push("me/mine")
    sources.require_push(None)
    monkeypatch.setattr(sources, "get_token", lambda: "hf_secret\u201dsecret")
    with pytest.raises(ValueError, match=r"HF_TOKEN.*U\+201D") as caught:
        sources.require_push("me/mine")
    assert "secret" not in str(caught.value)


def test_model_and_tokenizer_are_uploaded_to_a_private_repository_and_only_when_asked(capsys):
    calls = []

    class Part:
        def push_to_hub(self, *words, **options):
            calls.append((words, options))

    sources.push(None, [Part()])
    assert calls == []
    sources.push("me/mine", [Part(), Part()])
    assert calls == 2 * [(("me/mine",), {"private": True})] and "me/mine (private)" in capsys.readouterr().out


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does for one repository: its description, its files; and says what it does not have."""

    directory: Path
    asked: list[str]

    def do_GET(self):
        self.answer(with_body=True)

    def do_HEAD(self):
        self.answer(with_body=False)

    def log_message(self, *words):
        pass

    def answer(self, with_body):
        path = self.path.split("?")[0]
        self.asked.append(f"{self.command} {path}")
        names = sorted(one.name for one in self.directory.iterdir())
        if path.startswith("/api/models/me/small/revision/main") or path.endswith(f"/revision/{COMMIT}"):
            about = {"id": "me/small", "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
            return self.send(200, json.dumps(about).encode(), with_body)
        if path.startswith("/api/models/me/small/tree/"):
            sizes = [(name, (self.directory / name).stat().st_size) for name in names]
            files = [{"type": "file", "path": name, "size": size, "oid": f"{size:040x}"} for name, size in sizes]
            return self.send(200, json.dumps(files).encode(), with_body)
        if path.startswith(f"/me/small/resolve/{COMMIT}/"):
            return self.send(200, (self.directory / Path(path).name).read_bytes(), with_body)
        missing = "RevisionNotFound" if path.startswith("/api/models/me/small/") else "RepoNotFound"
        return self.send(404, b"{}", with_body, {"X-Error-Code": missing})

    def send(self, code, body, with_body, more=None):
        self.send_response(code)
        tag = f'"{len(body)}-{sum(body[:1000])}"'
        for name, value in {"Content-Length": len(body), "ETag": tag, "X-Repo-Commit": COMMIT, **(more or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture
def hub(directories):
    """The address of a hub that has the small BERT as me/small, and the class that answers there."""
    handler = type("OneHub", (Hub,), {"directory": directories["bert"], "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


ASK = """
import sys
from services.hf import sources
from vla_common.volume import Volume
for asked in sys.argv[1:]:
    try:
        found = sources.model("bert", asked, Volume())
        print(found.description, found.directory)
    except ValueError as error:
        print(f"refused: {error}")
"""


def ask(endpoint, volume, *asked, program=ASK, **variables):
    """Return the lines of a program with a network and the hub at `endpoint`: one for each model that it asks for."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    env = {**kept, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "VLALAB_VOLUME": str(volume), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program, *asked], env=env, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_comes_from_the_hub_once_and_is_found_without_it(hub, directories, tmp_path):
    endpoint, asked = hub[0], hub[1].asked
    fetched, unknown, revision = ask(endpoint, tmp_path, "me/small", "me/nothing", "me/small@other")
    assert fetched.startswith("model: me/small at main from the hub")
    directory = Path(fetched.split(") ")[1])
    assert directory.is_relative_to(tmp_path / "hf" / "hub")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (directory / name).read_bytes() == (directories["bert"] / name).read_bytes()
    assert unknown.startswith("refused: model 'me/nothing' not found on the hub, or HF_TOKEN has no access")
    assert revision.startswith("refused: model 'me/small' has no revision 'other'; remove @other")
    before = len(asked)
    (again,) = ask(endpoint, tmp_path, "me/small", HF_HUB_OFFLINE="1")
    (away,) = ask("http://127.0.0.1:9", tmp_path, "me/small")
    assert again == away == fetched and len(asked) == before


def test_a_hub_that_does_not_answer_is_one_sentence(tmp_path):
    (refused,) = ask("http://127.0.0.1:9", tmp_path, "me/small")
    assert refused.startswith("refused: model 'me/small' is not available: the hub does not answer (")
