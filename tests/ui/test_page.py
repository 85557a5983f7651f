"""The page over Gradio's own HTTP API and as a program: answers, errors in words, the password, the probes."""

import json
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio.route_utils import delete_files_created_by_app
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from policies import KEYS, PickyPolicy, SeeingPolicy
from serving import ENVIRONMENT, address_of, nobody, program

from services.ui.ask import asking, moments, page
from services.ui.ask.choice import Choice

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "open-sesame"


@pytest.fixture
def client(stack):
    """Returns a function that makes a client of a page."""

    def make(url, **settings):
        made = Client(url, verbose=False, analytics_enabled=False, **settings)
        stack.callback(made.close)
        return made

    return make


@pytest.fixture(scope="module")
def asks(place):
    """A client of the one page, over whichever policy it has."""
    with closing(Client(place[0], verbose=False, analytics_enabled=False)) as made:
        yield made


@pytest.fixture
def asked_over(page_over, asks):
    """Returns a function that serves a policy below the one page, and gives that page's client."""

    def make(policy=None):
        page_over(policy)
        return asks

    return make


def test_the_page_passes_the_self_test_that_its_image_is_built_with():
    command = [sys.executable, ROOT / "images/ui/selftest.py", "--part", "services"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(client, path, instruction="pick up the bowl", key="libero_goal", as_libero=False):
    """Returns the page's four answers: numbers, chunk, latency, JSON."""
    picture = handle_file(str(path)) if path else None
    return client.predict(picture, instruction, key, as_libero, api_name="/ask")


def test_the_seven_numbers_are_the_policys(asked_over, picture):
    policy = SeeingPolicy()
    numbers, chunk, latency, raw = ask(asked_over(policy), picture)
    pixels = np.array(Image.open(picture).convert("RGB"))
    expected = [*pixels.mean(axis=(0, 1)) / 255, 0.24, 0.32, 0.016, 0.75]
    assert np.allclose(json.loads(raw)["actions"], [expected], atol=1e-5)
    for value in expected:
        assert f"{value:+.4f}" in numbers
    assert "× 5 cm" in numbers and chunk == ""
    for part in ("decode", "queue", "inference", "encode", "network", "vision"):
        assert part in latency
    asked = policy.asked[-1]
    assert (asked.unnorm_key, asked.step, asked.instruction) == ("libero_goal", 0, "pick up the bowl")


def test_the_parts_of_the_latency_add_up_to_the_round_trip(asked_over, picture):
    from services.ui.ask.views import split

    raw = ask(asked_over(SeeingPolicy()), picture)[3]
    timings = json.loads(raw)["timings_ms"]
    assert sum(split(timings).values()) == pytest.approx(timings["round_trip"], abs=0.01)
    assert "vision" not in split(timings), "what the policy counts itself is part of the inference"


def test_a_chunk_is_a_table_of_all_its_actions(asked_over, picture):
    chunk = ask(asked_over(SeeingPolicy(horizon=8)), picture)[1]
    assert "Chunk of 8 actions" in chunk and chunk.count("<tr>") == 9 and chunk.count("<td>") == 8 * 7


@pytest.mark.parametrize("as_libero", [True, False])
def test_a_fixed_picture_size_is_met(as_libero, asked_over, picture):
    policy = SeeingPolicy(image_hw=(64, 64))
    raw = ask(asked_over(policy), picture, as_libero=as_libero)[3]
    assert json.loads(raw)["pictures"] == {"agentview": [64, 64, 3]}
    assert policy.asked[-1].images["agentview"].shape == (64, 64, 3)


def test_openvla_names_its_picture_size_among_the_details():
    info = SeeingPolicy(details={"image_size": "224"}).info()
    assert asking.libero_size(info) == (224, 224) and asking.libero_is_usual(info, "libero_goal")
    assert not asking.libero_is_usual(info, "bridge_orig")
    assert asking.libero_size(SeeingPolicy(unnorm_keys=("bridge_orig",), image_hw=(9, 9)).info()) is None


def test_a_policy_that_looks_at_nothing_needs_no_picture_and_no_key(asked_over):
    from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE

    policy = SeeingPolicy(cameras=(), unnorm_keys=(), action=(*OSC_POSE, GRIPPER_CLOSES))
    raw = ask(asked_over(policy), None, key=None)[3]
    assert json.loads(raw)["unnorm_key"] is None and policy.asked[-1].images == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": None}, "The picture is missing"),
        ({"instruction": "  "}, "The instruction is empty"),
        ({"key": None}, "No unnorm key is chosen"),
        ({"key": "libero_gaol"}, "did you mean &#x27;libero_goal&#x27;? Known: bridge_orig, libero_goal"),
        ({"instruction": "break"}, "The policy failed at this request"),
    ],
)
def test_what_is_wrong_is_said_in_words(change, words, asked_over, picture):
    got = ask(asked_over(PickyPolicy()), **{"path": picture, **change})
    assert words in got[0] and 'role="alert"' in got[0] and got[1:] == ("", "", "")
    assert "Traceback" not in got[0] and "secret" not in got[0]


def test_what_is_no_picture_is_said_in_words(asked_over, tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("no picture at all")
    got = ask(asked_over(SeeingPolicy()), path)
    assert "This picture cannot be used" in got[0] and str(tmp_path) not in got[0]


def test_too_large_a_file_does_not_get_in(asked_over, tmp_path):
    path = tmp_path / "big.png"
    path.write_bytes(bytes(21 * 2**20))
    with pytest.raises((httpx.HTTPStatusError, ValueError, AppError)):
        ask(asked_over(SeeingPolicy()), path)


def ask_index(url: str) -> int:
    """Returns the number that Gradio gave the function which asks the policy."""
    functions = httpx.get(url.removesuffix("/gradio_api") + "/config").json()["dependencies"]
    return next(found["id"] for found in functions if found["api_name"] == "ask")


def test_a_file_that_was_not_uploaded_is_not_read(page_over, tmp_path):
    """Whoever speaks Gradio's protocol by hand may name any path."""
    policy = SeeingPolicy()
    url = page_over(policy) + "/gradio_api"
    way = {"session_hash": "by-hand", "fn_index": ask_index(url)}
    for path in ("/etc/hostname", str(ROOT / "services" / "ui" / "app.py")):
        data = [{"path": path, "meta": {"_type": "gradio.FileData"}}, "open it", "libero_goal", False, []]
        refused = httpx.post(f"{url}/queue/join", json={"data": data, **way})
        assert refused.status_code == 403
        said = refused.text + httpx.post(f"{url}/run/predict", json={"data": data, **way}).text
        assert "vl-numbers" not in said and "Traceback" not in said
    assert [asked.instruction for asked in policy.asked] == ["warm up"]


def test_nobody_there_is_said_in_words(asked_over, place, picture):
    assert f"No policy answers at {place[2].url}" in ask(asked_over(), picture)[0]


def test_the_policys_token_reaches_it(serve_policy, serve_page, client, picture):
    url = serve_policy(SeeingPolicy(), token=TOKEN)
    assert "token" in ask(client(serve_page(url)), picture)[0]
    assert json.loads(ask(client(serve_page(url, token=TOKEN)), picture)[3])["policy"] == "seeing"


def test_the_page_asks_for_its_password(serve_policy, serve_page, client, picture):
    url = serve_page(serve_policy(SeeingPolicy()), password=TOKEN)
    for route in ("/config", "/gradio_api/info"):
        assert httpx.get(url + route).status_code == 401
    assert httpx.post(f"{url}/gradio_api/upload", files={"files": b"x"}).status_code == 401
    assert httpx.post(f"{url}/login", data={"username": "me", "password": "a guess"}).status_code == 400
    assert json.loads(ask(client(url, auth=("anybody", TOKEN)), picture)[3])["policy"] == "seeing"


def test_the_probes_need_no_password_and_tell_of_the_policy(serve_policy, serve_page):
    url = serve_page(serve_policy(SeeingPolicy()), password=TOKEN)
    url = url.removesuffix("/ask")
    assert httpx.get(f"{url}/livez").json() == {"status": "alive"}
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready", "policy": "seeing answers"}
    away = httpx.get(f"{serve_page(nobody()).removesuffix('/ask')}/readyz")
    assert away.status_code == 200 and "No policy answers" in away.json()["policy"]


def test_the_page_follows_the_policy(serve_policy, link_to):
    closed = page.look_again(link_to(nobody()), "", "bridge_orig")
    assert closed[-1]["interactive"] is False and closed[3]["visible"] is False
    to = link_to(serve_policy(SeeingPolicy(suites=("libero_goal",), image_hw=(224, 224))))
    seen, _, _, key, as_libero, button = page.look_again(to, closed[0], None)
    assert key["choices"] == list(KEYS) and key["value"] == "libero_goal", "the suite it was made for chooses"
    assert as_libero["visible"] and as_libero["value"] and button["interactive"]
    kept = page.look_again(to, "", "bridge_orig")
    assert kept[3]["value"] == "bridge_orig" and not kept[4]["value"], "what somebody chose stays chosen"
    assert all(update == page.gr.skip() for update in page.look_again(to, seen, None)), "nothing new, nothing to do"


def test_the_policys_identity_is_shown(serve_policy):
    from services.ui.ask.views import identity
    from vla_contract import Checkpoint

    policy = SeeingPolicy(
        checkpoint=Checkpoint("openvla/openvla-7b", "main", "f" * 64), quantization="nf4", device="cuda:0 (H200)",
        details={"attention": "sdpa (instead of flash)"},
    )  # fmt: skip
    shown = identity(policy.info())
    for fact in ("openvla/openvla-7b", "main", "ffffffffffffffff", "nf4", "cuda:0 (H200)", "sdpa (instead of flash)"):
        assert fact in shown


def test_examples_outlive_the_cleaning_of_uploads(link_to):
    built = page.build(Choice(link_to(nobody())))
    assert len(moments.examples()) >= 3 and all(Path(path).is_file() for path, _ in moments.examples())
    kept = {path for block in built.blocks.values() for path in block.keep_in_cache}
    delete_files_created_by_app(built, None)
    assert len(kept) >= len(moments.examples()) and all(Path(path).is_file() for path in kept)


def test_nothing_is_reported_to_gradios_makers(link_to):
    built = page.build(Choice(link_to(nobody())))
    assert built.analytics_enabled is False
    assert not any(Path(page.__file__).parent.glob("*.pyi")), "Gradio has written beside the source"


# --- as a program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "variables", "told"),
    [
        (["--policy-url", "openvla"], {}, "expected for example http"),
        (["--policy-url", "http://127.0.0.1:9", "--host", "0.0.0.0"], {"VLALAB_TOKEN": ""}, "VLALAB_TOKEN"),
        (["--policy-url", "http://127.0.0.1:9"], {"VLALAB_BIND": "0.0.0.0", "VLALAB_TOKEN": ""}, "VLALAB_TOKEN"),
        (["--policy-url", "http://127.0.0.1:9"], {"VLALAB_TOKEN": "short"}, "8 or more"),
        (["--policy-url", "http://127.0.0.1:9", "--port", "70000"], {}, "0 to 65535"),
        ([], {}, "--policy-url"),
    ],
)
def test_a_bad_setting_ends_it_with_a_sentence(words, variables, told):
    with program(*words, **variables) as process:
        try:
            output = process.communicate(timeout=120)[0]
        finally:
            process.kill()
    assert process.returncode != 0 and told in output and "Traceback" not in output


def test_it_starts_where_only_tmp_can_be_written_and_stops_when_told(tmp_path):
    variables = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path), "VLALAB_TOKEN": TOKEN, "VLALAB_BIND": ""}
    process = program("--port", "0", "--host", "0.0.0.0", "--policy-url", nobody(), **variables)
    try:
        url = address_of(process)
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert [path.stat().st_mode & 0o077 for path in tmp_path.glob("vlalab-ui-*")] == [0], (
            "nobody else reads uploads"
        )
        assert httpx.get(f"{url}/ask/config").status_code == 401, "beyond loopback the page has a password"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not list(tmp_path.glob("vlalab-ui-*")), "uploads are gone with the page"
    finally:
        process.kill()
        process.communicate()
