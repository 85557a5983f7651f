"""The simulator as a service: real MuJoCo in sessions' own processes, over real HTTP, with a real oracle."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time

import av
import httpx
import numpy as np
import pytest
import uvicorn

from services.libero.benchmark import BENCHMARK
from services.libero.oracle.policy import OraclePolicy
from services.libero.policies.random_policy import RandomPolicy
from tests.libero.harness import wait_for
from tests.running import running
from vla_contract.server.auth import TokenCheck
from vla_contract.server.serving import address, listen, uvicorn_config
from vla_evaluation.config import EvalConfig
from vla_evaluation.live import commands
from vla_evaluation.live.service import Limits, Sessions, create_app, parse_policies
from vla_evaluation.live.session import Session
from vla_evaluation.plan import make_plan, specify
from vla_evaluation.recording import Demonstrations
from vla_evaluation.recording.trajectory import seed_of
from vla_evaluation.rollout import digest, run_episode

SHORT = {"suite": "libero_goal", "task": 7}  # turn on the stove: 42 steps of the oracle
START = 5
TOKEN = "a-token-of-the-tests"
STILL = [0.0] * 6 + [-1.0]
STRANGE = (
    "true", "-1", "1.5", "1e999", "NaN", '"x"', '"\\ud800"', "[[]]", "[{}]", '{"a": []}', "9" * 4000, "9" * 5000,
    *("[" * depth + "]" * depth for depth in (40, 900, 960, 980, 5000)), '{"a":' * 900 + "1" + "}" * 900,
)  # fmt: skip


class Client:
    """What a page does: asks for news, and tells what a person does."""

    def __init__(self, url: str, sessions: Sessions):
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        self.sessions, self.asked = sessions, 0

    def open(self, **asked) -> str:
        answer = self.http.post("/v1/sessions", json={**SHORT, **asked})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def do(self, session: str, do: str, **more) -> httpx.Response:
        return self.http.post(f"/v1/sessions/{session}/do", json={"do": do, **more})

    def look(self, session: str, after: int = 0) -> tuple[dict, bytes]:
        self.asked += 1
        data = self.http.get(f"/v1/sessions/{session}/frame", params={"after": after}).content
        head, rest = commands.LENGTHS.unpack(data[:8])
        assert len(data) == 8 + head + rest
        return httpx.Response(200, content=data[8 : 8 + head]).json(), data[8 + head :]

    def until(self, session: str, what, timeout_s: float = 120.0) -> dict:
        """Return the first news of which `what` holds."""
        news, end = {"number": 0}, time.monotonic() + timeout_s
        while time.monotonic() < end:
            news, self.pictures = self.look(session, news["number"])
            if what(news):
                return news
            assert news["state"] not in ("failed", "gone"), news
            time.sleep(0.1)  # each look has two pictures drawn
        raise AssertionError(f"it did not happen within {timeout_s:g} s: {news}")


@pytest.fixture(scope="module")
def oracle():
    with running(OraclePolicy(), inline=True) as policy:
        yield policy.url


@pytest.fixture(scope="module")
def volume(tmp_path_factory, libero_assets):
    directory, before = tmp_path_factory.mktemp("live") / "volume", os.environ.get("VLALAB_VOLUME")
    (directory / "demonstrations").mkdir(parents=True)
    names = {"VLALAB_VOLUME": str(directory), "VLALAB_LIBERO_ASSETS": str(libero_assets)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield directory
    assert os.environ.get("VLALAB_VOLUME") == before


@pytest.fixture(scope="module")
def client(volume, oracle, tmp_path_factory):
    """The service on a port, in a thread, with a policy that is there, one that will go, and one that is not."""
    with running(RandomPolicy(seed=0)) as other, contextlib.ExitStack() as stack:
        policies = {"oracle": oracle, "random": other.url, "absent": "http://127.0.0.1:1"}
        sessions = Sessions(BENCHMARK, tmp_path_factory.mktemp("work"), policies, Limits(sessions=2))
        listener = stack.enter_context(listen("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn_config(create_app(sessions, TokenCheck(TOKEN)), "warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for(lambda: server.started, "the service's start")
        found = Client(address(listener), sessions)
        found.other = other
        yield found
        server.should_exit = True
        thread.join(30)
        assert not any(one.rss_bytes() for one in sessions.all.values()), "a session's process outlived the service"


@pytest.fixture(scope="module")
def solved(client):
    """A session of the oracle whose episode has ended, and its last news; nobody looked while it ran."""
    session = client.open(policy="oracle", start={"drawn": START})
    client.do(session, "speed", speed=0)
    client.until(session, lambda news: news["state"] == "running")
    wait_for(lambda: not news_is_new(client, session), "the episode's end")
    return session, client.until(session, lambda news: news["state"] == "ended")


def news_is_new(client: Client, session: str) -> bool:
    """Return whether the oracle was asked since: it is busy while the episode runs."""
    before = busy(client)
    time.sleep(0.3)
    return busy(client) != before


def busy(client: Client) -> str:
    metrics = httpx.get(f"{client.sessions.policies['oracle']}/metrics").text
    return "".join(line for line in metrics.splitlines() if 'route="/v1/act"' in line)


# --- a policy drives ----------------------------------------------------------------------------------------


def test_oracle_episode_equals_the_evaluations_to_the_bit(solved, client, libero_env, oracle):
    """Looking on changes nothing: the same actions and the same last state as the rollout alone has."""
    from vla_contract import PolicyClient

    _, news = solved
    assert news["success"] and news["reason"] == "solved" and news["policy"] == "oracle" and news["policy_ms"] > 0
    assert news["number"] <= client.asked + 2 < news["step"], "few of the steps were drawn: nothing is queued"
    task = BENCHMARK.tasks(SHORT["suite"])[SHORT["task"]]
    libero_env.load_task(task, seed_of(0, task.index, START))
    plan = make_plan(BENCHMARK, EvalConfig(SHORT["suite"]))
    with PolicyClient(oracle) as policy:
        spec = specify(plan, policy.info())
        record = run_episode(libero_env, 0, libero_env.start(0), act=policy.act, spec=spec, session="alone")
    assert np.allclose(record.actions, news["actions"], atol=1e-4) and news["step"] == record.steps
    kept = client.http.post(f"/v1/sessions/{solved[0]}/keep", json={}).json()["kept"]
    (one,) = Demonstrations(client.sessions.work.parent / "none" if not kept else directory_of(kept)).episodes
    assert digest(one.actions) == digest(record.actions)
    assert digest(one.arrays["end"]) == record.end_hash


def directory_of(name: str):
    from vla_common.volume import Volume

    return Volume().demonstrations / name


def test_both_cameras_are_sent_upright(solved, client):
    news, images = client.look(solved[0])
    first, second = news["pictures"].values()
    assert list(news["pictures"]) == list(BENCHMARK.cameras[:2]) and first + second == len(images)
    for data in (images[:first], images[first:]):
        assert data[:3] == b"\xff\xd8\xff"


def test_video_has_both_cameras(solved, client, tmp_path):
    film = client.http.get(f"/v1/sessions/{solved[0]}/film")
    assert film.headers["content-type"] == "video/mp4"
    (tmp_path / "film.mp4").write_bytes(film.content)
    with av.open(str(tmp_path / "film.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert frames[0].shape == (256, 512, 3) and len(frames) > solved[1]["step"] / 2


def test_demonstration_is_saved_once_and_a_full_disk_is_reported(solved, client, volume):
    session, _ = solved
    directory = volume / "demonstrations"
    again = client.http.post(f"/v1/sessions/{session}/keep", json={})
    assert again.status_code == 400 and "already saved" in again.json()["detail"]
    client.do(session, "reset")
    client.until(session, lambda news: news["episode"] == 2 and news["state"] == "ended")
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(directory)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small file system")
    full = client.http.post(f"/v1/sessions/{session}/keep", json={})
    subprocess.run(["umount", "-l", str(directory)], check=True)
    assert full.status_code == 400 and "free some space" in full.json()["detail"]
    kept = client.http.post(f"/v1/sessions/{session}/keep", json={}).json()["kept"]
    assert [episode.task for episode in Demonstrations(directory / kept).episodes] == [7, 7]


def test_evaluation_starts_are_not_saved(solved, client):
    session, _ = solved
    assert client.do(session, "reset", start={"init": 0}).status_code == 200
    news = client.until(session, lambda news: news["start"] == {"init": 0} and news["state"] == "ended")
    assert news["success"] and "init state of the evaluation" in news["not_kept"]
    refused = client.http.post(f"/v1/sessions/{session}/keep", json={})
    assert refused.status_code == 400 and "random start" in refused.json()["detail"]


# --- a person drives ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driven(client):
    """A session that a person drives, with a policy at hand that is there at first."""
    session = client.open(policy="random", start={"drawn": 1})
    client.do(session, "drive", driver="person")
    client.until(session, lambda news: news["state"] == "running" and news["driver"] == "person")
    return session


def test_a_persons_action_moves_the_arm_and_nothing_else_does(driven, client):
    before = client.until(driven, lambda news: news["robot"])
    client.do(driven, "act", action=[0, 0, 40.0, 0, 0, 0, -1])  # beyond the range: it is clipped
    after = client.until(driven, lambda news: news["step"] > before["step"] + commands.SETTLE_STEPS)
    assert after["robot"][2] > before["robot"][2] + 0.01, "the hand has not risen"
    assert max(map(max, after["actions"])) <= 1.0 and after["by_person"] > 0
    still = client.until(driven, lambda news: news["actions"][-1][:6] == [0] * 6)
    assert still["driver"] == "person"


def test_person_pauses_steps_and_changes_the_instruction(driven, client):
    client.do(driven, "pause")
    paused = client.until(driven, lambda news: news["state"] == "paused")
    client.do(driven, "step")
    stepped = client.until(driven, lambda news: news["step"] == paused["step"] + 1)
    assert stepped["state"] == "paused"
    client.do(driven, "instruct", instruction="<b>dance</b>")
    news = client.until(driven, lambda news: news["instruction"] == "<b>dance</b>")
    assert news["task_instruction"] == "turn on the stove"
    client.do(driven, "finish")
    ended = client.until(driven, lambda news: news["state"] == "ended")
    assert not ended["success"] and "finished" in ended["reason"] and "solved" in ended["not_kept"]


def test_command_of_another_type_is_rejected(driven, client):
    for field in ("do", "instruction", "action", "start"):
        do = {"instruction": "instruct", "action": "act", "start": "reset"}.get(field, "x")
        for strange in STRANGE:
            body = f'{{"do": {strange if field == "do" else f""" "{do}", "{field}": {strange} """}}}'
            route, headers = f"/v1/sessions/{driven}/do", {"Content-Type": "application/json"}
            answer = client.http.post(route, content=body, headers=headers)
            expected = 200 if (field, strange) == ("instruction", '"x"') else 400
            assert answer.status_code == expected, (field, strange[:80], answer.text)


def test_unreachable_policy_is_reported_and_a_person_takes_over(driven, client):
    client.do(driven, "instruct", instruction="")
    client.do(driven, "reset")
    client.do(driven, "drive", driver="policy")
    client.until(driven, lambda news: news["state"] == "running" and news["policy_ms"])
    engine = client.other.app.state.engine
    engine._loop.call_soon_threadsafe(engine.stop)  # the engine is the event loop's: elsewhere nobody is woken by it
    news = client.until(driven, lambda news: news["state"] == "trouble")
    assert "stopping" in news["reason"] or "not" in news["reason"], news["reason"]
    client.do(driven, "drive", driver="person")
    client.do(driven, "act", action=STILL)
    on = client.until(driven, lambda on: on["state"] == "running" and on["step"] > news["step"])
    assert on["driver"] == "person" and not on["reason"]


# --- sessions -----------------------------------------------------------------------------------------------


def test_session_limit(driven, solved, client):
    assert len(client.sessions.live()) == 2
    refused = client.http.post("/v1/sessions", json=SHORT)
    assert refused.status_code == 503 and "2 sessions are already running" in refused.json()["detail"]


def test_killed_simulator_is_reported_and_others_continue(driven, solved, client):
    os.kill(client.sessions.all[driven].process.pid, 9)
    wait_for(lambda: client.look(driven)[0]["state"] == "gone", "the news")
    assert "was killed (SIGKILL" in client.look(driven)[0]["reason"]
    assert client.do(driven, "play").status_code == 400
    assert client.look(solved[0])[0]["state"] == "ended"
    absent = client.open(policy="absent")  # there is room again; its policy is not there
    news = wait_for(lambda: (found := client.look(absent)[0])["state"] == "failed" and found, "the news")
    assert "refused" in news["reason"]


def test_idle_or_oversized_session_is_closed(solved, client):
    session = client.sessions.all[solved[0]]
    assert client.sessions.over(session) == ""
    assert client.sessions.over(Session(session.request)) == "", "one that is being started is left alone"
    limits, client.sessions.limits = client.sessions.limits, Limits(memory_gb=0.001)
    assert "GB of memory" in client.sessions.over(session)
    client.sessions.limits = limits
    session.driven -= 7200
    assert "30 minutes without a command" in client.sessions.over(session)
    session.used -= 7200
    wait_for(lambda: session.is_over, "the session's end")
    assert "no page used it" in client.look(solved[0])[0]["reason"] and not session.rss_bytes()


# --- requests -----------------------------------------------------------------------------------------------


def test_token_and_session_id_are_required(client):
    bare = httpx.Client(base_url=client.http.base_url)
    for method, route in (("GET", "/v1/simulator"), ("POST", "/v1/sessions"), ("GET", "/v1/sessions/x/frame")):
        assert bare.request(method, route).status_code == 401
    assert bare.get("/readyz").status_code == bare.get("/livez").status_code == 200
    assert client.http.get("/v1/sessions/x/frame").status_code == 404
    as_form = client.http.post("/v1/sessions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert as_form.status_code == 415, "what another site's form can send is not taken"
    assert client.http.post("/v1/sessions", json={"suite": "x" * 20_000}).status_code == 413


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"suite": "libero_goall"}, "did you mean 'libero_goal'"),
        ({"task": 10}, "0 to 9"),
        ({"policy": "http://169.254.169.254"}, "this service has:"),
        ({"start": {"init": 50}}, "0 to 49"),
        ({"start": {"file": "/etc/passwd"}}, "expected {'init'"),
    ],
)
def test_invalid_session_requests_report_the_expectation(asked, said, client):
    answer = client.http.post("/v1/sessions", json={**SHORT, **asked})
    assert answer.status_code == 400 and said in answer.json()["detail"]


@pytest.mark.parametrize("field", ["suite", "task", "policy", "start"])
def test_field_of_another_type_is_rejected(field, client):
    usual = {"suite": '"libero_goal"', "task": "7", "policy": '"oracle"', "start": '{"init": 0}'}
    for strange in STRANGE:
        body = ", ".join(f'"{name}": {strange if name == field else value}' for name, value in usual.items())
        answer = client.http.post("/v1/sessions", content=f"{{{body}}}", headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and answer.json()["detail"], (strange[:80], answer.text)


def test_description_lists_suites_tasks_and_policies(client):
    about = client.http.get("/v1/simulator").json()
    assert about["suites"].keys() == set(BENCHMARK.suites) and len(about["suites"]["libero_90"]) == 90
    assert about["policies"] == ["oracle", "random", "absent"]
    ready = {one["name"]: one["ready"] for one in client.http.get("/v1/policies").json()["policies"]}
    assert ready["oracle"] and not ready["absent"]


@pytest.mark.parametrize(
    "command",
    [
        {}, {"do": "begin"}, {"do": "speed", "speed": -1}, {"do": "speed", "speed": float("nan")},
        {"do": "act", "action": [0] * 6}, {"do": "act", "action": [True] * 7}, {"do": "act", "action": [1e9] * 7},
        {"do": "drive", "driver": "policy"}, {"do": "instruct", "instruction": "x" * 501}, {"do": "film"},
    ],
)  # fmt: skip
def test_invalid_commands(command):
    with pytest.raises(ValueError):
        commands.check_command(command, BENCHMARK.action, has_policy=False)


def test_policies_are_a_list_of_names_and_addresses():
    assert parse_policies("a=http://a:1, b=https://b/x") == {"a": "http://a:1", "b": "https://b/x"}
    for bad in ("http://a:1", "a=file:///etc", "a b=http://c"):
        with pytest.raises(ValueError, match="name=http"):
            parse_policies(bad)


def test_new_start_is_sampled_by_default():
    first = commands.parse_request(BENCHMARK, {}, SHORT)
    assert first.init is None and first.start_number != commands.parse_request(BENCHMARK, {}, SHORT).start_number
    assert first.with_start({"init": 3}).init == 3
