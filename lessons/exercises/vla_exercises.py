"""Exercises of the VLA lesson: what follows the language model, so no model is needed."""

from __future__ import annotations

from lessons.exercises.types import Bilingual, Exercise, FunctionCall, mistake


def bins_calls() -> list[FunctionCall]:
    import numpy as np

    return [
        FunctionCall("action_bins of tokens 31745 … 31999", (np.arange(31745, 32000),)),
        FunctionCall("action_bins of the 256th token, 31744", (np.array([31744]),)),
        FunctionCall("action_bins of ids that are not bins: 5, 32000", (np.array([5, 32000]),)),
        FunctionCall(
            "action_bins of vocabulary 1000 and 17 bins", (np.array([982, 983, 984, 991, 998, 999]), 1000, 17)
        ),
    ]


def gripper_calls() -> list[FunctionCall]:
    import numpy as np

    return [
        FunctionCall(
            f"gripper_flip of an action with gripper {grip}", (np.array([1.3, -0.213, 0.37, -0.05, 0, 0.1, grip]),)
        )
        for grip in (0.996, 0.004, 0.7, 0.55, 0.45, 0.3, 1.0, 0.0)
    ]


INDEX = "np.clip(vocabulary - tokens - 1, 0, bins - 2)"
BINS = (
    mistake("reversed", (INDEX, "np.clip(tokens - (vocabulary - bins) - 1, 0, bins - 2)"),
            en="the highest token gives the highest value; it is the lowest bin",
            ko="가장 높은 token이 가장 높은 값이 됩니다; 그것은 가장 낮은 bin입니다"),
    mistake("one bin off", ("vocabulary - tokens - 1", "vocabulary - tokens"),
            en="every number is one bin too high: token 31999 is bin 0",
            ko="모든 값이 한 bin 높습니다: token 31999가 bin 0입니다"),
    mistake("edges instead of centres", ("return centres", "return edges"),
            en="these are the bins' edges; a token means the centre of its bin",
            ko="bin의 가장자리입니다; token은 bin의 가운데를 뜻합니다"),
    mistake("not clipped", (INDEX, "vocabulary - tokens - 1"),
            en="256 tokens, 255 centres: clip the last one, and ids that are not bins",
            ko="token은 256개, centre는 255개입니다: 마지막 token과 bin이 아닌 id는 clip해야 합니다"),
    mistake("modulo instead of clip", (INDEX, "(vocabulary - tokens - 1) % (bins - 1)"),
            en="with a modulo, values beyond the last bin start over at the first; clip keeps them at the last",
            ko="modulo를 쓰면 마지막 bin을 넘은 값이 첫 bin에서 다시 시작합니다; clip은 마지막에 둡니다"),
    mistake("256 centres", ("np.linspace(-1.0, 1.0, bins)", "np.linspace(-1.0, 1.0, bins + 1)"),
            en="there are 256 edges, so 255 bins: these are 257 edges",
            ko="edge가 256개이므로 bin은 255개입니다: 지금은 edge가 257개입니다"),
)  # fmt: skip
INVERTED = "-np.sign(2 * action[..., 6] - 1)"
GRIPPER = (
    mistake("not inverted", (INVERTED, INVERTED[1:]),
            en="open becomes +1, which closes LIBERO's gripper",
            ko="열림이 +1이 됩니다. LIBERO에서는 닫힘입니다"),
    mistake("the sign of a number that is never negative", (INVERTED, "-np.sign(action[..., 6])"),
            en="a number in [0, 1] has no negative sign: stretch it to [-1, 1] first",
            ko="[0, 1]의 수는 음수가 되지 않습니다: 먼저 [-1, 1]로 늘리세요"),
    mistake("half open", (INVERTED, "1 - 2 * action[..., 6]"),
            en="LIBERO's gripper is open or closed: take the sign",
            ko="LIBERO의 gripper는 열림 아니면 닫힘입니다: 부호를 쓰세요"),
    mistake("inverted within [0, 1]", (INVERTED, "1 - action[..., 6]"),
            en="1 - g is inverted, but still in [0, 1]; LIBERO expects -1 and +1",
            ko="1 - g는 뒤집혔지만 아직 [0, 1]입니다; LIBERO는 -1과 +1을 받습니다"),
    mistake("the argument is changed", ("action.copy()", "action"),
            en="the argument itself is changed: work on a copy",
            ko="인자로 받은 action을 바꿉니다: 복사본을 쓰세요"),
)  # fmt: skip

EXERCISES = (
    Exercise("vla.bins", "action_bins", bins_calls, BINS,
             Bilingual("Write the values of action tokens: numbers in (-1, 1).",
                       "action token이 뜻하는 (-1, 1)의 수를 쓰세요."),
             Bilingual("np.linspace gives the edges, np.clip limits an index to the bins.",
                       "np.linspace로 edge를, np.clip으로 index를 bin 안에 두세요.")),
    Exercise("vla.gripper", "gripper_flip", gripper_calls, GRIPPER,
             Bilingual("Convert the gripper: OpenVLA has 1 open, 0 closed; LIBERO has -1 open, +1 closed.",
                       "gripper를 뒤집으세요: OpenVLA는 1 열림, 0 닫힘; LIBERO는 -1 열림, +1 닫힘입니다."),
             Bilingual("Map [0, 1] to [-1, 1], take the sign, and invert it.",
                       "[0, 1]을 [-1, 1]로, 부호를 취하고, 뒤집습니다.")),
)  # fmt: skip
