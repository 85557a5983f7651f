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


def test_training_shows_percent_time_left_loss_and_speed_as_far_as_there_is_room(terminal, corpus):
    """Its terminal gets narrower: whole figures go, the last first."""
    words = ("train", "transformer", "--corpus", corpus, *TINY, "--epochs", "12")
    ends = {}  # columns → frames until it got narrower
    with terminal(*words, columns=80, **ONE) as screen:
        for columns, shown in ((80, LOSS + SPEED), (60, LOSS), (30, "")):
            screen.resize(columns, 24)
            begin = len(screen.frames)
            line = rf"^[━─]{{6,24}}  \d+ %, .* left, epoch \d\d{shown}" if shown else r"^\d+ %, .* left, epoch \d\d$"
            screen.wait_for(re.compile(line, re.MULTILINE))
            ends[columns] = (begin + 2, len(screen.frames))  # one may have been on its way
        assert screen.wait() == 0, screen.transcript
    for columns, (begin, end) in ends.items():
        drawn(screen.frames[begin:end], columns)
    lines = drawn(screen.frames[ends[30][0] :], 30)
    assert "100 %, 0 s left, epoch 11" in lines[-1]


def test_images_and_their_scores_say_how_long_they_take(shared_terminal):
    lines = drawn(shared_terminal.done(*DIGITS, "--epochs", "1", **ONE).frames, 80)
    assert any(re.search(r"epoch 0, loss \d\.\d{4}, \d+ images/s$", line) for line in lines), lines
    lines = drawn(shared_terminal.done("sample", "diffusion", "--sampler", "ddpm", **ONE).frames, 80)
    assert any(line.endswith("left, ddpm") for line in lines), lines
    lines = drawn(shared_terminal.done("score", "diffusion", "--count", "40", **ONE).frames, 80)
    for what in ("training the classifier", "ddpm", "incorrect"):
        assert any(line.endswith(f"left, {what}") for line in lines), (what, lines)
