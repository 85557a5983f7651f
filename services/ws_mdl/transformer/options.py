"""The options of `translate`."""

from __future__ import annotations

from dataclasses import dataclass

from services.ws_mdl.settings import epoch_option, trained_option
from vla_common.options import Options, device_option, option


@dataclass
class TranslateCommand(Options):
    """Translates sentences with the newest trained run, or the one of that name."""

    sentences: tuple[str, ...] = option(help="what to translate", group="internal")
    name: str | None = trained_option("transformer")
    epoch: str | None = epoch_option("translate one after the other")
    beam: int = option(4, "translations kept at every step; 1 is greedy search", "[1, inf)")
    penalty: float = option(0.6, "larger values favour longer translations", group="internal")
    pictures: bool = option(False, "draw where each layer and head looks, as PNG and as a page")
    device: str = device_option()
