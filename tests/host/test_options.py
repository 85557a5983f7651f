"""Options of a program: declared in a dataclass, inherited, checked, and made into flags."""

from dataclasses import dataclass
from typing import Literal

import pytest

from vla_common.options import Options, option, options
from vlalab.host import shared_code
from vlalab.tasks.flags import program_flags


@dataclass(frozen=True)
class Base(Options):
    steps: int = option(10, "how many", "[1, 500]", group="advanced")
    dtype: Literal["fp32", "fp16"] | None = option(None, "numbers", default_help="the model's own")
    fast: bool = option(True, "in a hurry", negated="take time")
    secret: str = option("", "of the program alone", group="internal")

    def __post_init__(self) -> None:
        self.check_options()


@dataclass(frozen=True)
class Special(Base):
    steps: int = 20
    dtype: Literal["fp32", "fp16"] | None = option("fp16", "numbers of a special model")


def test_a_subclass_that_declares_a_field_again_inherits_the_rest():
    steps, dtype = (options(Special)[name] for name in ("steps", "dtype"))
    assert (steps.default, steps.summary, steps.within, steps.group) == (20, "how many", "[1, 500]", "advanced")
    assert (dtype.default, dtype.summary, dtype.default_help) == (
        "fp16",
        "numbers of a special model",
        "the model's own",
    )
    assert options(Base)["steps"].default == 10


@pytest.mark.parametrize("kind", [Base, Special])
@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ({"steps": 0}, "steps is 0; expected 1 to 500"),
        ({"steps": float("nan")}, "steps is nan; expected 1 to 500"),
        ({"dtype": "int8"}, "dtype 'int8' not found; expected fp32, fp16"),
    ],
)
def test_value_outside_the_interval_reports_the_interval(kind, wrong, facts):
    with pytest.raises(ValueError, match=facts):
        kind(**wrong)
    assert kind(steps=500, dtype=None).steps == 500


def test_options_become_flags(monkeypatch):
    monkeypatch.setattr(shared_code, "options", lambda place: options(Special))
    flags = {flag.flag: flag for flag in program_flags("a")}
    assert flags["steps"].help == "how many; default: 20" and flags["steps"].group == "advanced"
    assert flags["dtype"].help == "numbers of a special model; default: the model's own"
    assert flags["no-fast"].usage == "--no-fast" and flags["no-fast"].help == "take time"


def test_a_task_has_no_internal_option_and_only_those_it_names(monkeypatch):
    monkeypatch.setattr(shared_code, "options", lambda place: options({"a": Base, "b": Special}[place]))
    assert [flag.flag for flag in program_flags("a")] == ["steps", "dtype", "no-fast"]
    assert [flag.flag for flag in program_flags("a", only=["dtype"])] == ["dtype"]
    assert [flag.flag for flag in program_flags("a", without=["dtype"])] == ["steps", "no-fast"]
    (steps, *_) = program_flags("a", "b")
    assert steps.default_help == "", "programs differ in it"
