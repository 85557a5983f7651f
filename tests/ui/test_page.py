"""The page's form as programs and browsers send it, and the page as a program: answers, errors in words, the probes."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image
from policies import KEYS, PickyPolicy, SeeingPolicy
from serving import ENVIRONMENT, address_of, nobody, program

from services.ui.ask import query, routes
from services.ui.ask.link import Choice, Trouble
from services.ui.site.site import Site

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "open-sesame"
HTML = {"Accept": "text/html"}


def test_the_page_passes_the_self_test_that_its_image_is_built_with():
    command = [sys.executable, ROOT / "images/common/selftest.py", "ui", "--part", "services"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(url, path, instruction="pick up the bowl", key="libero_goal", headers=None, **fields):
    """Return the page's answer to a question."""
    data = {"instruction": instruction, **({"unnorm_key": key} if key else {}), **fields}
    files = {"picture": Path(path).read_bytes()} if path else None
    return httpx.post(f"{url}/act", data=data, files=files, headers=headers, timeout=60)


def test_the_seven_numbers_are_the_policys(page_over, picture):
    policy = SeeingPolicy()
    url = page_over(policy)
    answer = ask(url, picture).json()
    pixels = np.array(Image.open(picture).convert("RGB"))
    expected = [*pixels.mean(axis=(0, 1)) / 255, 0.24, 0.32, 0.016, 0.75]
    assert np.allclose(answer["actions"], [expected], atol=1e-5)
    assert (answer["policy"], answer["unnorm_key"], answer["state"]) == ("seeing", "libero_goal", None)
    asked = policy.asked[-1]
    assert (asked.unnorm_key, asked.step, asked.instruction) == ("libero_goal", 0, "pick up the bowl")
    stages = query.Answer(chunk=SimpleNamespace(timings_ms=answer["timings_ms"])).stages
    assert sum(stages.values()) == pytest.approx(answer["timings_ms"]["round_trip"], abs=0.01)
    shown = ask(url, picture, headers=HTML).text
    for value in expected:
        assert f"{value:+.4f}" in shown
    assert "× 5 cm" in shown and "Chunk of" not in shown
    for part in ("decode", "queue", "inference", "encode", "network", "vision"):
        assert part in shown


def test_a_chunk_is_a_table_of_all_its_actions(page_over, picture):
    shown = ask(page_over(SeeingPolicy(horizon=8)), picture, headers=HTML).text.split("Chunk of 8 actions")[1]
    table = shown.split("</table>")[0]
    assert table.count("<tr>") == 9 and table.count("<td>") == 8 * 7


@pytest.mark.parametrize("as_libero", ["true", "false"])
def test_a_fixed_image_size_is_met(as_libero, page_over, picture):
    policy = SeeingPolicy(image_hw=(64, 64))
    answer = ask(page_over(policy), picture, as_libero=as_libero).json()
    assert answer["pictures"] == {"agentview": [64, 64, 3]}
    assert policy.asked[-1].images["agentview"].shape == (64, 64, 3)


def test_a_policy_that_looks_at_nothing_needs_no_image_and_no_key(page_over):
    from vla_contract.protocol.parts import GRIPPER_CLOSES, OSC_POSE

    policy = SeeingPolicy(cameras=(), unnorm_keys=(), action=(*OSC_POSE, GRIPPER_CLOSES))
    answer = ask(page_over(policy), None, key=None).json()
    assert answer["unnorm_key"] is None and policy.asked[-1].images == {}


@pytest.mark.parametrize(
    ("change", "words", "status"),
    [
        ({"path": None}, "The image is missing", 400),
        ({"instruction": "  "}, "The instruction is empty", 400),
        ({"key": None}, "No unnorm key is selected", 400),
        ({"key": "libero_gaol"}, "did you mean 'libero_goal'? Known: bridge_orig, libero_goal", 400),
        ({"instruction": "break"}, "The policy failed on this request", 502),
    ],
)
def test_what_is_wrong_is_reported(change, words, status, page_over, picture):
    question = {"path": picture, **change}
    url = page_over(PickyPolicy())
    answer, shown = ask(url, **question), ask(url, **question, headers=HTML)
    assert answer.status_code == status and words in answer.json()["detail"] and answer.json()["todo"]
    assert words.replace("'", "&#39;") in shown.text and 'role="alert"' in shown.text
    assert "Traceback" not in answer.text + shown.text and "secret" not in answer.text + shown.text


def test_what_is_not_an_image_is_reported(page_over, tmp_path):
    path = tmp_path / "notes.png"
    path.write_text("no picture at all")
    url = page_over(SeeingPolicy())
    answer = ask(url, path)
    assert answer.status_code == 400 and "This image cannot be used" in answer.json()["detail"]


def test_too_large_a_file_does_not_get_in(page_over, tmp_path):
    path = tmp_path / "big.png"
    path.write_bytes(bytes(21 * 2**20))
    url = page_over(SeeingPolicy())
    answer = ask(url, path)
    assert answer.status_code == 400 and "at most 20 MB" in answer.json()["detail"]
    assert httpx.post(f"{url}/act", files={"picture": bytes(81 * 2**20)}).status_code == 413


def test_what_is_not_a_question_is_refused_and_no_path_is_read(page_over, tmp_path):
    policy = SeeingPolicy()
    url = page_over(policy)
    for path in ("/etc/hostname", str(ROOT / "services/ui/app.py"), "file:///etc/hostname"):
        answer = httpx.post(f"{url}/act", data={"picture": path, "instruction": "x", "unnorm_key": "libero_goal"})
        assert answer.status_code == 400 and "The image is missing" in answer.json()["detail"]
    multipart = {"Content-Type": "multipart/form-data; boundary=x"}
    bodies = (
        b"[" * 60_000,
        b"--x\r\n\r\n",
        b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
        b"\xff" * 2**21,
    )
    for content in bodies:
        for headers in (multipart, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}, {}):
            assert 400 <= httpx.post(f"{url}/act", content=content, headers=headers).status_code < 500
    many = {f"field-{number}": "x" for number in range(1000)}
    assert httpx.post(f"{url}/act", data=many, files={"picture": b"x"}).status_code == 400
    assert [asked.instruction for asked in policy.asked] == ["warm up"]


def test_nobody_there_is_reported(page_over, place, picture):
    answer = ask(page_over(), picture)
    assert answer.status_code == 503 and f"No policy responds at {place[2].url}" in answer.json()["detail"]


def test_the_policys_token_reaches_it(serve_policy, serve_page, picture):
    url = serve_policy(SeeingPolicy(), token=TOKEN)
    assert "token" in ask(serve_page(url), picture).json()["detail"]
    assert ask(serve_page(url, token=TOKEN), picture).json()["policy"] == "seeing"


def test_the_page_asks_for_its_password(serve_policy, serve_page, picture):
    url = serve_page(serve_policy(SeeingPolicy()), password=TOKEN)
    assert httpx.get(f"{url}/state").status_code == 401
    assert httpx.post(f"{url}/act", files={"picture": b"x"}).status_code == 401
    assert ask(url, picture, headers={"Authorization": f"Bearer {TOKEN}"}).json()["policy"] == "seeing"


def test_the_probes_need_no_password_and_tell_of_the_policy(serve_policy, serve_page):
    url = serve_page(serve_policy(SeeingPolicy()), password=TOKEN)
    url = url.removesuffix("/ask")
    assert httpx.get(f"{url}/livez").json() == {"status": "alive"}
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready", "policy": "seeing responds"}
    away = httpx.get(f"{serve_page(nobody()).removesuffix('/ask')}/readyz")
    assert away.status_code == 200 and "No policy responds" in away.json()["policy"]


def test_the_page_follows_the_policy(serve_policy, link_to):
    closed = routes.describe(Choice(link_to(nobody())), [], {"key": "bridge_orig"})
    assert closed["trouble"] and closed["unnorm_keys"] == [] and closed["key"] == "bridge_orig"
    choice = Choice(link_to(serve_policy(SeeingPolicy(suites=("libero_goal",), image_hw=(224, 224)))))
    opened = routes.describe(choice, [], {})
    assert opened["info"].name == "seeing" and opened["unnorm_keys"] == list(KEYS) and opened["is_libero"]
    assert (opened["key"], opened["crops"]) == ("libero_goal", True), "the suite it was made for chooses"
    chosen = routes.describe(choice, [], {"key": "bridge_orig"})
    assert (chosen["key"], chosen["crops"]) == ("bridge_orig", False), "what somebody chose stays chosen"


def test_the_policys_identity_is_shown(serve_policy, serve_page):
    from vla_contract import Checkpoint

    policy = SeeingPolicy(
        checkpoint=Checkpoint("openvla/openvla-7b", "main", "f" * 64), quantization="nf4", device="cuda:0 (H200)",
        details={"attention": "sdpa (instead of flash)", "seed": 7},
    )  # fmt: skip
    shown = httpx.get(f"{serve_page(serve_policy(policy))}/state").text
    for fact in ("openvla/openvla-7b", "main", "ffffffffffffffff", "nf4", "cuda:0 (H200)", "sdpa (instead of flash)"):
        assert fact in shown
    assert "<dt>seed</dt><dd>7</dd>" in shown


def test_what_a_policy_says_is_escaped():
    from starlette.requests import Request

    trouble = Trouble("<b>", "<script>alert(1)</script>", "&")
    request = Request({"type": "http", "query_string": b"", "headers": [], "path": "/ask/"})
    shown = Site((), {}, None).fragment(request, "ask/banner.html.j2", trouble=trouble)
    assert "<script>" not in shown and "&lt;script&gt;" in shown


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
        assert httpx.get(f"{url}/ask/state").status_code == 401, "beyond loopback the page has a password"
        large = {"picture": bytes(2**21)}  # which is put on disk
        sent = httpx.post(f"{url}/ask/act", files=large, headers={"Authorization": f"Bearer {TOKEN}"})
        assert sent.status_code == 503 and not list(tmp_path.iterdir()), "what was uploaded is gone"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
