"""Several policies on one page: who is offered, who is asked, and answers side by side."""

import json

import pytest
from gradio_client import Client, handle_file
from policies import FarPolicy, SeeingPolicy
from serving import nobody

from services.ui.__main__ import Server
from services.ui.ask import page
from services.ui.ask.choice import Choice


def test_who_is_up_is_offered_and_who_needs_more_than_a_picture_is_not(serve_policy, link_to):
    urls = {"seeing": serve_policy(SeeingPolicy()), "away": nobody()}
    urls["two"] = serve_policy(SeeingPolicy(cameras=("agentview", "wrist")))
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


def test_an_address_that_is_none_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match="policies has far=host:1; expected"):
        Server(policy_url="http://127.0.0.1:1", policies="far=host:1")
