"""Speculative decoding: whatever is drafted, the tokens are the model's own, and good drafts save passes."""

import numpy as np
import pytest

from bench.parts.openvla_measure import decode_passes, recorded_tokens
from services.openvla.decoding.actions import ActionCodec
from services.openvla.decoding.drafts import BRANCHES, Drafter

CODEC = ActionCodec()
LOW, HIGH = 31744, 31999


class Fixed:
    """Drafts that are given."""

    def __init__(self, draft):
        self._draft = draft

    def propose(self, session):
        return self._draft

    def observe(self, session, tokens):
        pass


@pytest.mark.parametrize("width", range(1, 7))
def test_any_draft_leads_to_the_models_tokens(width):
    draw = np.random.RandomState(width)
    for _ in range(300):
        chosen = draw.randint(0, 3, 7)  # few tokens, so that drafts are often right by chance
        passes, made = decode_passes(chosen[None], Fixed(draw.randint(0, 3, (1 + BRANCHES, 7))), width)
        np.testing.assert_array_equal(made, chosen[None])
        assert 0 <= passes <= 6


@pytest.mark.parametrize("wrong", range(7))
def test_each_wrong_draft_costs_at_most_one_pass(wrong):
    chosen = np.arange(LOW, LOW + 7)
    draft = np.stack([chosen, chosen + 50, chosen + 60])
    draft[0, :wrong] += 100
    passes, made = decode_passes(chosen[None], Fixed(draft), 6)
    np.testing.assert_array_equal(made, chosen[None])
    assert passes == min(wrong, 6)


def test_a_branch_that_is_right_saves_a_pass():
    chosen = np.arange(LOW, LOW + 7)
    all_wrong = np.stack([chosen + 100, chosen + 50, chosen + 60])
    branch = np.stack([chosen + 100, chosen + 50, chosen])
    assert decode_passes(chosen[None], Fixed(all_wrong), 6)[0] == 6
    assert decode_passes(chosen[None], Fixed(branch), 6)[0] == 3


def test_recorded_actions_need_at_least_40_percent_fewer_passes():
    episodes = recorded_tokens(CODEC)
    total = steps = 0
    for tokens in episodes.values():
        passes, made = decode_passes(tokens, Drafter(CODEC), 6)
        np.testing.assert_array_equal(made, tokens)
        total, steps = total + passes, steps + len(tokens)
    assert total <= 0.6 * 6 * steps


def test_settling_early_changes_no_draft():
    early, late = Drafter(CODEC), Drafter(CODEC)
    for tokens in next(iter(recorded_tokens(CODEC).values()))[:40]:
        for one in (early, late):
            one.observe("a", tokens)
        early.settle()
        np.testing.assert_array_equal(early.propose("a"), late.propose("a"))
    early.forget("a")
    assert len(early) == 0


def test_drafts_are_action_tokens_and_distinct_at_the_ends_of_the_range_too():
    drafter = Drafter(CODEC)
    for tokens in (np.full(7, LOW), np.full(7, HIGH), np.full(7, LOW), np.full(7, 5), np.full(7, 32063)):
        drafter.observe("a", tokens)
        draft = drafter.propose("a")
        assert draft.shape == (1 + BRANCHES, 7)
        assert CODEC.is_action(draft).all()
        assert all(len(set(column)) == 1 + BRANCHES for column in draft.T)


def test_the_last_action_and_a_steady_change_are_drafted():
    drafter = Drafter(CODEC)
    moving = np.arange(7) % 2  # odd dimensions move by one bin per step
    for step in range(12):
        drafter.observe("a", np.full(7, 31800) + step * moving)
    np.testing.assert_array_equal(drafter.propose("a")[0], np.full(7, 31800) + 12 * moving)


def test_sessions_do_not_mix_and_are_forgotten():
    drafter = Drafter(CODEC, limit=2)
    for name, token in (("a", 31800), ("b", 31900)):
        drafter.observe(name, np.full(7, token))
    assert (drafter.propose("a")[0] == 31800).all()
    assert (drafter.propose("b")[0] == 31900).all()
    drafter.forget("a")
    drafter.forget("never known")
    assert (drafter.propose("a") == drafter.propose("unknown")).all()
    for name in "cde":
        drafter.observe(name, np.full(7, 31800))
    assert len(drafter) == 2
