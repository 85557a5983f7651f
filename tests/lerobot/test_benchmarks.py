"""That the sides which `./lab bench lerobot` compares do different things."""

from lerobot.policies.act.modeling_act import ACTPolicy

from bench import lerobot as bench
from services.lerobot.reference import Reference
from tests.calls import count_calls


def test_lerobot_compares_chunks_with_single_actions_and_counts_what_differs(checkpoints, tmp_path, monkeypatch):
    policy = bench.load(checkpoints("act"))
    reference = Reference(checkpoints("act"), policy.cameras, tmp_path / "reference")
    selected = count_calls(monkeypatch, ACTPolicy, "select_action")
    assert bench.count_differences(policy, {"first": reference}, (9,)) == 0
    assert len(selected) == 9  # the service asks for chunks
    other = Reference(checkpoints("act", seed=1), policy.cameras, tmp_path / "other")
    assert bench.count_differences(policy, {"first": other}, (9,)) == 9
