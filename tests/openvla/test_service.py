"""The service over real HTTP, on a tiny checkpoint."""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.openvla.model.attention import choose
from services.openvla.service.loading import load_policy
from services.openvla.service.settings import ModelSettings
from tests import forked
from tests.running import running
from vla_contract import InvalidObservation, Observation, PolicyClient, PolicyRefused
from vla_contract.protocol.act_json import to_json
from vla_contract.protocol.parts import GRIPPER_OPENS, OSC_POSE
from vla_modelkit.checkpoint import CheckpointError
from vla_modelkit.devices import choose_device, choose_dtype

KEY = "libero_goal_no_noops"
TOKEN = "a-token-for-tests"
CPU = torch.device("cpu")


def settings(directory, **changes):
    return ModelSettings(checkpoint=str(directory), device="cpu", max_batch=8, **changes)


@pytest.fixture(scope="module")
def policy(checkpoints):
    return load_policy(settings(checkpoints()))


@pytest.fixture(scope="module")
def service(checkpoints):
    with running(lambda: load_policy(settings(checkpoints()))) as served:
        yield served


def observation(seed=0, session="a", step=0, instruction="put the bowl on the stove", key=KEY, side=224):
    image = np.random.RandomState(seed).randint(0, 256, (side, side, 3)).astype(np.uint8)
    return Observation({"agentview": image}, None, instruction, session, step, unnorm_key=key)


def actions(policy, observations):
    return np.concatenate([chunk.actions for chunk in policy.act(observations)])


def test_info_says_everything_an_evaluator_compares(service):
    with PolicyClient(service.url) as client:
        info = client.info()
    assert (info.name, info.profile, info.horizon, info.cameras) == ("openvla", "openvla", 1, ("agentview",))
    assert info.action == (*OSC_POSE, GRIPPER_OPENS) and info.state == ()
    assert (info.quantization, info.device, info.max_batch, info.stateful) == ("fp32", "cpu", 8, False)
    assert KEY in info.unnorm_keys
    assert "libero_goal" in info.suites
    assert len(info.checkpoint.sha256) == len(info.lock_hash) == 64
    assert info.details["attention"] == "sdpa"
    assert "flash-attn needs a GPU" in info.details["attention_reason"]
    assert info.details["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    variant = os.environ.get("VLALAB_VARIANT")
    upstream = f"{variant}: torch {info.details['torch']}, upstream's pin is 2.2.0" if variant else None
    assert info.details.get("variant") == upstream


@pytest.mark.parametrize(
    ("repo", "key", "gripper", "expected"),
    [
        ("openvla/openvla-7b-finetuned-libero-goal", "libero_goal", 0.0, []),
        ("random-tiny", "libero_goal", 0.0, []),
        ("someone/mine", "libero_goal", 0.0, ["crops the centre (area 0.9)"]),
        ("openvla/openvla-7b", "bridge_orig", 0.0, ["crops the centre", "bridge_orig in LIBERO's units (0.05 m, "]),
        ("someone/mine", "libero_goal", -1.0, ["crops the centre", "that of libero_goal goes below 0"]),
    ],
)  # fmt: skip
def test_what_a_checkpoint_does_not_state_is_reported(checkpoints, tmp_path, caplog, repo, key, gripper, expected):
    directory = tmp_path / "c"
    shutil.copytree(checkpoints(), directory)
    stats = {"q01": [-1.0] * 6 + [gripper], "q99": [1.0] * 7, "mask": [True] * 6 + [False]}
    (directory / "dataset_statistics.json").write_text(json.dumps({key: {"action": stats}}))
    (directory / "checkpoint.json").write_text(json.dumps({"repo": repo}))
    details = load_policy(settings(directory)).info().details
    assert details["statistics_from"] == "dataset_statistics.json"
    assumed = details["assumed"].split("; ") if "assumed" in details else []
    assert len(assumed) == len(expected) and all(part in text for part, text in zip(expected, assumed, strict=True))
    assert ("assumed" in caplog.text) == bool(expected)


def test_answers_do_not_depend_on_drafts_batch_or_company(checkpoints, policy):
    seen = [
        observation(i % 3, f"session {i % 4}", i, ("open the drawer", "turn on the stove")[i % 2]) for i in range(12)
    ]
    plain = load_policy(settings(checkpoints(), drafts=False))
    one_by_one = np.concatenate([actions(plain, [one]) for one in seen])
    np.testing.assert_array_equal(np.concatenate([actions(policy, [one]) for one in seen]), one_by_one)
    np.testing.assert_array_equal(np.concatenate([actions(policy, seen[:8]), actions(policy, seen[8:])]), one_by_one)
    assert len(np.unique(one_by_one, axis=0)) == 6  # three pictures, two instructions


def test_concurrent_clients_get_the_same_answers_as_one(service, policy):
    seen = [observation(i % 5, f"client {i}") for i in range(20)]
    expected = [actions(policy, [one])[0] for one in seen]
    with PolicyClient(service.url) as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda one: client.act(one).actions[0], seen))
    np.testing.assert_array_equal(found, expected)


def test_the_statistics_requested_are_used_and_unknown_ones_listed(service):
    with PolicyClient(service.url) as client:
        with pytest.raises(PolicyRefused, match="did you mean 'libero_goal_no_noops'") as refused:
            client.act(observation(key="libero_goal"))
        assert refused.value.status == 422
        assert KEY in refused.value.problem["unnorm_keys"]
        with pytest.raises(PolicyRefused, match="choose one of"):
            client.act(observation(key=None))


def test_one_key_may_be_served_alone_and_is_then_the_default(checkpoints):
    served = load_policy(settings(checkpoints(), unnorm_key="libero_goal"))  # a suite's usual names are known
    assert served.info().unnorm_keys == (KEY,)
    assert served.info().suites == ("libero_goal",)
    np.testing.assert_array_equal(actions(served, [observation(key=None)]), actions(served, [observation()]))
    with pytest.raises(ValueError, match="'libero_goall' not found.*libero_goal_no_noops"):
        load_policy(settings(checkpoints(), unnorm_key="libero_goall"))


def test_a_too_long_instruction_fails_alone(policy):
    good, bad = observation(), observation(instruction="x y z " * 100)
    first, second = policy.act([good, bad])
    assert first.actions.shape == (1, 7)
    assert isinstance(second, InvalidObservation)
    assert isinstance(policy.act([bad])[0], InvalidObservation)


def act(service, picture, doubly=False):
    """Returns the action [7] that an OpenVLA client gets for a picture of any type."""
    body = {"image": to_json(picture), "instruction": "open the drawer", "unnorm_key": KEY}
    body = {"encoded": json.dumps(body)} if doubly else body
    request = urllib.request.Request(
        service.url + "/act", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        value = json.load(answer)
    value = json.loads(value) if doubly else value
    return np.frombuffer(base64.b64decode(value["__numpy__"]), value["dtype"])


@pytest.mark.parametrize("doubly", [False, True])
def test_openvlas_own_clients_are_answered(service, policy, doubly):
    action = act(service, observation(4, side=256).images["agentview"], doubly)
    expected = actions(policy, [observation(4, instruction="open the drawer", side=256)])[0]
    np.testing.assert_allclose(action, expected, rtol=1e-6)


def test_a_model_that_does_not_see_is_refused(checkpoints, tmp_path):
    blind = shutil.copytree(checkpoints(), tmp_path / "blind")
    for shard in blind.glob("*.safetensors"):
        state = load_file(shard)
        if "projector.fc3.weight" in state:
            state["projector.fc3.weight"].zero_()
            save_file(state, shard)
    with pytest.raises(CheckpointError, match="does not see its image"):
        load_policy(settings(blind))


@pytest.mark.parametrize("quant", ["nf4", "fp4", "int8"])
def test_quantised_weights_are_smaller_and_still_see(checkpoints, policy, quant):
    packed = load_policy(settings(checkpoints(), quant=quant))
    info = packed.info()
    assert (info.quantization, info.details["dtype"]) == (quant, "bf16")
    memory = packed._engine.model.memory()
    plain = policy._engine.model.memory()
    factor = {"nf4": 4 / 0.53, "fp4": 4 / 0.5625, "int8": 4 / 1.05}[quant]
    assert memory["llama blocks"] < plain["llama blocks"] / factor * 1.05
    assert memory["vision"] == plain["vision"] / 2  # kept in bf16
    found = actions(packed, [observation(i) for i in range(3)])
    assert np.isfinite(found).all()
    assert len(np.unique(found, axis=0)) == 3


def test_what_this_machine_cannot_do_is_reported():
    with pytest.raises(ValueError, match="flash-attn needs a GPU"):
        choose("flash", CPU, torch.bfloat16)
    with pytest.raises(ValueError, match="fp16 needs a GPU"):
        choose_dtype("fp16", CPU)
    with pytest.raises(ValueError, match="not found"):
        choose_device("gpu")
    with pytest.raises(ValueError, match="not found on this machine"):
        choose_device("cuda:63")


def test_upstreams_engine_without_upstreams_code_says_where_it_belongs(checkpoints, monkeypatch, tmp_path):
    from services.openvla.service import hf

    monkeypatch.setattr(hf, "BASE", (str(tmp_path), None))
    with pytest.raises(CheckpointError, match="modeling_prismatic.py"):
        load_policy(settings(checkpoints(), engine="hf"))


def test_the_program_serves_and_stops(checkpoints, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "services.openvla", "--port", str(port), "--device", "cpu"]
    variables = {**os.environ, "VLALAB_OPENVLA_CHECKPOINT": str(checkpoints()), "VLALAB_TOKEN": TOKEN}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, stderr=log)
        try:
            with PolicyClient(f"http://127.0.0.1:{port}", token=TOKEN) as client:
                client.wait_ready(120)
                assert client.act(observation()).actions.shape == (1, 7)
            with PolicyClient(f"http://127.0.0.1:{port}") as stranger, pytest.raises(PolicyRefused, match="token"):
                stranger.info()
        finally:
            process.terminate()
            assert process.wait(90) in (0, -signal.SIGTERM)  # uvicorn ends in order, then by the signal it got


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ((), "no checkpoint selected"),
        (("--checkpoint", "nothing"), "checkpoint 'nothing' not found"),
        (("--checkpoint", ".", "--port", "70000"), "port is 70000"),
    ],
)
def test_the_program_refuses_in_one_line(flags, text, tmp_path):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("VLALAB_OPENVLA_")}
    command = forked.python("-m", "services.openvla", *flags)
    done = subprocess.run(command, capture_output=True, text=True, env={**variables, "VLALAB_VOLUME": str(tmp_path)})
    assert done.returncode != 0
    assert text in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_verify_reports_and_compares(checkpoints):
    command = forked.python("-m", "services.openvla.verify", "--checkpoint", str(checkpoints()), "--count", "2")
    done = subprocess.run([*command, "--modes", "fp32-cpu,nf4"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for text in ("median", "p95", "GB at most", "compared", "nf4"):
        assert text in done.stdout
    for text in ("'put the bowl on the stove', picture a made-up one, statistics libero_10_no_noops", "are for trying"):
        assert text in done.stdout
    assert "? MB" not in done.stdout
    none = subprocess.run([*command, "--modes", ","], capture_output=True, text=True)
    assert none.returncode != 0 and "expected some of" in none.stderr + none.stdout
    flash = subprocess.run([*command, "--device", "cpu", "--modes", "bf16-flash"], capture_output=True, text=True)
    assert flash.returncode == 1
    assert "flash-attn needs a GPU" in flash.stdout
