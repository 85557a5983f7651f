"""Compare what a student's code returns with what the lesson returns, and name the mistake that explains it."""

from __future__ import annotations

import copy
import inspect
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lessons.exercises.source import apply_mistake, definition, run
from lessons.exercises.types import Bilingual, Exercise, FunctionCall

RTOL = 1e-4  # of each number
ATOL = 1e-5  # of the largest number in the same result
NUMERIC = ("a tensor", "an array", "a number")


@dataclass(frozen=True)
class ExerciseOutcome:
    """The result of a call: a value or an error, and the names of the arguments that it has changed."""

    value: Any = None
    error: str = ""  # type and message
    line: int = 0  # of the student's file, where the error was raised
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The result for a student's file.

    state: right, wrong, or blank. call: the first call that differs. message: the difference. mistake: the name of the
    mistake that explains every call, or "". advice: on that mistake, or else a hint.
    """

    state: str
    call: str = ""
    message: Bilingual = field(default_factory=lambda: Bilingual("", ""))
    mistake: str = ""
    advice: Bilingual = field(default_factory=lambda: Bilingual("", ""))


def failure(en: str, ko: str) -> Verdict:
    """Return the verdict on a file that cannot be called."""
    return Verdict("wrong", "", Bilingual(en, ko))


def judge(exercise: Exercise, code: Any, file: str = "") -> Verdict:
    """Return the verdict on a function or class; file: the path that an error's line number refers to."""
    lesson = run(exercise, definition(exercise))
    # the parameters of a function, or of a module's forward
    names = [name for name in inspect.signature(getattr(lesson, "forward", lesson)).parameters if name != "self"]
    calls = exercise.calls()
    expected = [call_code(lesson, call, names) for call in calls]
    actual = [call_code(code, call, names, file) for call in calls]
    if any(result.value is ... for result in actual):
        return Verdict("blank")
    for call, correct, result in zip(calls, expected, actual, strict=True):
        message = difference(correct, result)
        if message and not result.error and difference(result, call_code(code, call, names, file)):
            message = Bilingual(
                "the same call returns different numbers each time: dropout in eval mode, or noise drawn inside",
                "같은 호출인데 매번 값이 다릅니다: eval mode의 dropout이거나, 인자로 받지 않은 noise입니다",
            )
        if message:
            for mistake in exercise.mistakes:  # the one that gives the student's results in every call
                wrong = run(exercise, apply_mistake(definition(exercise), mistake))
                pairs = zip(calls, actual, strict=True)
                if not any(difference(call_code(wrong, other, names), seen) for other, seen in pairs):
                    return Verdict("wrong", call.label, message, mistake.name, mistake.advice)
            cut = exercise.learned and _kind(result.value) in NUMERIC[1:]
            return Verdict("wrong", call.label, message, "", GRADIENT_HINT if cut else call.hint or exercise.hint)
    for call in calls if exercise.learned else ():
        correct, result = (gradients(source, call, names, exercise.learned, file) for source in (lesson, code))
        if message := gradient_difference(correct, result):
            return Verdict("wrong", call.label, message, "", GRADIENT_HINT)
    return Verdict("right")


def call_code(code: Any, call: FunctionCall, names: Sequence[str], file: str = "") -> ExerciseOutcome:
    """Call a function, or a module built as the call says, with a copy of the call's arguments."""
    args = copy.deepcopy(call.args)
    try:
        value = (code if call.module is None else _build(code, call))(*args)
    except Exception as error:  # a student's code raises anything
        return _error(error, file)
    triples = zip(names, call.args, args, strict=False)
    changed = tuple(name for name, before, after in triples if value_difference(before, after))
    return ExerciseOutcome(value, changed=changed)


def _error(error: Exception, file: str) -> ExerciseOutcome:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return ExerciseOutcome(error=f"{type(error).__name__}: {error}", line=lines[-1] if lines else 0)


def _build(code: Any, call: FunctionCall) -> Any:
    """Return a module with weights that do not depend on the order in which its layers are defined."""
    import torch

    module = code(*call.module)
    generators = {}
    for parameter in _parameters(module):
        generator = generators.setdefault(parameter.shape, torch.Generator().manual_seed(parameter.numel()))
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    return module.train(call.train)


def _parameters(module: Any) -> list[Any]:
    """Return a module's parameters in order of shape, then name."""
    named = sorted(module.named_parameters(), key=lambda pair: (tuple(pair[1].shape), pair[0]))
    return [parameter for _, parameter in named]


def gradients(
    code: Any, call: FunctionCall, names: Sequence[str], learned: Sequence[str], file: str = ""
) -> ExerciseOutcome:
    """Return as the value the gradient of each learned argument by name, and that of a module's parameters."""
    import torch

    args = copy.deepcopy(call.args)
    leaves = {name: [arg.requires_grad_()] for name, arg in zip(names, args, strict=False) if name in learned}
    try:
        module = code
        if call.module is not None:
            module = _build(code, call)
            leaves["its parameters"] = _parameters(module)
        with torch.enable_grad():
            result = torch.as_tensor(module(*args))
            if result.requires_grad:
                (result * torch.arange(result.numel()).cos().reshape(result.shape)).sum().backward()
    except Exception as error:
        return _error(error, file)
    flat = {
        name: torch.cat([(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).flatten() for leaf in group])
        for name, group in leaves.items()
    }
    return ExerciseOutcome(flat)


GRADIENT_HINT = Bilingual(
    ".item(), .detach(), numpy and torch.no_grad() cut the gradient, and an in-place change can corrupt it: "
    "nothing is learned through this code",
    ".item(), .detach(), numpy, torch.no_grad()는 gradient를 끊고, in-place 변경은 망가뜨릴 수 있습니다: "
    "이 코드로는 학습이 되지 않습니다",
)


def gradient_difference(expected: ExerciseOutcome, actual: ExerciseOutcome) -> Bilingual | None:
    """Return how gradients differ, or None."""
    if actual.error:
        error = actual.error
        return Bilingual(f"no gradient can be computed: {error}", f"gradient를 계산할 수 없습니다: {error}")
    for name, gradient in expected.value.items():
        if not (message := value_difference(gradient, actual.value[name])):
            continue
        if not actual.value[name].any():
            return Bilingual(f"no gradient reaches {name}", f"{name}에 gradient가 전해지지 않습니다")
        return Bilingual(
            f"the gradient of {name} is wrong: {message.en}", f"{name}의 gradient가 틀렸습니다: {message.ko}"
        )
    return None


def difference(expected: ExerciseOutcome, actual: ExerciseOutcome) -> Bilingual | None:
    """Return how a result differs from the expected one, or None; never how to correct it."""
    if actual.error:
        if re.sub(r"\d+", "#", actual.error) == re.sub(r"\d+", "#", expected.error):
            return None
        at, ko = (f" in line {actual.line}", f"{actual.line}행에서 ") if actual.line else ("", "")
        return Bilingual(f"the code fails{at} with {actual.error}", f"{ko}오류로 끝납니다: {actual.error}")
    if actual.changed != expected.changed:
        names = ", ".join(actual.changed)
        return Bilingual(
            f"the code changes its argument {names} in place; return a new value instead",
            f"인자 {names}을(를) in-place로 바꿉니다; 새 값을 만들어 돌려주세요",
        )
    return value_difference(expected.value, actual.value)


def value_difference(expected: Any, actual: Any) -> Bilingual | None:
    """Return how values differ by more than rounding, or None."""
    if expected is actual:
        return None
    if actual is None:
        return Bilingual(
            "the code returns nothing: is a return missing?", "아무것도 돌려주지 않습니다: return이 빠졌나요?"
        )
    if isinstance(expected, tuple | list):
        count = len(expected)
        if not isinstance(actual, tuple | list) or len(actual) != count:
            return Bilingual(f"expected {count} results, as in `return a, b`", f"값 {count}개를 돌려주어야 합니다")
        for number, pair in enumerate(zip(expected, actual, strict=True), start=1):
            if message := value_difference(*pair):
                return Bilingual(f"result {number} of {count}: {message.en}", f"{number}번째 결과: {message.ko}")
        return None
    kinds = _kind(expected), _kind(actual)
    if kinds[0] != kinds[1] and not (kinds[0] == "a number" and kinds[1] in NUMERIC):
        name = type(actual).__name__
        return Bilingual(
            f"the code returns a {name}; expected {kinds[0]}", f"{name}을(를) 돌려줍니다; {kinds[0]}이어야 합니다"
        )
    if kinds[0] not in NUMERIC:
        return None
    shapes = tuple(tuple(getattr(value, "shape", ())) for value in (expected, actual))
    if shapes[0] != shapes[1]:
        return Bilingual(
            f"the shape is {shapes[1]}; expected {shapes[0]}", f"모양이 {shapes[1]}입니다; {shapes[0]}이어야 합니다"
        )
    dtypes = tuple(str(getattr(value, "dtype", "")).removeprefix("torch.") for value in (expected, actual))
    if dtypes[0] != dtypes[1] and kinds[0] != "a number":
        return Bilingual(
            f"the dtype is {dtypes[1]}; expected {dtypes[0]}", f"dtype이 {dtypes[1]}입니다; {dtypes[0]}이어야 합니다"
        )
    return _number_difference(_to_array(expected), _to_array(actual))


def _kind(value: Any) -> str:
    if hasattr(value, "detach"):
        return "a tensor"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return "an array"
    return "a number" if isinstance(value, int | float | np.number) else f"a {type(value).__name__}"


def _to_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().double() if value.is_floating_point() else value.detach()
    return np.asarray(value)


def _number_difference(expected: np.ndarray, actual: np.ndarray) -> Bilingual | None:
    if exact := expected.dtype.kind in "biu":
        far = actual != expected
    else:
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        far = ~np.isclose(actual, expected, rtol=RTOL, atol=ATOL * largest, equal_nan=True)
    if not far.any():
        return None
    index = tuple(map(int, np.argwhere(far)[0]))
    pair = [str(values[index]) if exact else f"{float(values[index]):.4g}" for values in (actual, expected)]
    if not index:
        return Bilingual(
            f"the result is {pair[0]}; expected {pair[1]}", f"값이 {pair[0]}입니다; {pair[1]}이어야 합니다"
        )
    count = f"{int(far.sum())} of {far.size}", f"{int(far.sum())} / {far.size}"
    return Bilingual(
        f"the value at {list(index)} is {pair[0]}; expected {pair[1]} ({count[0]} numbers differ)",
        f"{list(index)}의 값이 {pair[0]}입니다; {pair[1]}이어야 합니다 (다른 값 {count[1]})",
    )
