"""The course's programs at a terminal: how far they are and how long they take, in whole numbers at any width."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.usefixtures("needs_course")
LEFT = r"(\? left|\d+ s left|\d+ min \d\d s left|\d+ h \d\d min left)"
TINY = ("--pair", "en-it", "--size", "tiny", "--device", "cpu", "--set",
        "batch-tokens=64,precision=fp32,d-model=16,d-ff=16,N=1,h=2,seq=16,min-frequency=1,log-every=2")  # fmt: skip
DIGITS = ("train", "diffusion", "--set", "n-feat=8,batch-size=256,timesteps=20,precision=fp32", "--device", "cpu")
ONE = {"OMP_NUM_THREADS": "1"}  # small work is slower in several threads, where others compute too


def drawn(frames: list[str], columns: int) -> list[str]:
    """Returns the progress lines that were seen, after a look at each: no wider than the terminal, no number cut."""
    lines = [line for frame in frames for line in frame.splitlines() if " left" in line]
    for line in lines:
        assert len(line) <= columns and re.search(rf"(^|  )\d+ %, {LEFT}(, |$)", line), line
        assert not line.startswith("━") or re.search("^[━─]{6,24}  ", line), line
        assert "…" not in line
    return lines


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    """A file of two hundred short pairs."""
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    path.write_text("".join(f"light number {n} is on\tluce numero {n} accesa\n" for n in range(200)))
    return str(path)


LOSS, SPEED = r", loss \d+\.\d{3}", r", [\d,]+ tokens/s"


@pytest.mark.parametrize(("columns", "shown"), [(80, LOSS + SPEED), (60, LOSS)])
def test_training_shows_percent_time_left_loss_and_speed(terminal, corpus, columns, shown):
    words = ("train", "transformer", "--corpus", corpus, *TINY, "--epochs", "2")
    lines = drawn(terminal.done(*words, columns=columns, **ONE).frames, columns)
    assert any(re.search(rf"^[━─]{{6,24}}  \d+ %, .* left, epoch 0[01]{shown}", line) for line in lines), lines
    assert "100 %, 0 s left, epoch 01" in lines[-1]


def test_a_narrow_terminal_loses_whole_figures(terminal, corpus):
    words = ("train", "transformer", "--corpus", corpus, *TINY, "--epochs", "1")
    lines = drawn(terminal.done(*words, columns=30, **ONE).frames, 30)
    assert any(re.search(r"^\d+ %, \d+ s left, epoch 00$", line) for line in lines), lines


def test_pictures_and_their_scores_say_how_long_they_take(shared_terminal):
    lines = drawn(shared_terminal.done(*DIGITS, "--epochs", "2", **ONE).frames, 80)
    assert any(re.search(r"epoch [01], loss \d\.\d{4}, \d+ pictures/s$", line) for line in lines), lines
    lines = drawn(shared_terminal.done("sample", "diffusion", "--sampler", "ddpm", **ONE).frames, 80)
    assert any(line.endswith("left, ddpm") for line in lines), lines
    lines = drawn(shared_terminal.done("score", "diffusion", "--count", "40", **ONE).frames, 80)
    for what in ("the classifier learns", "ddpm", "incorrect"):
        assert any(line.endswith(f"left, {what}") for line in lines), (what, lines)
