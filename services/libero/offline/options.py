"""The options of `offline` and of `act`."""

from __future__ import annotations

from dataclasses import dataclass

from vla_common.options import Options, option


@dataclass(frozen=True)
class OfflineOptions(Options):
    """Score a policy on a recorded data set, over HTTP."""

    dataset: str = option(help="a name under datasets/ on the volume, or a path", kind="dataset")
    policy_url: str = option("http://127.0.0.1:8001", "where the policy service listens", group="internal")
    index: int | None = option(None, "which row of the data set", "[0, inf)", default_help="0")
    plot: bool = option(False, "draw each episode's curves")
    episodes: str = option("", "which ones", default_help="the first ten", kind="ranges")
    steps: int | None = option(None, "at most so many of an episode", "[1, inf)", default_help="to its end")
    execute: int | None = option(None, "ask again after so many steps", "[1, inf)", default_help="the whole chunk")
    swap: str = option(
        "", "what the policy is told instead of the recorded instruction", default_help="another one of the data set"
    )
    seed: int = option(0, "of the noise that a policy's actions start from", "[0, inf)")
    cameras: str = option("", "the policy's cameras in the data set, where names do not tell", metavar="CAMERA=FILM,…")
    unnorm_key: str | None = option(None, "statistics the policy un-normalises with, where it has several")
    name: str = option(
        "",
        "folder of the results under logs/offline on the volume",
        default_help="made of both names",
        kind="directory name",
    )

    def __post_init__(self) -> None:
        self.check_options()
