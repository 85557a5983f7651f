"""The viewers: what they draw is what the model did, and in a real JupyterLab a slider changes the picture."""

import json
import re
from pathlib import Path

import pytest
import torch

from services.ws_mdl.diffusion import sample as sampling
from services.ws_mdl.diffusion import viewers as diffusion
from services.ws_mdl.diffusion.config import Config
from services.ws_mdl.diffusion.data import load
from services.ws_mdl.diffusion.samplers import sample_ddim
from services.ws_mdl.diffusion.schedule import SCHEDULES
from services.ws_mdl.diffusion.train import get_training, trained_from
from services.ws_mdl.epochs import state_of
from services.ws_mdl.transformer import translate, viewers
from services.ws_mdl.transformer.config import get_config
from services.ws_mdl.transformer.dataset import Special, padding_mask
from services.ws_mdl.transformer.decode import beam_search, encode_sources, greedy_decode
from services.ws_mdl.transformer.tokenization import get_or_build_tokenizer
from services.ws_mdl.transformer.train import get_model
from services.ws_mdl.transformer.translate import TrainedTransformer
from services.ws_mdl.transformer.visualize import look
from tests import browser
from tests.ws_mdl.test_services import AS_ROOT, TOKEN, ask, serving
from vla_modelkit.training.machine import choose_machine
from vla_notebooks.viewer import page

SENTENCE = "a b c d"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TrainedTransformer:
    """An untrained Transformer whose words are letters."""
    config = get_config("tiny", corpus="reverse", seq=30)
    file = tmp_path_factory.mktemp("run") / "tokenizer.json"
    tokenizer = get_or_build_tokenizer(file, ["a b c d e f"] * 3, "word", 1, 100)
    model = get_model(config, tokenizer.get_vocab_size(), tokenizer.get_vocab_size())
    return TrainedTransformer(model.eval(), config, tokenizer, tokenizer, file.parent)


def encoded(run: TrainedTransformer) -> tuple:
    source, special = encode_sources([SENTENCE], run.tokenizer_src, run.config.seq), Special.of(run.tokenizer_tgt)
    return source, padding_mask(source, special.pad), special


@pytest.fixture(scope="module")
def drawer():
    """An untrained diffusion model of twenty steps, with weights large enough to tell classes apart."""
    training = get_training(Config(context=True, n_feat=8, timesteps=20), choose_machine("cpu"))
    with torch.no_grad():
        for name, parameter in training.averaged.named_parameters():
            parameter *= 30.0 if "context" in name else 1.0
    return trained_from(state_of(training), None, torch.device("cpu"))


# --- what is drawn ------------------------------------------------------------------------------------------


def test_the_next_words_are_those_of_greedy_search(run):
    found = viewers.candidates(run, SENTENCE, count=3)
    (ids,) = greedy_decode(run.model, *encoded(run), max_len=len(found) + 1)
    wanted = [run.tokenizer_tgt.id_to_token(one) for one in ids]
    assert [rows[0][0] for rows in found if rows[0][0] != "[EOS]"] == wanted
    assert all(rows[0][1] >= rows[1][1] >= rows[2][1] > 0 for rows in found)


def test_the_trees_winner_is_what_beam_search_returns_and_watching_changes_nothing(run):
    steps, path = viewers.beam_steps(run, SENTENCE, 3)
    source, mask, special = encoded(run)
    (ids,) = beam_search(run.model, source, mask, special, min(run.config.seq, 3 * source.shape[1]), 3)
    words = [nodes[place].word for nodes, place in zip(steps, path, strict=True) if not nodes[place].ended]
    assert [word for word in words if word != "[EOS]"] == [run.tokenizer_tgt.id_to_token(one) for one in ids]
    assert all(steps[row][path[row]].parent == path[row - 1] for row in range(1, len(path)))
    assert viewers.tree(steps, path).count('font-weight="bold"') == len(words)


def test_lines_are_drawn_for_the_chosen_kind_layer_and_head(run):
    box = viewers.attention(look(run.model, SENTENCE, "d c", run.tokenizer_src, run.tokenizer_tgt))
    kind, layer, head, screen = box.children
    drawn = {screen.value}
    for control, value in ((head, 1), (layer, 0), (kind, "decoder")):
        control.value = value
        drawn.add(screen.value)
    assert len(drawn) == 4 and "decoder attention, layer 0: words on the left" in screen.value
    assert "head 1" in screen.value and "head 0" not in screen.value, "whose colour is whose"
    assert screen.value.count("<line") == 6, "three words, of which none looks ahead"


def test_the_moments_end_where_ddim_does_and_fit_each_other(drawer):
    way = diffusion.moments(drawer, steps=5, seed=3)
    x, _ = sample_ddim(drawer.nn_model, drawer.schedule, diffusion.SAMPLE_COUNT, 5, seed=3)
    assert torch.equal(way[-1].x, x) and [now.t for now in way] == [20, 16, 12, 8, 4, 0]
    for now in way[:-1]:
        ab = drawer.schedule.ab_t[now.t]
        torch.testing.assert_close(ab.sqrt() * now.x0 + (1 - ab).sqrt() * now.noise, now.x, rtol=1e-4, atol=1e-4)


def test_every_slider_of_the_diffusion_viewers_changes_the_image(drawer):
    for box, values in (
        (diffusion.denoising(drawer), {"t": 0.25, "steps": 7, "η": 0.5, "context": "3", "guidance": 3.0}),
        (diffusion.noising(load("digits").x[3]), {"schedule": "cosine", "seed": 4}),
    ):
        *controls, screen = box.children
        named = {control.description: control for control in controls}
        for name, value in values.items():
            before, named[name].value = screen.value, value
            assert screen.value != before, name


# --- as a page ----------------------------------------------------------------------------------------------


def drawings(path: Path) -> list[dict[str, str]]:
    """Return what a page holds for each of its viewers."""
    found = re.findall(r'(?s)<script type="application/json">(.*?)</script>', path.read_text(encoding="utf-8"))
    return [json.loads(text) for text in found]


def test_the_programs_write_a_page_with_every_drawing(run, drawer, tmp_path):
    translate.draw(run, SENTENCE, "d c")
    attention, words, tree = drawings(run.path.parent / "pictures" / "looking-in.html")
    layers, heads = run.config.N, run.config.h
    assert len(attention) == 3 * layers * (heads + 1) and len(words) >= 1 and len(tree) == 4
    assert attention["2,0,1"] != attention["0,0,1"] != attention["0,0,2"]
    out_of_noise, into_noise = drawings(sampling.save_page(drawer, tmp_path))
    assert len(out_of_noise) == 21 * 1 * 2 * 3 * 3, "t, steps, η, guidance, context"
    assert len(set(into_noise.values())) == len(into_noise) == 10 * len(SCHEDULES)


@pytest.mark.outside
@pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed to open a page with")
def test_every_viewer_works_in_a_page_in_light_and_dark_at_400_pixels(run, drawer, tmp_path):
    view = look(run.model, SENTENCE, "d c", run.tokenizer_src, run.tokenizer_tgt)
    few = {"steps": (5,), "η": (0.0,), "guidance": (1.0,), "context": (diffusion.NO_CONTEXT, "3")}
    boxes = {
        "attention": (viewers.attention(view), {}),
        "next words": (viewers.next_token(run, SENTENCE), {}),
        "tree": (viewers.beam_tree(run, SENTENCE), {}),
        "denoising": (diffusion.denoising(drawer), few),
        "noising": (diffusion.noising(load("digits").x[3]), {}),
    }
    before = [box.children[-1].value for box, _ in boxes.values()]
    path = tmp_path / "page.html"
    path.write_text(page("a & b", boxes), encoding="utf-8")
    assert before == [box.children[-1].value for box, _ in boxes.values()], "the viewers stand where they stood"
    with browser.Browser(400, 900) as shown:
        for scheme in ("light", "dark"):
            shown.go(path.as_uri())
            shown.until("document.readyState == 'complete'")  # its script is the last of a large file
            shown.scheme(scheme)
            assert shown.js(PAGE_CONTRAST) > 7 and shown.js("document.documentElement.scrollWidth") <= 400
            for number in range(len(boxes)):
                assert shown.js(SLIDE.format(number)) is True, number
            told = shown.js("[...document.querySelectorAll('output')].map(it => it.textContent)")
            assert told[0] == "decoder" and "[" not in "".join(told), told
            assert shown.js("document.documentElement.scrollWidth") <= 400


# Every control of a section at its last value draws something else.
SLIDE = """(() => {{
  const one = document.querySelectorAll('section')[{}], before = one.querySelector('div').innerHTML
  for (const it of one.querySelectorAll('input')) it.value = it.max
  one.dispatchEvent(new Event('input'))
  const drawn = one.querySelector('div')
  return drawn.innerHTML !== before && drawn.innerText !== 'undefined' && drawn.querySelector('svg, img') !== null
}})()"""
PAGE_CONTRAST = """(() => {
  const probe = Object.assign(document.body.appendChild(document.createElement('i')), {style: 'color:Canvas'})
  const light = colour => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, v) => sum + Number(v), 0)
  const [a, b] = [probe, document.querySelector('div')].map(it => light(getComputedStyle(it).color))
  return Math.abs(a - b) / 60
})()"""

# --- in JupyterLab ------------------------------------------------------------------------------------------

CELL = """
import torch
from services.ws_mdl.diffusion import viewers
from services.ws_mdl.diffusion.data import load
viewers.noising(load("digits").x[3])
"""
RUN = '.jp-NotebookPanel [data-command="notebook:run-cell-and-select-next"]'
THEMES = "/lab/api/settings/@jupyterlab/apputils-extension:themes"
PICTURE = "document.querySelectorAll('figure img')[8].src"
# How far words are from what they stand on, from 1 to 21 (WCAG 2, contrast ratio)
CONTRAST = """(() => {
  const light = text => { const [r, g, b] = text.match(/[0-9.]+/g).map(v => (v /= 255) <= 0.04045 ? v / 12.92 :
    ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const ground = light(getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor)
  const ink = light(getComputedStyle(document.querySelector('figcaption')).color)
  return (Math.max(ground, ink) + 0.05) / (Math.min(ground, ink) + 0.05)
})()"""
SPILLS = "[...document.querySelectorAll('figure')].some(one => one.getBoundingClientRect().right > innerWidth)"


def draw(shown: browser.Browser, url: str) -> None:
    """Opens the notebook alone and runs its cell."""
    shown.go(f"{url}/doc/tree/viewer.ipynb?token={TOKEN}")
    shown.until("document.body.innerText.includes('| Idle')", 120)
    shown.click(RUN)
    shown.until("document.querySelectorAll('figure img').length === 9", 120)


@pytest.mark.outside
@pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed to open JupyterLab with")
def test_in_jupyterlab_a_slider_changes_the_image_in_light_and_dark_at_400_pixels(tmp_path):
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": CELL}
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "viewer.ipynb").write_text(json.dumps(notebook))
    with serving("notebook", "/api", *AS_ROOT, VLALAB_VOLUME=str(tmp_path), VLALAB_TOKEN=TOKEN) as (url, _):
        names = {one["name"] for one in json.loads(ask(f"{url}/api/contents/ws_mdl", TOKEN)[1])["content"]}
        assert "Tformer_Tutorial.ipynb" in names, "a new home has the course's notebooks"
        for theme in ("JupyterLab Light", "JupyterLab Dark"):
            assert ask(url + THEMES, TOKEN, "PUT", {"raw": json.dumps({"theme": theme})})[0] == 204
            with browser.Browser(400, 900) as shown:
                draw(shown, url)
                assert shown.js("document.body.dataset.jpThemeName") == theme
                assert shown.js(CONTRAST) > 7 and not shown.js(SPILLS)
                before = shown.js(PICTURE)
                shown.click(".noUi-handle")
                shown.press("ArrowRight")
                shown.until(f"{PICTURE} !== {json.dumps(before)}", 60)
