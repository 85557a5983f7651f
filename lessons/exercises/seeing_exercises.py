"""Exercises of the lesson on seeing: from scores of cells to a place, and from a place to what an arm can act on."""

from __future__ import annotations

from typing import Any

from lessons.exercises.types import Bilingual, Exercise, FunctionCall, mistake


def drawn(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def where_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"where of {batch} pictures with {cells} cells", (drawn(batch, cells), drawn(cells, 2, seed=1)))
        for batch, cells in ((2, 9), (5, 64))
    ]


def bell_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"bell of width {width} over {cells} cells", (drawn(batch, 2), drawn(cells, 2, seed=1), width))
        for batch, cells, width in ((2, 9, 0.25), (5, 16, 0.6))
    ]


def ahead_calls() -> list[FunctionCall]:
    return [
        FunctionCall(f"ahead with scales {scales}", (drawn(batch, 2), drawn(batch, 2, seed=1), scales))
        for batch, scales in ((3, (1.0, 4.0)), (2, (0.5, 3.0, 9.0)))
    ]


def cells_calls() -> list[FunctionCall]:
    return [FunctionCall(f"cell_centres of {side} pixels", (side, cell)) for side, cell in ((12, 4), (32, 8))]


WHERE = (
    mistake("the best cell alone", ("p @ cells", "cells[p.argmax(dim=-1)]"),
            en="this takes the best cell: the place is no finer than a cell, and nothing can be learned from it",
            ko="가장 좋은 cell만 씁니다: 위치가 cell보다 세밀하지 않고, 배울 gradient도 없습니다"),
    mistake("softmax over the batch", ("dim=-1", "dim=0"),
            en="pictures compete with each other; the cells of one picture should",
            ko="그림끼리 경쟁합니다; 한 그림 안의 cell끼리 경쟁해야 합니다"),
    mistake("scores for probabilities", ("torch.softmax(scores, dim=-1)", "scores"),
            en="scores do not add up to 1: make them probabilities first",
            ko="score의 합은 1이 아닙니다: 먼저 확률로 바꾸세요"),
    mistake("cells that do not compete", ("torch.softmax(scores, dim=-1)", "torch.sigmoid(scores)"),
            en="a sigmoid judges every cell alone, so the sum is not 1",
            ko="sigmoid는 cell을 따로 판단하므로 합이 1이 아닙니다"),
)  # fmt: skip
BELL = (
    mistake("a tent", (".sum(dim=-1)", ".sum(dim=-1).sqrt()"),
            en="this is a tent with a peak: a bell falls with the distance squared",
            ko="뾰족한 모양입니다: 종 모양은 거리의 제곱으로 줄어듭니다"),
    mistake("upside down", ("-squared", "squared"),
            en="far cells get more than near ones",
            ko="먼 cell이 가까운 cell보다 큽니다"),
    mistake("the sum is not 1", ("torch.softmax(-squared / width**2, dim=-1)", "torch.exp(-squared / width**2)"),
            en="the cells of a picture must add up to 1",
            ko="한 그림의 cell을 모두 더하면 1이어야 합니다"),
    mistake("the width is not squared", ("width**2", "width"),
            en="divide by the square of the width: both are distances squared then",
            ko="width의 제곱으로 나누세요: 그래야 단위가 같습니다"),
)  # fmt: skip
AHEAD = (
    mistake("from the place to the hand", ("places - hand", "hand - places"),
            en="this points from the thing to the hand: the arm would move away",
            ko="물체에서 손으로 향합니다: 팔이 멀어집니다"),
    mistake("the place in the room", ("places - hand", "places"),
            en="the hand is missing: this is the place in the room, not as seen from the hand",
            ko="손의 위치가 빠졌습니다: 손에서 본 위치가 아니라 방 안의 위치입니다"),
    mistake("without a limit", ("torch.tanh(offset * scale)", "offset * scale"),
            en="without tanh all scales say the same; with it the fine ones are fine near 0",
            ko="tanh가 없으면 모든 scale이 같은 말을 합니다; tanh가 있어야 0 근처에서 세밀합니다"),
    mistake("limited first", ("torch.tanh(offset * scale)", "torch.tanh(offset) * scale"),
            en="scale first, then limit: else every scale sees the same curve",
            ko="먼저 scale을 곱하고 나중에 제한하세요: 아니면 모든 scale이 같은 곡선입니다"),
)  # fmt: skip
CELLS = (
    mistake("rows and columns exchanged", ("[x.flatten(), y.flatten()]", "[y.flatten(), x.flatten()]"),
            en="x and y are exchanged: the second cell lies to the right of the first, not below it",
            ko="x와 y가 바뀌었습니다: 두 번째 cell은 첫 번째의 아래가 아니라 오른쪽입니다"),
    mistake("corners", (" + 0.5", ""),
            en="these are the cells' corners: half a cell is missing",
            ko="cell의 모서리입니다: cell의 절반을 더하세요"),
    mistake("pixels", (" * 2 * cell / side - 1", " * cell"),
            en="these are pixels; places are in [-1, 1]",
            ko="pixel입니다; 위치는 [-1, 1]입니다"),
    mistake("from 0 to 1", (" * 2 * cell / side - 1", " * cell / side"),
            en="these are in [0, 1]; places are in [-1, 1]",
            ko="[0, 1]입니다; 위치는 [-1, 1]입니다"),
)  # fmt: skip

EXERCISES = (
    Exercise("seeing.where", "where", where_calls, WHERE,
             Bilingual("Turn the scores of a feature map's cells into one place per picture.",
                       "feature map의 cell마다 있는 score를 그림마다 하나의 위치로 바꾸세요."),
             Bilingual("Probabilities over the cells, then the mean of the cells' places.",
                       "cell에 대한 확률을 구하고, cell의 위치를 평균하세요."),
             learned=("scores",)),
    Exercise("seeing.bell", "bell", bell_calls, BELL,
             Bilingual("Write the labels: the probability of every cell, high near the true place.",
                       "label을 쓰세요: 참 위치에 가까운 cell일수록 확률이 높습니다."),
             Bilingual("Squared distances to all cells, divided by the width squared, then a softmax.",
                       "모든 cell까지 거리의 제곱을 width의 제곱으로 나누고 softmax를 취하세요.")),
    Exercise("seeing.ahead", "ahead", ahead_calls, AHEAD,
             Bilingual("Write a place as the hand sees it, at every scale: what an arm acts on.",
                       "위치를 손에서 본 대로, scale마다 쓰세요: 팔은 이것으로 움직입니다."),
             Bilingual("The offset from the hand, times a scale, through tanh; all scales side by side.",
                       "손에서의 차이에 scale을 곱하고 tanh를 취한 뒤, scale을 나란히 붙이세요."),
             learned=("places",)),
    Exercise("seeing.bug_cells", "cell_centres", cells_calls, CELLS,
             Bilingual("A trained policy goes to the right place, mirrored. Find the bug.",
                       "훈련한 policy가 위치를 뒤바꿔서 갑니다. 버그를 찾으세요."),
             Bilingual("Row by row: which number grows first?", "행마다 차례로: 어느 수가 먼저 커집니까?"),
             bug="rows and columns exchanged"),
)  # fmt: skip
