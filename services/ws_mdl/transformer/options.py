"""The options of `translate`."""

from __future__ import annotations

from dataclasses import dataclass

from vla_common.options import Options, option


@dataclass
class TranslateCommand(Options):
    """Translates sentences with the newest trained run, or the one of that name."""

    sentences: tuple[str, ...] = option(help="what to translate", group="internal")
    name: str | None = option(
        None, "run that was trained", default_help="the one trained last", kind="trained", keywords=("transformer",)
    )
    epoch: str | None = option(
        None,
        "weights after that epoch, the first being 0; several translate one after the other",
        default_help="the newest",
        pattern=r"\d+(,\d+)*",
        expected="epochs such as 0,10,29",
        metavar="N,N",
    )
    beam: int = option(4, "translations kept at every step; 1 is greedy search", "[1, inf)")
    penalty: float = option(0.6, "larger values favour longer translations", group="internal")
    pictures: bool = option(False, "draw where each layer and head looks, as PNG and as a page")
    device: str = option("auto", "auto, cpu, cuda, cuda:1 or mps", kind="device")
