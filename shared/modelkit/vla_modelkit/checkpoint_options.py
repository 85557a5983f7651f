"""The options of every program that gets a checkpoint onto the volume."""

from __future__ import annotations

from dataclasses import dataclass

from vla_common.options import Options, option


@dataclass(frozen=True)
class CheckpointOptions(Options):
    """Which checkpoint, and where it goes."""

    suite: str = option(
        "", "the published checkpoint of this suite; base: of none, where there is one", kind="published suite"
    )
    repo: str = option(
        "",
        "another repository on the hub",
        pattern=r"[\w-][\w.-]*/[\w-][\w.-]*",
        expected="a repository's owner and name with a slash between",
        metavar="OWNER/NAME",
    )
    tiny: bool = option(False, "make a small random one instead: no download, answers without sense")
    name: str = option(
        "", "its folder under checkpoints/ on the volume", default_help="as published", kind="directory name"
    )
    revision: str = option(
        "",
        "commit, tag or branch of the repository",
        default_help='the pinned one, for another repository "main" as it is now',
        group="internal",
    )
    size: str = option("tiny", "with --tiny: how large", group="internal")
    seed: int = option(0, "with --tiny: of the random weights", group="internal")
    force: bool = option(False, "make or download again what is there already", group="internal")
