"""What a student's code gives, beside what the lesson gives; and which slip gives the same."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lessons.exercises.source import definition, run, with_slip
from lessons.exercises.types import Both, Call, Exercise, Slip

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True)
class Outcome:
    """What came out of a call: a value, or an error; and whether it has changed what it was given."""

    value: Any = None
    error: str = ""  # its type and words
    line: int = 0  # of the student's file, where the error came from
    changed: bool = False


@dataclass(frozen=True)
class Verdict:
    """state: right, wrong, or blank. where: the first call that differs. what: how. slip: its name, if one is known."""

    state: str
    where: str = ""
    what: Both = field(default_factory=lambda: Both("", ""))
    slip: str = ""
    says: Both = field(default_factory=lambda: Both("", ""))

    def plain(self) -> dict[str, Any]:
        """Returns it as JSON holds it."""
        return asdict(self)


def verdict_from(plain: dict[str, Any]) -> Verdict:
    """Returns the verdict that `Verdict.plain` made."""
    return Verdict(**{**plain, "what": Both(**plain["what"]), "says": Both(**plain["says"])})


def wrong(en: str, ko: str, where: str = "") -> Verdict:
    """Returns a verdict on what cannot even be called."""
    return Verdict("wrong", where, Both(en, ko))


def judge(exercise: Exercise, code: Any, file: str = "") -> Verdict:
    """Returns the verdict on a function or class; file: what line numbers of errors are of."""
    calls = exercise.calls()
    expected = outcomes(run(exercise, definition(exercise)), calls)
    got = outcomes(code, calls, file)
    if any(one.value is ... for one in got):
        return Verdict("blank")
    differ = [number for number, pair in enumerate(zip(expected, got, strict=True)) if not same(*pair)]
    if not differ:
        return Verdict("right")
    first = differ[0]
    what = difference(expected[first], got[first])
    slip = known_slip(exercise, calls, got, first)
    return Verdict("wrong", calls[first].shown, what, *((slip.name, slip.says) if slip else ()))


def known_slip(exercise: Exercise, calls: Sequence[Call], got: Sequence[Outcome], first: int) -> Slip | None:
    """Returns the slip that gives what the student's code gives in every call, or alone in the first that differs."""
    given = {slip: outcomes(run(exercise, with_slip(definition(exercise), slip)), calls) for slip in exercise.slips}
    for slip, theirs in given.items():
        if all(same(a, b) for a, b in zip(theirs, got, strict=True)):
            return slip
    alike = [slip for slip, theirs in given.items() if same(theirs[first], got[first])]
    return alike[0] if len(alike) == 1 else None


def outcomes(code: Any, calls: Sequence[Call], file: str = "") -> list[Outcome]:
    """Returns what each call comes to, each with arguments of its own."""
    return [outcome(code, call, file) for call in calls]


def outcome(code: Any, call: Call, file: str = "") -> Outcome:
    args = copy.deepcopy(call.args)
    try:
        value = call.use(code, *args)
    except Exception as error:  # a student's code raises anything
        frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        return Outcome(error=f"{type(error).__name__}: {error}", line=frames[-1] if frames else 0)
    changed = not all(same_value(a, b) for a, b in zip(args, call.args, strict=True))
    return Outcome(value, changed=changed)


# --- alike or not -------------------------------------------------------------------------------------------


def same(a: Outcome, b: Outcome) -> bool:
    """Returns whether two calls came to the same, roundings apart."""
    return a.error == b.error and a.changed == b.changed and same_value(a.value, b.value)


def same_value(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        alike = isinstance(b, list | tuple) and len(a) == len(b)
        return alike and all(same_value(*pair) for pair in zip(a, b, strict=True))
    if not is_numbers(a) or not is_numbers(b):
        return a is b or (callable(a) and callable(b))
    x, y = as_array(a), as_array(b)
    return x.shape == y.shape and kind(x) == kind(y) and bool(np.isclose(x, y, equal_nan=True, **CLOSE).all())


def is_numbers(value: Any) -> bool:
    """Returns whether it is a tensor, an array or a number."""
    return hasattr(value, "detach") or isinstance(value, np.ndarray | np.generic | int | float)


def as_array(value: Any) -> np.ndarray:
    """Returns tensor, array or number as an array."""
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)


def kind(array: np.ndarray) -> str:
    """Returns bool, int or float."""
    return {"b": "bool", "i": "int", "u": "int"}.get(array.dtype.kind, "float")


def difference(expected: Outcome, got: Outcome) -> Both:
    """Returns in words how what came out differs; never how to get there."""
    if got.error:
        at, ko = (f" in line {got.line}", f"{got.line}행에서 ") if got.line else ("", "")
        return Both(f"it ends{at} with {got.error}", f"{ko}오류로 끝납니다: {got.error}")
    if got.changed and not expected.changed:
        return Both("it changes what it was given", "받은 값을 바꿉니다")
    return value_difference(expected.value, got.value)


def value_difference(expected: Any, got: Any) -> Both:
    if got is None:
        return Both("it returns nothing: is there a return?", "아무것도 돌려주지 않습니다: return이 있나요?")
    if isinstance(expected, tuple):
        return _tuple_difference(expected, got)
    if not is_numbers(got):
        name = type(got).__name__
        return Both(
            f"it returns a {name}; expected {_named(expected)}",
            f"{name}을(를) 돌려줍니다; {_named(expected)}이어야 합니다",
        )
    x, y = as_array(expected), as_array(got)
    if x.shape != y.shape:
        return Both(f"its shape is {y.shape}; expected {x.shape}", f"모양이 {y.shape}입니다; {x.shape}이어야 합니다")
    if kind(x) != kind(y):
        return Both(f"its numbers are {kind(y)}; expected {kind(x)}", f"값이 {kind(y)}입니다; {kind(x)}이어야 합니다")
    far = ~np.isclose(x, y, equal_nan=True, **CLOSE)
    at = tuple(map(int, np.argwhere(far)[0]))
    place, there, wanted = list(at), _number(y[at]), _number(x[at])
    return Both(
        f"at {place} stands {there}; expected {wanted} ({int(far.sum())} of {far.size} numbers differ)",
        f"{place}의 값이 {there}입니다; {wanted}이어야 합니다 (다른 값 {int(far.sum())} / {far.size})",
    )


def _tuple_difference(expected: tuple, got: Any) -> Both:
    if not isinstance(got, list | tuple) or len(got) != len(expected):
        return Both(
            f"expected are {len(expected)} things, as in `return a, b`", f"값 {len(expected)}개를 돌려주어야 합니다"
        )
    number = next(n for n, pair in enumerate(zip(expected, got, strict=True)) if not same_value(*pair))
    found = value_difference(expected[number], got[number])
    return Both(f"of the {len(got)} results number {number + 1}: {found.en}", f"{number + 1}번째 결과: {found.ko}")


def _named(value: Any) -> str:
    return "a tensor" if hasattr(value, "detach") else "an array" if isinstance(value, np.ndarray) else "a number"


def _number(value: Any) -> str:
    return str(value) if kind(np.asarray(value)) != "float" else f"{float(value):.4g}"
