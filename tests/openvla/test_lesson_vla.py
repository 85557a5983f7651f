"""The plain VLA: the fast engine's scores, tokens and actions from the same checkpoint; and a server around it."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from lessons import vla as lesson
from services.openvla.checkpoint import tiny
from services.openvla.checkpoint.config import load_config
from services.openvla.checkpoint.tokenizer import PromptTokenizer
from services.openvla.decoding.actions import ActionTable, codec_of, unnormalise
from services.openvla.service.policy import resize
from tests import forked
from tests.lesson_shapes import Shapes
from tests.openvla.cases import INSTRUCTIONS, pictures
from tests.ports import free_ports

KEY = "libero_goal_no_noops"
CASES = tuple(zip(pictures(), INSTRUCTIONS, strict=True))


@pytest.fixture(params=["tiny", "siglip"])
def read(request, checkpoints):
    """Returns size, folder, and what the lesson reads there."""
    directory = checkpoints(request.param)
    return request.param, directory, *lesson.read_checkpoint(directory)


def test_it_is_short_enough_to_be_read():
    assert len(Path(lesson.__file__).read_text().splitlines()) <= 250
    assert len((Path(lesson.__file__).parent / "vla_server.py").read_text().splitlines()) <= 45


def test_prompts_are_the_fast_ones(checkpoints):
    tokenizer = PromptTokenizer(checkpoints())
    for text in INSTRUCTIONS:
        assert lesson.prompt_ids(text, checkpoints()) == tokenizer.prompt_ids(text)


def test_the_towers_and_the_projector_see_what_the_fast_ones_see(read, engines):
    size, directory, weights, config = read
    shape = load_config(directory).towers[0]
    for image, _ in CASES[1:3]:
        ours = lesson.see(image, weights, config)
        theirs = engines(size).model.vision(torch.tensor(np.array([resize(image, shape)])))[0]
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_the_same_checkpoint_gives_the_same_tokens_and_actions(read, engines):
    size, directory, weights, config = read
    known = load_config(directory)
    table = ActionTable(codec_of(known), known.norm_stats[KEY])
    found = set()
    for image, instruction in CASES[2:4] if size == "siglip" else CASES[:6]:
        ids = lesson.prompt_ids(instruction, directory)
        theirs = engines(size).generate(np.array([resize(image, known.towers[0])]), [ids]).tokens[0].tolist()
        assert lesson.seven_tokens(image, ids, weights, config) == theirs
        found.add(tuple(theirs))
        ours = lesson.action_of(image, instruction, KEY, directory, weights, config)
        np.testing.assert_array_equal(ours.astype(np.float32), table.action(theirs))
    assert len(found) > 1, "pictures and words that are told apart"


def test_the_scores_are_the_fast_ones(checkpoints, engines):
    weights, config = lesson.read_checkpoint(checkpoints())
    image, ids = CASES[3][0], lesson.prompt_ids(INSTRUCTIONS[3], checkpoints())
    generated = engines().generate(image[None], [ids], keep_logits=True)
    embed = weights["language_model.model.embed_tokens.weight"]
    x = torch.cat((embed[ids[:1]], lesson.see(image, weights, config), embed[ids[1:]]))
    ours = lesson.next_token_scores(x, weights, config)
    np.testing.assert_allclose(ours.numpy(), generated.logits[0, 0], atol=2e-3)


def test_every_token_means_the_fast_ones_number():
    known = tiny.SPECS["tiny"].model_config()
    tokens = np.array([0, *range(31740, 32010), 32063])
    np.testing.assert_array_equal(lesson.action_bins(tokens), codec_of(known).values(tokens))
    stats = {name: np.array(value) for name, value in known.norm_stats[KEY].items() if name in ("q01", "q99", "mask")}
    values = np.linspace(-1, 1, 7)
    np.testing.assert_array_equal(lesson.unnormalise(values, **stats), unnormalise(values, stats))


def test_an_open_gripper_is_minus_one_in_libero():
    open_, closed = np.full(7, 0.996), np.full(7, 0.004)
    assert lesson.gripper_flip(open_)[6] == -1 and lesson.gripper_flip(closed)[6] == 1
    np.testing.assert_array_equal(lesson.gripper_flip(open_)[:6], open_[:6])
    assert open_[6] == 0.996, "what was given stays as it was"


def test_every_shape_at_the_end_of_a_line_exists(checkpoints):
    weights, config = lesson.read_checkpoint(checkpoints())
    shapes = Shapes(lesson, {})
    shapes.run(lambda: lesson.action_of(CASES[1][0], INSTRUCTIONS[0], KEY, checkpoints(), weights, config))
    assert not shapes.wrong
    assert shapes.seen == set(shapes.lines) and len(shapes.lines) > 25


@pytest.fixture
def server(checkpoints):
    """Yield the address of the lesson's server, which runs in a process of its own."""
    (port,) = free_ports(1)
    command = forked.python("-m", "lessons.vla_server", str(checkpoints()), str(port))
    process = subprocess.Popen(command, cwd=Path(lesson.__file__).parent.parent)
    yield f"http://127.0.0.1:{port}/act"
    process.terminate()
    process.wait()


def ask(url: str, body: dict) -> tuple[int, dict]:
    """Returns status and answer; a server that does not listen yet is asked again."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    for _ in range(600):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


def test_the_server_answers_what_the_lesson_does(server, checkpoints):
    image, words = CASES[3][0], INSTRUCTIONS[3]
    status, answer = ask(server, {"image": image.tolist(), "instruction": words, "unnorm_key": KEY})
    expected = lesson.action_of(image, words, KEY, checkpoints(), *lesson.read_checkpoint(checkpoints()))
    assert status == 200
    np.testing.assert_allclose(answer["action"], expected)
    status, answer = ask(server, {"instruction": words})
    assert status == 422 and "image" in str(answer)
    status, answer = ask(server, {"image": [[(0, 0, 256)]], "instruction": words, "unnorm_key": "libero"})
    assert status == 422 and "255" in str(answer)
    status, answer = ask(server, {"image": image.tolist(), "instruction": words, "unnorm_key": "libero"})
    assert status == 422 and KEY in str(answer)
