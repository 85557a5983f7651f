"""The policy as the page sees it: every way not to answer has words of its own, and none is a traceback."""

import pytest
from fastapi import FastAPI
from policies import GatedLoader, SeeingPolicy, SlowPolicy, broken_loader
from serving import nobody, serving

from services.ui.ask import link, query
from vla_contract import PolicyInfo
from vla_contract.protocol.parts import HAND_STATE, OSC_POSE
from vla_contract.protocol.problems import KINDS


def ask(to, path, instruction="pick up the bowl", key="libero_goal", as_libero=False):
    with open(path, "rb") as file:
        return query.ask(to, query.Form(instruction, key, as_libero, pictures=(file,)))


def test_nobody_there(link_to):
    url = nobody()
    status = link_to(url).status()
    assert not status.usable and status.trouble.passing
    assert status.trouble.title == f"No policy responds at {url}" and "refused" in status.trouble.detail
    assert "./lab up" in status.trouble.todo and "tries" not in status.trouble.detail
    assert "Errno" not in status.trouble.detail and "Error" not in status.trouble.detail


def test_a_policy_that_loads_is_waited_for(serve_policy, link_to, monkeypatch):
    monkeypatch.setattr(link, "STATUS_TTL_S", 0.0)
    loader = GatedLoader(SeeingPolicy())
    to = link_to(serve_policy(loader, wait=False))
    assert to.status().trouble.title == "The policy is still loading" and to.status().trouble.passing
    loader.gate.set()
    to._slow.wait_ready(20)
    assert to.status().usable and to.status().info.name == "seeing"


def test_a_policy_that_could_not_be_loaded_is_not_waited_for(serve_policy, link_to):
    url = serve_policy(broken_loader, wait=False)
    to = link_to(url)
    for _ in range(200):
        to._until = 0.0
        if not to.status().trouble.passing:
            break
    assert to.status().trouble.title == "The policy could not be loaded" and "3 bytes" in to.status().trouble.detail


@pytest.mark.parametrize("token", [None, "another-token"])
def test_the_wrong_token(token, serve_policy, link_to):
    trouble = link_to(serve_policy(SeeingPolicy(), token="the-right-one"), token=token).status().trouble
    assert "token" in trouble.title and "VLALAB_TOKEN" in trouble.todo and not trouble.passing
    assert link_to(serve_policy(SeeingPolicy(), token="the-right-one"), token="the-right-one").status().usable


def test_what_is_not_a_policy(link_to):
    with serving(FastAPI()) as url:
        trouble = link_to(url).status().trouble
    assert "not a policy of this lab" in trouble.title and url in trouble.todo


@pytest.mark.parametrize("needs", [{"state": HAND_STATE}, {"cameras": ("agentview", "wrist", "left", "right")}])
def test_a_policy_that_needs_a_state_or_some_images_can_be_asked(needs, serve_policy, link_to):
    assert link_to(serve_policy(SeeingPolicy(**needs))).status().usable


def test_an_oracle_and_a_policy_with_more_cameras_than_the_page_has_images_is_refused_with_what_it_needs(
    serve_policy, link_to
):
    to = link_to(serve_policy(SeeingPolicy(cameras=tuple("abcde"))))
    assert not to.status().usable and "./lab eval" in to.status().trouble.todo
    assert "5 cameras (a, b, c, d, e)" in to.status().trouble.detail
    assert to.status().info is not None, "what it is can be read all the same"
    assert "simulator" in link.unsuitable(PolicyInfo("oracle", OSC_POSE, needs_privileged=True)).detail


def test_an_answer_that_takes_too_long(serve_policy, link_to, picture):
    to = link_to(serve_policy(SlowPolicy(3.0)), act_timeout_s=0.3)
    assert ask(to, picture).trouble.title == "The policy took too long"


def test_a_full_queue(serve_policy, link_to, picture):
    from concurrent.futures import ThreadPoolExecutor

    to = link_to(serve_policy(SlowPolicy(1.0), queue_size=1, max_batch=1), act_timeout_s=4.0)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(to, picture), range(12)))
    assert any(answer.trouble and answer.trouble.title == "The policy is busy" for answer in answers)
    assert any(answer.chunk for answer in answers)


def test_a_stateful_policy_forgets_the_pages_session(serve_policy, link_to, picture):
    policy = SeeingPolicy(stateful=True)
    ask(link_to(serve_policy(policy)), picture)
    asked = policy.asked[-1]
    assert (asked.step, policy.resets[1:]) == (0, [asked.session]), "the first one is the warm-up's"


def test_many_browsers_ask_the_policy_once(serve_policy, link_to, monkeypatch):
    to = link_to(serve_policy(SeeingPolicy()))
    monkeypatch.setattr(link, "STATUS_TTL_S", 60.0)
    assert to.status() is to.status()


def test_every_kind_of_problem_that_a_question_can_meet_has_words():
    asked_wrongly = {"bad-request", "not-found", "method-not-allowed", "wrong-type", "internal", "slow-request"}
    assert set(link._TROUBLE_BY_KIND) == set(KINDS) - asked_wrongly


def test_an_address_that_is_none_is_refused_at_once():
    with pytest.raises(ValueError, match="expected for example http"):
        link.PolicyLink("openvla:8000")
