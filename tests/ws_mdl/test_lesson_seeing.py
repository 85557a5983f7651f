"""The lesson on seeing: mini-VLA's numbers, every shape as its line says, and the surprise that it promises."""

import torch

from lessons import seeing as lesson
from services.minivla.model import CELL, Look
from tests.lesson_shapes import Shapes


def test_its_cells_places_and_labels_are_mini_vlas():
    look = Look(side=32, features=16, d_model=8)
    cells = lesson.cell_centres(32, CELL)
    assert torch.allclose(look.grid, cells)
    points = torch.rand(5, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert torch.allclose(look.cells(points)[:, :-1], lesson.bell(points, cells, look.width), atol=1e-6)
    log_p, _ = look(torch.rand(5, 3, 32, 32), torch.rand(5, 2, 8))
    p = log_p[:, 0, :-1]
    assert torch.allclose(lesson.where(p, cells), (p.softmax(-1) @ look.grid))


def test_blind_is_enough_where_things_hardly_move_and_worth_nothing_elsewhere():
    torch.manual_seed(0)
    rates = {}
    for kind in (lesson.Blind, lesson.Seeing):
        policy = lesson.train(kind(), lesson.WIDE, steps=200)
        rates[kind] = [lesson.success(policy, spread) for spread in (lesson.NARROW, lesson.WIDE)]
    assert rates[lesson.Blind][0] > 0.9 and rates[lesson.Blind][1] < 0.15
    assert min(rates[lesson.Seeing]) > 0.9


def test_every_shape_at_the_end_of_a_line_exists():
    shapes = Shapes(lesson, {"SIDE": lesson.SIDE, "cells": 64, "width": 16})

    def lesson_is_run() -> None:
        for kind in (lesson.Blind, lesson.Seeing):
            lesson.train(kind(), lesson.NARROW, steps=1)
        lesson.ahead(torch.zeros(3, 2), torch.zeros(3, 2), (1.0, 4.0))

    shapes.run(lesson_is_run)
    assert not shapes.wrong
    assert shapes.seen == set(shapes.lines) and len(shapes.lines) > 10
