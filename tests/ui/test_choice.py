"""Several policies on one page: who is offered, who is asked, and answers side by side."""

import io

import httpx
import pytest
from PIL import Image
from policies import WRIST, FarPolicy, HandPolicy, SeeingPolicy
from serving import nobody

from services.ui.__main__ import ServiceSettings
from services.ui.ask import inputs, query, routes
from services.ui.ask.link import Choice
from vla_contract import Part
from vla_contract.protocol.parts import HAND_STATE


def act(url, picture, headers=None, picture_2=None, **data):
    """Return the page's answer to a question."""
    files = {name: path.read_bytes() for name, path in {"picture": picture, "picture_2": picture_2}.items() if path}
    return httpx.post(f"{url}/act", data=data, files=files, headers=headers, timeout=60)


def test_who_is_up_is_offered_and_who_needs_more_than_the_page_has_is_not(serve_policy, link_to):
    urls = {"seeing": serve_policy(SeeingPolicy()), "away": nobody()}
    urls["five"] = serve_policy(SeeingPolicy(cameras=tuple("abcde")))
    choice = Choice(link_to(nobody()), {name: link_to(url) for name, url in urls.items()})
    assert choice.up() == ["seeing"]
    assert list(choice.select([])) == ["seeing"], "the page's own is away"
    assert list(choice.select(["away", "http://elsewhere:1"])) == ["away"], "a name is looked up, and is no address"
    assert routes.describe(choice, [], {})["offered"] == ["seeing"]
    assert routes.describe(choice, ["away"], {})["offered"] == ["seeing", "away"]


def test_the_pages_own_is_offered_once(serve_policy, link_to):
    url = serve_policy(SeeingPolicy())
    choice = Choice(link_to(url), {"far": link_to(nobody()), "openvla": link_to(url)})
    assert list(choice.links) == ["openvla", "far"] and list(choice.select([])) == ["openvla"]


def test_several_answer_side_by_side_each_with_a_key_of_its_own(serve_policy, serve_page, picture):
    seeing, far = SeeingPolicy(), FarPolicy(horizon=3, unnorm_keys=("bridge_orig",))
    others = {"seeing": serve_policy(seeing), "far": serve_policy(far), "away": nobody()}
    url = serve_page(others["seeing"], others=others)
    asked = {"instruction": "pick up the bowl", "unnorm_key": "libero_goal"}
    alone = act(url, picture, **asked).json()
    both = act(url, picture, **asked, policies=list(others))
    shown = act(url, picture, {"Accept": "text/html"}, **asked, policies=list(others)).text
    assert [section.split("<")[0] for section in shown.split("<section><h2>")[1:]] == list(others)
    assert shown.count("<h3>Latency") == 2 and shown.count("<b>No policy responds at") == 1
    assert "is -1.6, outside the range" in shown and "bar under" in shown and "bar over" in shown
    raw = both.json()
    assert both.status_code == 200 and "No policy responds at" in raw["away"]["detail"]
    assert (raw["far"]["unnorm_key"], len(raw["far"]["actions"])) == ("bridge_orig", 3)
    assert alone["policy"] == "seeing" and raw["seeing"]["actions"] == alone["actions"]


def test_what_few_need_is_requested_once_and_reaches_who_needs_it(serve_policy, serve_page, picture):
    seeing, hand = SeeingPolicy(unnorm_keys=()), HandPolicy()
    others = {"seeing": serve_policy(seeing), "hand": serve_policy(hand)}
    url = serve_page(others["seeing"], others=others)
    state = "position (m): 1 2 3\nrotation (rad): 0, 0, 0.5\nfingers (m): 0.04 -0.04"
    asked = {"instruction": "go", "policies": ["seeing", "hand"]}
    raw = act(url, picture, **asked, state=state, picture_2=picture).json()
    assert raw["seeing"]["state"] is None and list(raw["seeing"]["pictures"]) == ["agentview"]
    assert raw["hand"]["state"] == [1, 2, 3, 0, 0, 0.5, 0.04, -0.04] and raw["hand"]["actions"][0][:3] == [1, 2, 3]
    assert raw["hand"]["pictures"] == {"agentview": [64, 64, 3], WRIST: [64, 64, 3]}
    lacking = act(url, picture, **asked, state="fingers (m): 1").json()
    wrong = lacking["hand"]["detail"]
    assert f"The image of camera {WRIST} is missing" in wrong and "actions" in lacking["seeing"]
    assert "no line 'position (m)'" in wrong and "has '1'; expected 2 numbers" in wrong


def test_more_further_cameras_than_fields_are_reported():
    needed = inputs.Requirements.of(
        [SeeingPolicy(cameras=("a", "b", "c")).info(), SeeingPolicy(cameras=("a", "d", "e")).info(), None]
    )
    assert needed.first == ("a",) and needed.offered == ("b", "c", "d")
    form = query.Form("go", pictures=[io.BytesIO()] * 4, needed=needed)
    with pytest.raises(query.FormError, match=r"camera e is missing.*fewer policies"):
        query.observe(form, SeeingPolicy(cameras=("a", "d", "e"), unnorm_keys=()).info())


@pytest.mark.parametrize("text", ["", "arm (rad): 1 2\nnonsense"])
def test_the_state_is_filled_in_and_what_was_typed_stays(text):
    arm = Part("arm", 2, "rad", "joints")
    for part in (*HAND_STATE, arm, Part("arm", 2, "rad", "of the other"), Part("lift", 1, "m", "up", 1, 2)):
        filled = inputs.format_state([part], text)
        assert inputs.parse_state(filled, [part], [part]).shape == (part.size,)
    assert inputs.format_state([arm], text) == ("arm (rad): 1 2" if text else "arm (rad): 0 0")
    both = inputs.format_state([arm, Part("arm", 2, "rad", "of the other")], text)
    assert both.splitlines() == ["arm (rad, joints): 0 0", "arm (rad, of the other): 0 0"]


def test_every_example_is_served_with_the_wrists_image_and_a_state_of_its_own(page_over):
    url, states = page_over(), {}
    shown = httpx.get(f"{url}/").text
    for path, instruction in inputs.examples():
        states[instruction] = inputs.format_state(HAND_STATE, "", instruction)
        address = f"{url.removesuffix('/ask')}/static/ask/examples/{path.relative_to(inputs.EXAMPLES)}"
        assert httpx.get(address).content == path.read_bytes() and f'title="{instruction}"' in shown
        wrist = inputs.image_of(instruction, WRIST)
        assert Image.open(path).size == Image.open(wrist).size == (256, 256) and inputs.suite_of(instruction)
        assert inputs.image_of(instruction, "agentview") is None
    assert len(set(states.values())) == len(states) >= 4


def test_images_of_another_protocol_are_not_cut():
    assert query.libero_size(SeeingPolicy(details={"image_size": "224"}).info()) == (224, 224)
    assert query.libero_size(SeeingPolicy(unnorm_keys=("bridge_orig",), image_hw=(9, 9)).info()) is None
    assert query.libero_size(HandPolicy(suites=("libero_goal",)).info()) == (64, 64)
    assert query.libero_size(HandPolicy(suites=("libero_goal",), profile="minivla").info()) is None


def test_an_address_that_is_none_is_refused_before_anything_starts():
    with pytest.raises(ValueError, match="far=host:1"):
        ServiceSettings(policy_url="http://127.0.0.1:1", policies="far=host:1")
