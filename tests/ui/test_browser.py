"""The page in a real browser: upload, type, click, read; and whom the browser talks to meanwhile."""

import tempfile
import time
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from policies import WRIST, FarPolicy, GatedLoader, HandPolicy, SeeingPolicy
from serving import killed

from tests import axe

pytestmark = axe.NEEDED
VALUES = "[...document.querySelectorAll('#numbers .value')].map(cell => parseFloat(cell.innerText))"


def fill_and_ask(shown, picture, instruction):
    """Uploads, types, clicks; returns the seven numbers that the page then shows."""
    shown.until("!!document.querySelector('#policy .good')")
    shown.upload("#picture input[type=file]", picture)
    shown.until("!!document.querySelector('#picture img')")
    shown.type("#instruction input", instruction)
    shown.until("!document.querySelector('#ask').disabled")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    return shown.js(VALUES)


def test_upload_type_click_and_read_the_seven_numbers(page_over, open_page, picture):
    policy = SeeingPolicy(suites=("libero_goal",), details={"image_size": "224"})
    url = page_over(policy)
    shown = open_page(url)
    values = fill_and_ask(shown, picture, "put the bowl on the plate")
    asked = policy.asked[-1]
    sent = asked.images["agentview"]
    assert sent.shape == (224, 224, 3) and asked.unnorm_key == "libero_goal"
    assert asked.instruction == "put the bowl on the plate"
    assert np.allclose(values, [*sent.mean(axis=(0, 1)) / 255, 0.224, 0.224, 0.025, 0.75], atol=1e-4)
    assert shown.errors == []
    hosts = {urlsplit(address).netloc for address in shown.requests if not address.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(url).netloc} and len(shown.requests) > 10, "the page alone"


def test_the_page_opens_by_itself_once_the_policy_is_loaded(page_over, open_page):
    loader = GatedLoader(SeeingPolicy())
    shown = open_page(page_over(loader, wait=False))
    shown.until("document.querySelector('#policy')?.innerText.includes('still loading')")
    assert shown.js("document.querySelector('#ask').disabled")
    loader.gate.set()
    shown.until("document.querySelector('#policy').innerText.includes('seeing is ready')")
    shown.until("!document.querySelector('#ask').disabled")


def test_more_tabs_than_a_browser_has_connections_all_show_the_page(page_over, open_page):
    url = page_over(SeeingPolicy())
    shown = open_page(url)
    for _ in range(6):  # so many connections it has for one address
        shown.until("!!document.querySelector('#policy .good')")
        shown.tab()
        shown.go(url)
    shown.until("!document.querySelector('#ask').disabled")


def test_a_page_whose_connection_was_lost_reports_it_and_continues(page_over, open_page):
    """A browser drops what it is loading when the machine's network changes: a container that starts will do."""
    shown = open_page(page_over(SeeingPolicy()))
    shown.until("!document.querySelector('#ask').disabled")
    shown.do("Network.setBlockedURLs", urls=["*/ask/state*"])
    shown.until("!document.querySelector('#lost').hidden")
    shown.do("Network.setBlockedURLs", urls=[])
    shown.until("document.querySelector('#lost').hidden")


def test_what_a_user_chose_stays_while_the_policy_says_the_same(page_over, open_page):
    box = "document.querySelector('#as-libero input')"
    shown = open_page(page_over(SeeingPolicy(suites=("libero_goal",), image_hw=(224, 224))))
    shown.until(f"{box}.checked")
    shown.click("#as-libero input")
    looks = [address for address in shown.requests if "/state?" in address]
    while len([address for address in shown.requests if "/state?" in address]) < len(looks) + 3:
        assert not shown.js(f"{box}.checked")
        time.sleep(0.1)


@pytest.mark.parametrize("width", [400, 1280])
def test_two_policies_that_are_chosen_answer_side_by_side(width, serve_policy, serve_page, open_page):
    others = {"seeing": serve_policy(SeeingPolicy()), "far": serve_policy(FarPolicy(unnorm_keys=()))}
    shown = open_page(serve_page(others["seeing"], others=others), width=width)
    shown.until(
        "document.querySelector('#policies [value=seeing]')?.checked && !document.querySelector('#ask').disabled"
    )
    shown.click("#policies [value=far]")
    choose_example(shown, "put the bowl on the plate")
    shown.until("document.querySelector('#unnorm-key select')?.value == 'libero_goal'")
    shown.click("#ask")
    shown.until("document.querySelectorAll('#numbers section').length == 2")
    assert shown.js("[...document.querySelectorAll('#numbers h2')].map(name => name.innerText)") == list(others)
    assert shown.js("document.querySelectorAll('#numbers section figure svg').length") == 4
    assert judged(shown) == [] and shown.errors == []


def test_the_page_is_in_korean_for_who_reads_the_site_so(page_over, open_page):
    shown = open_page(page_over(HandPolicy()) + "/?language=ko", width=400)
    shown.until(
        "document.querySelector('#policy')?.innerText.includes('준비됨') && !!document.querySelector('#picture_2')"
    )
    shown.until("!document.querySelector('#ask').disabled && document.querySelector('#ask').innerText == '물어보기'")
    assert shown.js("document.documentElement.lang") == "ko"
    shown.click("#ask")
    shown.until("document.querySelector('#numbers [role=alert]')?.innerText.includes('이미지가 없습니다')")
    assert f"카메라 {WRIST}의 이미지가 없습니다" in shown.js("document.querySelector('#numbers').innerText")
    shown.click("#examples button[title='put the bowl on the plate']")
    shown.until("!!document.querySelector('#picture_2 img')?.naturalWidth")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7 && document.querySelector('#numbers').innerText.includes('움직임')")
    assert "행동 1개: 이동 x" in shown.js("document.querySelector('#numbers').innerText")
    assert shown.js("document.querySelector('#instruction input').value") == "put the bowl on the plate"
    assert judged(shown) == [] and shown.errors == []


@pytest.mark.parametrize("width", [400, 1920])
def test_a_policy_with_two_cameras_and_a_state_has_fields_for_them(
    width, serve_policy, serve_page, open_page, picture, tmp_path
):
    hand, seeing = HandPolicy(), SeeingPolicy(unnorm_keys=())
    others = {"hand": serve_policy(hand), "seeing": serve_policy(seeing)}
    shown = open_page(serve_page(others["hand"], others=others), width=width)
    state = "document.querySelector('#state textarea')"
    shown.until(f"{state}.value.includes('position (m): ') && !!document.querySelector('#picture_2')")
    shown.until("!document.querySelector('#ask').disabled")
    choose_example(shown, "put the bowl on the plate")
    shown.until("!!document.querySelector('#picture_2 img')?.naturalWidth")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    asked = hand.asked[-1]
    assert list(asked.images) == ["agentview", WRIST] and np.allclose(asked.state[:3], [-0.2071, 0.0019, 1.1786])
    assert np.allclose(shown.js(VALUES)[:3], asked.state[:3], atol=1e-4)
    Image.new("RGB", (80, 60), (255, 0, 0)).save(tmp_path / "red.png")
    shown.click("#picture_2 button")
    shown.upload("#picture_2 input[type=file]", tmp_path / "red.png")
    shown.until("document.querySelector('#picture_2 img')?.naturalWidth == 80")
    shown.js(f"{state}.focus(), {state}.select()")
    shown.do("Input.insertText", text="position (m): 0.25 0 1\nrotation (rad): 0 0 0\nfingers (m): 0 0")
    shown.until("document.querySelector('#policies [value=hand]')?.checked && !document.querySelector('#ask').disabled")
    shown.click("#policies [value=seeing]")
    shown.click("#ask")
    shown.until("document.querySelectorAll('#numbers section').length == 2")
    assert shown.js(VALUES)[:6] == [0.25, 0, 1, 1, 0, 0], "the state and the picture that were given by hand"
    assert judged(shown) == [] and shown.errors == []
    assert shown.js("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_everyone_can_read_the_page(width, scheme, page_over, open_page):
    """Contrast, names, and sizes by WCAG's rules: without a policy, with an error, and with an answer."""
    shown = open_page(width=width)
    shown.scheme(scheme)
    shown.go(page_over())
    shown.until("!!document.querySelector('#policy [role=alert]') && !!document.querySelector('#examples button')")
    assert judged(shown) == []
    far = FarPolicy(suites=("libero_goal",), details={"image_size": "224"}, horizon=8)
    shown.go(page_over(far))
    shown.until("!document.querySelector('#ask').disabled")
    shown.click("#ask")
    shown.until("!!document.querySelector('#numbers [role=alert]')")
    assert judged(shown) == []
    choose_example(shown, "put the bowl on the plate")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    for unfold in ("#raw summary", "#identity summary"):
        shown.click(unfold)
    shown.until("document.querySelector('#raw textarea')?.value.includes('unnorm_key')")
    assert judged(shown) == [] and shown.js("document.documentElement.scrollWidth") <= width


def judged(shown):
    """Return what axe-core finds."""
    return axe.violations(shown)


def choose_example(shown, instruction):
    """Clicks the example of that name, and waits until the form holds it."""
    shown.click(f"#examples button[title='{instruction}']")
    shown.until(f"document.querySelector('#instruction input').value == {instruction!r}")
    shown.until("!!document.querySelector('#picture img')?.naturalWidth")


def test_the_simulators_frame_is_taken_with_its_instruction(page_over, open_page):
    """The simulator's page leaves it in the tab's storage; a policy with one more camera gets both images."""
    policy = HandPolicy()
    shown = open_page(page_over(policy))
    pixels = "Object.assign(document.createElement('canvas'), { width: 32, height: 24 }).toDataURL()"
    shown.js(
        f"sessionStorage.setItem('vlalab-frame', JSON.stringify({{first: 'agentview', instruction: 'go on',"
        f" pictures: {{agentview: {pixels}, {WRIST}: {pixels}}}}}))"
    )
    shown.go(shown.js("location.href"))
    shown.until(
        "document.querySelector('#picture_2 img')?.naturalWidth == 32 && !document.querySelector('#ask').disabled"
    )
    assert "enter it below" in shown.js("document.querySelector('#picture-said').innerText"), "the state is not known"
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    assert policy.asked[-1].instruction == "go on" and len(policy.asked[-1].images) == 2
    assert shown.js("sessionStorage.getItem('vlalab-frame')") is None


@pytest.mark.parametrize("first", ["policy", "example"])
def test_an_example_chooses_its_suites_key(first, page_over, open_page):
    """Also where the example was chosen before the policy had come up."""
    loader = GatedLoader(
        SeeingPolicy(suites=("libero_goal",), unnorm_keys=("bridge_orig", "libero_goal", "libero_10_b"))
    )
    shown = open_page(page_over(loader, wait=False))
    if first == "policy":
        loader.gate.set()
        shown.until("!document.querySelector('#ask').disabled")
    choose_example(shown, "put both the alphabet soup and the tomato sauce in the basket")
    loader.gate.set()
    shown.until("document.querySelector('#unnorm-key select')?.value == 'libero_10_b'")
    choose_example(shown, "pick up the alphabet soup and place it in the basket")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    assert shown.js("document.querySelector('#unnorm-key select').value") == "libero_10_b", (
        "there is no other to choose"
    )


def test_what_is_not_an_image_leaves_no_broken_one_behind(page_over, open_page, picture, tmp_path):
    (tmp_path / "notes.png").write_text("no picture at all")
    shown = open_page(page_over(SeeingPolicy(suites=("libero_goal",))))
    shown.until("!!document.querySelector('#policy .good')")
    shown.upload("#picture input[type=file]", tmp_path / "notes.png")
    shown.until("document.querySelector('#picture-said')?.innerText.includes('cannot be used')")
    shown.until("document.querySelector('#picture img').hidden")
    shown.upload("#picture input[type=file]", picture)
    shown.until("document.querySelector('#picture img')?.naturalWidth == 320")
    shown.until("!document.querySelector('#picture-said [role=alert]')")
    broken = "image => image.src && image.complete && !image.naturalWidth"
    assert shown.js(f"[...document.images].filter({broken}).map(image => image.src)") == []


def test_what_cannot_be_taken_gets_words_and_the_page_continues(stack, serve_page, open_page, picture, tmp_path):
    with open(tmp_path / "huge.png", "wb") as file:
        file.truncate(200 * 2**20)
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    (tmp_path / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (tmp_path / "cut.png").write_bytes(picture.read_bytes()[:400])
    with killed() as url:
        shown = open_page(serve_page(url))
        shown.until("!document.querySelector('#ask').disabled")
        shown.upload("#picture input[type=file]", tmp_path / "huge.png")
        shown.until("document.querySelector('#picture-said').innerText.includes('200.0 MB; upload at most 20 MB')")
        for name, words in {"bomb.png": "40 megapixels", "drawing.svg": "upload PNG", "cut.png": "readable"}.items():
            shown.upload("#picture input[type=file]", tmp_path / name)
            shown.type("#instruction input", "go")
            shown.click("#ask")
            shown.until(f"document.querySelector('#asked')?.innerText.includes({words!r})")
        fill_and_ask(shown, picture, "go")
    shown.click("#ask")
    shown.until("document.querySelector('#numbers [role=alert]')?.innerText.includes('No policy responds')")
    shown.until("!document.querySelector('#policy .good')")  # else what follows could be what was seen before
    stack.enter_context(killed(int(url.rpartition(":")[2])))
    shown.until("!!document.querySelector('#policy .good') && !document.querySelector('#ask').disabled")
    shown.click("#ask")
    shown.until(f"{VALUES}.length == 7")
    assert shown.errors == []


def test_a_full_disk_is_reported_and_passes(serve_policy, serve_page, open_page, small_disk, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")  # more than a MB, which is put on disk
    shown = open_page(serve_page(serve_policy(SeeingPolicy(unnorm_keys=()))))
    shown.until("!document.querySelector('#ask').disabled")
    shown.upload("#picture input[type=file]", tmp_path / "large.png")
    shown.click("#ask")
    shown.until("document.querySelector('#numbers').innerText.includes('disk of this machine is full')")
    assert list(small_disk.rglob("*.png")) == [], "a part of it is left"
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert len(fill_and_ask(shown, tmp_path / "large.png", "go")) == 7
