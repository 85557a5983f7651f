"""Several policies on one page: who is offered, who is asked, and answers side by side."""

import json

import pytest
from gradio_client import Client, handle_file
from PIL import Image
from policies import WRIST, FarPolicy, HandPolicy, SeeingPolicy
from serving import nobody

from services.ui.__main__ import Server
from services.ui.ask import asking, moments, needs, page
from services.ui.ask.choice import Choice
from vla_contract import Part
from vla_contract.protocol.parts import HAND_STATE


def test_who_is_up_is_offered_and_who_needs_more_than_the_page_has_is_not(serve_policy, link_to):
    urls = {"seeing": serve_policy(SeeingPolicy()), "away": nobody()}
    urls["five"] = serve_policy(SeeingPolicy(cameras=tuple("abcde")))
    choice = Choice(link_to(nobody()), {name: link_to(url) for name, url in urls.items()})
    assert choice.up() == ["seeing"]
    assert list(choice.chosen([])) == ["seeing"], "the page's own is away"
    assert list(choice.chosen(["away", "http://elsewhere:1"])) == ["away"], "a name is looked up, and is no address"
    assert not page.offer(choice, [])[0]["visible"] and page.offer(choice, ["away"])[0]["visible"]


def test_the_pages_own_is_offered_once(serve_policy, link_to):
    url = serve_policy(SeeingPolicy())
    choice = Choice(link_to(url), {"far": link_to(nobody()), "openvla": link_to(url)})
    assert list(choice.links) == ["openvla", "far"] and list(choice.chosen(None)) == ["openvla"]


def test_several_answer_side_by_side_each_with_a_key_of_its_own(serve_policy, serve_page, picture):
    seeing, far = SeeingPolicy(), FarPolicy(horizon=3, unnorm_keys=("bridge_orig",))
    others = {"seeing": serve_policy(seeing), "far": serve_policy(far), "away": nobody()}
    client = Client(serve_page(others["seeing"], others=others), verbose=False, analytics_enabled=False)
    asked = (handle_file(str(picture)), "pick up the bowl", "libero_goal", False)
    alone = client.predict(*asked, api_name="/ask")
    both = client.predict(*asked, ["seeing", "far", "away"], api_name="/ask")
    client.close()
    assert "vl-several" not in alone[0] and json.loads(alone[3])["policy"] == "seeing"
    assert [section.split("<")[0] for section in both[0].split("<section><h2>")[1:]] == ["seeing", "far", "away"]
    assert both[0].count("Latency") == 2 and both[0].count("No policy answers at") == 1
    raw = json.loads(both[3])
    assert raw["away"] is None and (raw["far"]["unnorm_key"], len(raw["far"]["actions"])) == ("bridge_orig", 3)
    assert raw["seeing"]["actions"] == json.loads(alone[3])["actions"]


def test_what_few_need_is_asked_for_once_and_reaches_who_needs_it(serve_policy, serve_page, picture):
    seeing, hand = SeeingPolicy(unnorm_keys=()), HandPolicy()
    others = {"seeing": serve_policy(seeing), "hand": serve_policy(hand)}
    client = Client(serve_page(others["seeing"], others=others), verbose=False, analytics_enabled=False)
    shown = handle_file(str(picture))
    state = "position (m): 1 2 3\nrotation (rad): 0, 0, 0.5\nfingers (m): 0.04 -0.04"
    got = client.predict(shown, "go", None, False, ["seeing", "hand"], state, shown, api_name="/ask")
    raw = json.loads(got[3])
    assert raw["seeing"]["state"] is None and list(raw["seeing"]["pictures"]) == ["agentview"]
    assert raw["hand"]["state"] == [1, 2, 3, 0, 0, 0.5, 0.04, -0.04] and raw["hand"]["actions"][0][:3] == [1, 2, 3]
    assert raw["hand"]["pictures"] == {"agentview": [64, 64, 3], WRIST: [64, 64, 3]}
    lacking = client.predict(shown, "go", None, False, ["seeing", "hand"], "fingers (m): 1", api_name="/ask")[0]
    client.close()
    assert f"The picture of camera {WRIST} is missing" in lacking and lacking.count("vl-numbers") == 1
    assert "no line &#x27;position (m)&#x27;" in lacking and "has &#x27;1&#x27;; expected 2 numbers" in lacking


def test_more_further_cameras_than_fields_are_said():
    needed = needs.of(
        [SeeingPolicy(cameras=("a", "b", "c")).info(), SeeingPolicy(cameras=("a", "d", "e")).info(), None]
    )
    assert needed.first == ("a",) and needed.offered == ("b", "c", "d")
    form = asking.Form("x.png", "go", None, False, more=("b.png", "c.png", "d.png"), needed=needed)
    with pytest.raises(asking.FormError, match=r"camera e is missing.*choose fewer policies"):
        asking.observe(form, SeeingPolicy(cameras=("a", "d", "e"), unnorm_keys=()).info())


@pytest.mark.parametrize("text", ["", "arm (rad): 1 2\nnonsense"])
def test_the_state_is_filled_in_and_what_was_typed_stays(text):
    arm = Part("arm", 2, "rad", "joints")
    for part in (*HAND_STATE, arm, Part("arm", 2, "rad", "of the other"), Part("lift", 1, "m", "up", 1, 2)):
        filled = needs.filled_in([part], text)
        assert needs.numbers(filled, [part], [part]).shape == (part.size,)
    assert needs.filled_in([arm], text) == ("arm (rad): 1 2" if text else "arm (rad): 0 0")
    both = needs.filled_in([arm, Part("arm", 2, "rad", "of the other")], text)
    assert both.splitlines() == ["arm (rad, joints): 0 0", "arm (rad, of the other): 0 0"]


def test_every_example_knows_the_wrists_picture_and_a_state_of_its_own():
    states = {instruction: needs.filled_in(HAND_STATE, "", instruction) for _, instruction in moments.examples()}
    assert len(set(states.values())) == len(states)
    for instruction in states:
        assert Image.open(moments.picture_of(instruction, WRIST)).size == (256, 256)
        assert moments.picture_of(instruction, "agentview") is None and moments.suite_of(instruction)


def test_pictures_of_another_protocol_are_not_cut():
    assert asking.libero_size(HandPolicy(suites=("libero_goal",)).info()) == (64, 64)
    assert asking.libero_size(HandPolicy(suites=("libero_goal",), profile="minivla").info()) is None


def test_an_address_that_is_none_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match="policies has far=host:1; expected"):
        Server(policy_url="http://127.0.0.1:1", policies="far=host:1")
